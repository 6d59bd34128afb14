"""A training whose MLflow server is away until it is committed: later stages deliver its metrics and show its run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import pytest

from tests.unit.training.stages.evaluate_bench import EvaluateBench
from training.contracts import StageResult
from training.engine.tracking.mlflow_journal import ID_TAG, Backlog, End, RunJournal, pending_journals
from training.evaluation import latency
from training.registry.ledger.ledger import Ledger
from training.store.metric_journal import JournalWriter, MetricJournal

pytestmark = pytest.mark.slow

LATENCY = {str(batch): {"p50_ms": 1.0, "p95_ms": 2.0, "p99_ms": 3.0, "rows_per_second": 9.0, "waited_share": 0.0} for batch in (1, 256)}
EPOCHS = 20


class Night:
    """A night's chain; `back` is the URI of an MLflow database, which nobody reached during the trainings."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        patch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        patch.setenv("NIGHTSHIFT_DATABASE", f"sqlite:///{folder}/nightshift.db")
        patch.setattr("training.engine.tracking.tracker.CLOSE_SECONDS", 0.5)
        patch.setattr(latency, "measure", lambda *_args, **_named: LATENCY)
        patch.chdir(folder)
        self.bench = EvaluateBench(folder / "bench", "binary")
        self.first = self.bench.train(work="first")
        self.alone = self.bench.train({"epochs: 20": "epochs: 19"}, work="alone")
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")

    def parameters(self, train: StageResult) -> dict[str, Any]:
        """Return what a task hands over of a training."""
        work_folder = self.bench.store.work_folder(train.pipeline, train.stage, train.work_id)
        return {"mlflow_run_id": train.scalars["mlflow_run_id"], "training_uri": work_folder.uri}

    def repair(self, work: str, **parameters: Any) -> StageResult:
        return self.bench.stage("repair", {}, parameters, work=work)


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Night]:
    with pytest.MonkeyPatch.context() as patch:
        yield Night(tmp_path_factory.mktemp("later"), patch)


def points_of(train: StageResult, night: Night) -> list[tuple[int, int]]:
    """Return (step, milliseconds) of each validation loss that MLflow has of a training."""
    work_id = train.work_id
    (run,) = mlflow.search_runs(
        search_all_experiments=True, filter_string=f"tags.`nightshift.fingerprint` = '{work_id}'", output_format="list"
    )
    assert run.info.status == "FINISHED"
    found = mlflow.MlflowClient().get_metric_history(run.info.run_id, "validation_loss")
    assert all(run.info.start_time <= point.timestamp <= run.info.end_time for point in found), "the training's own times"
    return [(point.step, point.timestamp) for point in found]


def test_evaluation_delivers_the_metrics_and_shows_the_run_and_so_does_the_decision(night: Night) -> None:
    train, bench = night.first, night.bench
    assert (train.scalars["mlflow_run_id"], train.scalars["tracking"]) == (None, "delayed")
    evaluation, _ = bench.evaluate(train, work="first", champion=None, canary=None, **night.parameters(train))
    assert sorted(step for step, _at in points_of(train, night)) == list(range(1, EPOCHS + 1))
    (version,) = mlflow.MlflowClient().search_model_versions("name = 'orders'")
    assert version.run_id
    run = mlflow.MlflowClient().get_run(version.run_id)
    assert run.data.tags["nightshift.fingerprint"] == train.work_id
    assert "test_auc" in run.data.metrics
    report = bench.store.reports.get(evaluation.reports["evaluation"])
    assert version.run_id.encode() in report

    inputs = {"model": train.artifact_uri, "evaluation": evaluation.artifact_uri}
    inputs |= {"dataset": bench.dataset_uri, "snapshot": bench.snapshot_uri}
    bench.stage("promote", inputs, night.parameters(train), work="first")
    (entry,) = Ledger().history("orders")
    assert entry.evidence["mlflow_run_id"] == version.run_id


def test_housekeeping_delivers_what_no_later_stage_delivered(night: Night) -> None:
    (entry,) = Ledger().history("orders")
    night.bench.stage("promote", {}, {"order": {"kind": "follow", "key": entry.key}}, work="follow")
    assert [journal.key.rsplit("/", 1)[-1] for journal in pending_journals(night.bench.store.bucket)] == [night.alone.work_id]
    night.repair("delivers")
    assert pending_journals(night.bench.store.bucket) == []
    assert sorted(step for step, _at in points_of(night.alone, night)) == list(range(1, EPOCHS))


def test_housekeeping_delivers_metrics_where_the_ledger_has_no_decision(
    night: Night, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = night.bench.store.bucket
    journal = RunJournal(bucket, bucket.key(night.bench.store.work_folder(night.alone.pipeline, "train", night.alone.work_id).uri))
    writer = JournalWriter(MetricJournal(bucket, night.alone.pipeline, "later"), "a1")
    writer.append([("late", 0.5, 1, 1_700_000_000_000)])
    journal.note("000001-later", Backlog(end=End(status="FINISHED", ended_at_ms=1_700_000_000_001)))
    monkeypatch.setenv("NIGHTSHIFT_DATABASE", f"sqlite:///{tmp_path}/empty.db")
    found = night.repair("empty ledger")
    assert found.scalars["models"] == 0
    assert pending_journals(bucket) == []
    run_id = journal.run_id()
    assert run_id is not None
    assert [point.value for point in mlflow.MlflowClient().get_metric_history(run_id, "late")] == [0.5]


def test_housekeeping_deletes_old_runs_of_the_pipeline_and_those_of_versions_stay(night: Night) -> None:
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name(night.first.pipeline)
    assert experiment is not None
    trial = client.create_run(experiment.experiment_id, start_time=0, tags={ID_TAG: "t"}).info.run_id
    client.set_terminated(trial)
    night.repair("before", forget_before="1960-01-01")
    assert client.get_run(trial).info.lifecycle_stage == "active"
    night.repair("after", forget_before="2100-01-01")
    assert client.get_run(trial).info.lifecycle_stage == "deleted"
    (version,) = client.search_model_versions("name = 'orders'")
    assert client.get_run(version.run_id).info.lifecycle_stage == "active"
