"""A small table of orders with a yes-or-no, a class and a number to predict, taken through the stages up to the evaluation."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from training.contracts import ExitCode, RunIdentity, StageRequest, StageResult
from training.evaluation import latency
from training.registry.ledger.version_weights import MLflowRegistration
from training.runtime.context import StopFlag
from training.runtime.runner import run
from training.sources.listing import listing_for
from training.spec import PipelineSpec, freeze, parse_spec, resolve_uris
from training.store import Store, WorkFolder

AS_OF = datetime(2026, 2, 1, 2, tzinfo=UTC)
NUM_ROWS = 3000

SPEC = """
name: orders
owner: tests
data:
  source:
    table: orders
    kind: csv
    uri: "${ORDERS_URI}/orders.csv"
    event_time: ordered_at
    window: 30d
    key: [order_id]
    columns:
      order_id: {type: int64}
      ordered_at: {type: timestamp}
      customer: {type: int64}
      country: {type: string, nullable: true}
      channel: {type: string}
      value: {type: double}
      noise: {type: double, nullable: true}
      leak: {type: double}
      cancelled: {type: int64, known: after}
      size: {type: int64, known: after}
      days: {type: double, known: after}
  label: {column: LABEL}
  split: {by: time, validation: 5d, test: 10d}
prepare:
  features:
    country: {transform: category}
    channel: {transform: category}
    value: {transform: number}
    noise: {transform: number}
train: {model: boosted_trees, seed: 3, epochs: 20, learning_rate: 0.3, settings: {max_depth: 3}}
evaluate: {task: TASK, primary: PRIMARY}
promote: {model: orders}
"""
LABELS = {"binary": ("cancelled", "auc"), "multiclass": ("size", "log_loss"), "regression": ("days", "rmse")}
LATENCY = {str(batch): {"p50_ms": 1.0, "p95_ms": 2.0, "p99_ms": 3.0, "rows_per_second": 9.0, "waited_share": 0.0} for batch in (1, 256)}


@contextmanager
def nobody_else(folder: Path, measured: Mapping[str, Mapping[str, float]] | None = None) -> Iterator[None]:
    """Evaluate without a tracking server, a registry, a further process: what those do has tests of its own.

    Args:
        folder: of the database.
        measured: what the process that measures latency would find.
    """
    with pytest.MonkeyPatch.context() as patch:
        without_services(patch, folder, measured)
        yield


def without_services(patch: pytest.MonkeyPatch, folder: Path, measured: Mapping[str, Mapping[str, float]] | None = None) -> None:
    """Patch as `nobody_else` does."""
    patch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    patch.setenv("NIGHTSHIFT_DATABASE", f"sqlite:///{folder}/nightshift.db")
    patch.setattr("training.engine.tracking.tracker.CLOSE_SECONDS", 0.5)
    patch.setattr(
        "training.registry.mlflow.versions.register_candidate",
        lambda *_args, **_named: MLflowRegistration(number="7", logged_model="m-7", artifact_digest="f" * 64),
    )
    patch.setattr(latency, "measure", lambda *_args, **_named: measured)


def orders(seed: int = 0) -> pd.DataFrame:
    """Return the orders: `value` decides, `noise` says nothing, `leak` is what is to be predicted."""
    generator = np.random.default_rng(seed)
    value = generator.normal(size=NUM_ROWS)
    chance = 1 / (1 + np.exp(-2 * value))
    cancelled = (generator.random(NUM_ROWS) < chance).astype(int)
    days = 3 * value + generator.normal(size=NUM_ROWS)
    end = AS_OF.replace(hour=0)
    times = [end - timedelta(days=29.9) + timedelta(days=29.8) * number / NUM_ROWS for number in range(NUM_ROWS)]
    return pd.DataFrame(
        {
            "order_id": np.arange(NUM_ROWS),
            "ordered_at": [time.isoformat() for time in times],
            "customer": generator.integers(0, 500, NUM_ROWS),
            "country": generator.choice(["NL", "DE", "BE"], NUM_ROWS, p=[0.7, 0.28, 0.02]),
            "channel": generator.choice(["web", "app"], NUM_ROWS),
            "value": value,
            "noise": generator.normal(size=NUM_ROWS),
            "leak": cancelled + 0.001 * generator.normal(size=NUM_ROWS),
            "cancelled": cancelled,
            "size": np.digitize(value + 0.3 * generator.normal(size=NUM_ROWS), [-0.5, 0.5]),
            "days": days,
        }
    )


def spec_for(text: str, task: str, orders_uri: str, replaced: Mapping[str, str] | None = None) -> PipelineSpec:
    """Return the spec of a text like `SPEC` for a task, with some of its text replaced."""
    label, primary = LABELS[task]
    text = text.replace("LABEL", label).replace("TASK", task).replace("PRIMARY", primary)
    for old, new in (replaced or {}).items():
        assert old in text, old
        text = text.replace(old, new)
    return resolve_uris(parse_spec(text.encode()), {"ORDERS_URI": orders_uri})


def run_stage(
    store: Store,
    spec: PipelineSpec,
    name: str,
    inputs: dict[str, str],
    parameters: dict[str, Any],
    *,
    work_id: str,
    run_id: str,
    as_of: datetime,
) -> tuple[ExitCode, WorkFolder]:
    """Run a stage in this process, or find it done; return how it ended and where."""
    work_folder = store.work_folder("orders", name, work_id)
    request = StageRequest(
        pipeline="orders",
        stage=name,
        work_id=work_id,
        attempt_id="a1",
        store_uri=store.root_uri,
        spec_uri=store.put_json(freeze(spec)),
        as_of=as_of,
        inputs=inputs,
        parameters=parameters,
        run=RunIdentity(dag_id="orders", run_id=run_id, task_id=name),
    )
    work = importlib.import_module(f"training.stages.{name}").work
    return run(work, work_folder.write_request(request), stop=StopFlag()), work_folder


class EvaluateBench:
    """A store with a prepared dataset of one task."""

    def __init__(self, folder: Path, task: str, *, text: str = SPEC, frame: pd.DataFrame | None = None) -> None:
        """Prepare the orders.

        Args:
            task: decides the label and the primary metric.
            text: the spec, with LABEL, TASK and PRIMARY in it.
            frame: the orders; absent: those of `orders`.
        """
        (folder / "orders").mkdir(parents=True)
        (orders() if frame is None else frame).to_csv(folder / "orders" / "orders.csv", index=False)
        self.store = Store(str(folder / "store"))
        self.orders_uri = (folder / "orders").as_uri()
        self.task = task
        self.text = text
        self.spec = self.spec_of({})
        self.snapshot_uri = self.ingest()
        self.dataset_uri = self.prepare()

    def spec_of(self, replaced: Mapping[str, str]) -> PipelineSpec:
        return spec_for(self.text, self.task, self.orders_uri, replaced)

    def attempt(self, name: str, inputs: dict[str, str], parameters: dict[str, Any], work: str) -> tuple[ExitCode, WorkFolder]:
        """Run a stage, or find it done; return how it ended and where."""
        work_id = work.encode().hex().rjust(64, "0")
        return run_stage(self.store, self.spec, name, inputs, parameters, work_id=work_id, run_id="r", as_of=AS_OF)

    def stage(self, name: str, inputs: dict[str, str], parameters: dict[str, Any], *, work: str = "only") -> StageResult:
        """Run a stage to its good end, or find it done."""
        ended, work_folder = self.attempt(name, inputs, parameters, work)
        assert ended is ExitCode.DONE, work_folder.error("a1")
        result = work_folder.result()
        assert result is not None
        return result

    def ingest(self, replaced: Mapping[str, str] | None = None, *, work: str = "only") -> str:
        """Return the URI of the snapshot of the spec with some of its text replaced."""
        self.spec = self.spec_of(replaced or {})
        return self.stage("ingest", {}, {"listing": listing_for(self.spec, AS_OF)}, work=work).artifact_uri

    def prepare(self, replaced: Mapping[str, str] | None = None, *, work: str = "only") -> str:
        """Return the URI of the dataset that the spec with some of its text replaced makes."""
        self.spec = self.spec_of(replaced or {})
        return self.stage("prepare", {"snapshot": self.snapshot_uri}, {}, work=work).artifact_uri

    def train(self, replaced: Mapping[str, str] | None = None, *, work: str = "only") -> StageResult:
        """Train on a dataset of its own."""
        dataset_uri = self.prepare(replaced, work=work)
        return self.stage("train", {"dataset": dataset_uri}, {"world_size": 1}, work=work)

    def evaluate(
        self, model: StageResult, replaced: Mapping[str, str] | None = None, *, work: str = "only", **parameters: Any
    ) -> tuple[StageResult, dict[str, Any]]:
        """Return (result, `metrics.json`) by the rules of the spec with some of its text replaced."""
        self.spec = self.spec_of(replaced or {})
        inputs = {"model": model.artifact_uri, "dataset": self.dataset_uri}
        result = self.stage("evaluate", inputs, parameters, work=work)
        manifest = self.store.manifests.get(result.artifact_uri, kind="evaluation")
        return result, json.loads(self.store.manifests.read(manifest, "metrics.json"))

    def seat(self, model: StageResult, version: str) -> dict[str, Any]:
        """Return a model as champion or canary of an evaluation: made a month ago, of older rows."""
        manifest = self.store.manifests.get(model.artifact_uri, kind="model")
        long_ago = {split: ["2025-01-01T00:00:00+00:00", "2025-02-01T00:00:00+00:00"] for split in ("train", "validation", "test")}
        return {
            "version": version,
            "model_uri": model.artifact_uri,
            "weights_digest": manifest.meta["weights_digest"],
            "as_of": "2026-01-01T02:00:00+00:00",
            "bounds": long_ago,
            "revision": 3,
        }
