"""One small dataset of the shop, and as many trainings of it as a test wants."""

from __future__ import annotations

import importlib
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from devstack.shop import write_day
from training.contracts import ExitCode, RunIdentity, StageRequest, StageResult
from training.runtime.context import StopFlag
from training.runtime.provenance import CHECKOUT
from training.runtime.runner import run
from training.sources.listing import listing_for
from training.spec import PipelineSpec, freeze, parse_spec, resolve_uris
from training.store import Store, WorkFolder

AS_OF = datetime(2026, 1, 7, 2, tzinfo=UTC)
FIRST_DAY = date(2026, 1, 1)
NUM_DAYS = 6


class Bench:
    """A store with one prepared dataset in it."""

    attempt_id = "a1"

    def __init__(self, folder: Path, **train: Any) -> None:
        """Make the dataset.

        Args:
            folder: for the shop and the store.
            train: keys of the spec's `train` that differ: `epochs`, `batch_size`, `processes`, `every`, `parallel` (a YAML mapping).
        """
        for number in range(NUM_DAYS):
            write_day(folder / "shop", FIRST_DAY + timedelta(days=number), searches=60)
        self.store = Store(str(folder / "store"))
        self.shop_uri = (folder / "shop").as_uri()
        self.spec = self.spec_of(**train)
        ingest = self.stage("ingest", {}, {"listing": listing_for(self.spec, AS_OF)})
        self.dataset_uri = self.stage("prepare", {"snapshot": ingest.artifact_uri}, {}).artifact_uri

    def spec_of(self, **train: Any) -> PipelineSpec:
        text = (CHECKOUT / "dags/pipelines/search_ranking.yaml").read_text(encoding="utf-8")
        values = {"epochs": 2, "batch_size": 240, "processes": 1, "every": "10m", "parallel": "", **train}
        parallel = f"\n  parallel: {values['parallel']}" if values["parallel"] else ""
        for old, new in (
            ("window: 30d", "window: 6d"),
            ("test: 2d", "test: 1d"),
            ("epochs: 3", f"epochs: {values['epochs']}"),
            ("batch_size: 4096", f"batch_size: {values['batch_size']}"),
            ("processes_per_node: 2}", f"processes_per_node: {values['processes']}}}{parallel}"),
            ("every: 10m", f"every: {values['every']}"),
        ):
            assert old in text, old
            text = text.replace(old, new)
        return resolve_uris(parse_spec(text.encode()), {"SHOP_URI": self.shop_uri})

    def work_folder(self, stage: str, name: str) -> WorkFolder:
        return self.store.work_folder("search_ranking", stage, name.encode().hex().rjust(64, "0"))

    def ask(self, stage: str, name: str, attempt_id: str, inputs: dict[str, str], parameters: dict[str, Any]) -> str:
        work_folder = self.work_folder(stage, name)
        request = StageRequest(
            pipeline="search_ranking",
            stage=stage,
            work_id=work_folder.uri.rsplit("/", 1)[-1],
            attempt_id=attempt_id,
            store_uri=self.store.root_uri,
            spec_uri=self.store.put_json(freeze(self.spec)),
            as_of=AS_OF,
            inputs=inputs,
            parameters=parameters,
            run=RunIdentity(dag_id="search_ranking", run_id="r", task_id=stage),
        )
        return work_folder.write_request(request)

    def stage(self, stage: str, inputs: dict[str, str], parameters: dict[str, Any]) -> StageResult:
        work = importlib.import_module(f"training.stages.{stage}").work
        uri = self.ask(stage, "only", self.attempt_id, inputs, parameters)
        assert run(work, uri, stop=StopFlag()) is ExitCode.DONE
        result = self.work_folder(stage, "only").result()
        assert result is not None
        return result

    def ask_train(self, name: str, attempt_id: str = "a1") -> str:
        return self.ask("train", name, attempt_id, {"dataset": self.dataset_uri}, {"world_size": self.spec.train.placement.world_size})

    def train(self, name: str, attempt_id: str = "a1", *, stop: StopFlag | None = None, **parameters: Any) -> ExitCode:
        work = importlib.import_module("training.stages.train").work
        asked = {"world_size": self.spec.train.placement.world_size, **parameters}
        uri = self.ask("train", name, attempt_id, {"dataset": self.dataset_uri}, asked)
        return run(work, uri, stop=stop or StopFlag())

    def weights(self, name: str) -> str:
        result = self.work_folder("train", name).result()
        assert result is not None
        return str(result.scalars["weights_digest"])

    def checkpoints(self, name: str) -> list[Any]:
        return [e.value["payload"] for e in self.work_folder("train", name).chain().history() if e.value["kind"] == "checkpoint"]
