"""Ingest and validate as stages, on nights of the shop."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from devstack.shop import day_path
from training.contracts import RunIdentity, StageRequest
from training.errors import DataError
from training.runtime.context import StageContext, StageOutput, StopFlag
from training.runtime.provenance import CHECKOUT
from training.sources.listing import listing_for, previous_snapshot, profile_ref_name
from training.spec import PipelineSpec, parse_spec, resolve_uris
from training.stages import ingest, validate
from training.store import Store
from training.store.work_folder import StoreUri

PIPELINES = CHECKOUT / "dags" / "pipelines"
AS_OF = datetime(2026, 2, 1, 2, tzinfo=UTC)
LAST = date(2026, 1, 31)
SEARCHES = 150


def load(name: str, uris: dict[str, str], *replacement: str) -> PipelineSpec:
    content = (PIPELINES / f"{name}.yaml").read_text()
    if replacement:
        content = content.replace(*replacement)
    return resolve_uris(parse_spec(content.encode(), f"{name}.yaml"), uris)


class Night:
    """Runs the two stages of one pipeline against one store."""

    def __init__(self, folder: Path, spec: PipelineSpec, as_of: datetime) -> None:
        self.folder = folder
        self.spec = spec
        self.as_of = as_of
        self.store = Store(str(folder / "store"))

    def run(self, stage: Any, *, inputs: dict[str, str], parameters: dict[str, Any], run_id: str = "r1") -> StageOutput:
        name = stage.__name__.rsplit(".", 1)[-1]
        request = StageRequest(
            pipeline=self.spec.name,
            stage=name,
            work_id="f" * 64,
            attempt_id="a",
            store_uri=self.store.root_uri,
            spec_uri="",
            as_of=self.as_of,
            inputs=inputs,
            run=RunIdentity(dag_id=self.spec.name, run_id=run_id, task_id=name),
            parameters=parameters,
        )
        scratch = self.folder / "scratch"
        scratch.mkdir()
        try:
            outcome: StageOutput = stage.work(
                StageContext(store=self.store, request=request, spec=self.spec, folder=scratch, stop=StopFlag())
            )
        finally:
            shutil.rmtree(scratch)
        return outcome

    def ingest(self, run_id: str = "r1") -> StageOutput:
        return self.run(ingest, inputs={}, parameters={"listing": listing_for(self.spec, self.as_of)}, run_id=run_id)

    def validate(self, snapshot: StageOutput) -> StageOutput:
        previous = previous_snapshot(self.store, self.spec.name, self.as_of)
        parameters: dict[str, Any] = {"previous_snapshot": previous}
        if previous is not None:
            head = self.store.ref(profile_ref_name(self.spec.name, StoreUri(previous).digest)).read()
            assert head is not None
            parameters["earlier"] = [{"names": ["previous"], "profile": head.value}]
        return self.run(validate, inputs={"snapshot": snapshot.artifact_uri}, parameters=parameters)

    def refused(self) -> DataError:
        with pytest.raises(DataError) as caught:
            self.validate(self.ingest())
        return caught.value

    def results(self, outcome: StageOutput) -> dict[str, Any]:
        manifest = self.store.manifests.get(outcome.artifact_uri, kind="validation")
        loaded: dict[str, Any] = json.loads(self.store.manifests.read(manifest, "results.json"))
        return loaded


def rewrite(shop: Path, change: Any, day: date = LAST) -> None:
    path = day_path(shop, day)
    pq.write_table(change(pq.ParquetFile(path).read()), path)


def replace(table: pa.Table, name: str, column: Any) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, column)


def with_empty_days(night: Night, allowed: Any) -> Night:
    update = {"empty_days": allowed, "volume_change": None}
    night.spec = night.spec.model_copy(update={"validate_": night.spec.validate_.model_copy(update=update)})
    return night
