"""The stage `refit`: what it fits, keeps and hands on, and how it is stopped and continued."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.training_bench import Bench
from tests.unit.training.stages.evaluate_bench import EvaluateBench, nobody_else
from training.contracts import ExitCode, StageResult
from training.engine.checkpoint.catalog import listings
from training.runtime.context import StageContext, StopFlag
from training.runtime.runner import run

PARAMETERS = {"world_size": 1, "trained_seconds": 5.0}


@pytest.fixture(scope="module", autouse=True)
def _nobody_else(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with nobody_else(tmp_path_factory.mktemp("database")):
        yield


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> tuple[EvaluateBench, StageResult, StageResult]:
    """Return (bench, what `train` made, what `refit` made of it)."""
    bench = EvaluateBench(tmp_path_factory.mktemp("orders"), "binary")
    bench.spec = bench.spec_of({"epochs: 20": "epochs: 20, early_stopping: 2, refit: validation"})
    trained = bench.stage("train", {"dataset": bench.dataset_uri}, {"world_size": 1})
    inputs = {"dataset": bench.dataset_uri, "model": trained.artifact_uri}
    return bench, trained, bench.stage("refit", inputs, PARAMETERS)


def meta_of(bench: EvaluateBench, found: StageResult) -> dict[str, Any]:
    return dict(bench.store.manifests.get(found.artifact_uri, kind="model").meta)


def page_of(bench: EvaluateBench, model: StageResult) -> tuple[dict[str, Any], str]:
    result, record = bench.evaluate(model, work=model.stage)
    return record, bench.store.reports.get(result.reports["evaluation"]).decode()


def test_a_refit_has_the_epochs_that_were_found_and_the_rows_of_both_splits(
    orders: tuple[EvaluateBench, StageResult, StageResult],
) -> None:
    bench, trained, refit = orders
    rows = bench.store.manifests.get(bench.dataset_uri).meta["rows"]
    assert refit.scalars["epochs"] == trained.scalars["best_epoch"]
    assert int(str(trained.scalars["best_epoch"])) < 20
    assert refit.scalars["rows"] == (rows["train"] + rows["validation"]) * int(str(refit.scalars["epochs"]))
    assert refit.scalars["weights_digest"] != trained.scalars["weights_digest"]


def test_the_rows_of_a_refit_end_where_the_test_begins_and_its_settings_are_those_of_the_spec(
    orders: tuple[EvaluateBench, StageResult, StageResult],
) -> None:
    """A study begins with the champion's settings: the epochs that a training found are none of them."""
    bench, trained, refit = orders
    before, after = meta_of(bench, trained), meta_of(bench, refit)
    assert before["bounds"]["train"][1] < after["bounds"]["train"][1] == after["bounds"]["test"][0]
    assert after["settings"] == before["settings"]
    assert after["settings"]["epochs"] == 20
    assert refit.scalars["learned_until"] == after["bounds"]["test"][0]


def test_the_report_says_from_which_rows_the_model_has_learned(orders: tuple[EvaluateBench, StageResult, StageResult]) -> None:
    bench, trained, refit = orders
    record, page = page_of(bench, refit)
    assert record["candidate"]["weights_digest"] == refit.scalars["weights_digest"]
    assert "rows until 2026-01-22 02:00 UTC; the newest 10 days are in test only" in page
    _, page = page_of(bench, trained)
    assert "rows until 2026-01-17 02:00 UTC; the newest 15 days are in validation and test only" in page


def test_the_loss_curve_of_a_refit_is_that_of_the_training(orders: tuple[EvaluateBench, StageResult, StageResult]) -> None:
    bench, trained, refit = orders
    curves = [
        json.loads(bench.store.manifests.read(bench.store.manifests.get(each.artifact_uri), "history.json")) for each in (trained, refit)
    ]
    assert curves[0] == curves[1]


class Ranker(Bench):
    def refit(self, name: str, attempt_id: str, stop: StopFlag | None = None) -> ExitCode:
        trained = self.work_folder("train", "found").result()
        assert trained is not None
        inputs = {"dataset": self.dataset_uri, "model": trained.artifact_uri}
        uri = self.ask("refit", name, attempt_id, inputs, PARAMETERS)
        return run(importlib.import_module("training.stages.refit").work, uri, stop=stop or StopFlag())


def test_a_stopped_refit_is_continued_and_has_checkpoints_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, stop = Ranker(tmp_path), StopFlag()
    assert bench.train("found") is ExitCode.DONE
    saved = listings(bench.store, "search_ranking", "r")
    assert bench.refit("undisturbed", "a1") is ExitCode.DONE
    original = StageContext.progress

    def progress(self: StageContext, done: int, total: int, unit: str, **more: Any) -> None:
        original(self, done, total, unit, **more)
        if done >= 9:
            stop.request()

    with monkeypatch.context() as patch:
        patch.setattr(StageContext, "progress", progress)
        assert bench.refit("stopped", "a1", stop) is ExitCode.PREEMPTED
    assert bench.refit("stopped", "a2") is ExitCode.DONE
    undisturbed, stopped = (bench.work_folder("refit", name).result() for name in ("undisturbed", "stopped"))
    assert undisturbed is not None
    assert stopped is not None
    assert stopped.attempts == 2
    assert stopped.scalars["weights_digest"] == undisturbed.scalars["weights_digest"]
    assert listings(bench.store, "search_ranking", "r") == saved
