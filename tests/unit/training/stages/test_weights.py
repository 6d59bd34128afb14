"""Orders with weights, from ingest to the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.unit.training.stages.evaluate_bench import SPEC, EvaluateBench, orders
from training.contracts import ExitCode
from training.data.dataset.reader import DatasetReader
from training.models.predictor import load_predictor

pytestmark = pytest.mark.slow

WEIGHT = ("      leak: {type: double}\n", "      leak: {type: double}\n      w: {type: double, nullable: true}\n")
SPLIT = "  split: {by: time"
WEIGHTED = {SPLIT: f"  weight: w\n{SPLIT}"}
MODEL = "train: {model: boosted_trees,"


@pytest.fixture(autouse=True)
def _no_tracking(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("NIGHTSHIFT_DATABASE", f"sqlite:///{tmp_path}/nightshift.db")
    monkeypatch.setattr("training.engine.tracking.tracker.CLOSE_SECONDS", 0.5)


def bench_of(folder: Path, task: str, frame: pd.DataFrame) -> EvaluateBench:
    return EvaluateBench(folder, task, text=SPEC.replace(*WEIGHT), frame=frame)


def scores(bench: EvaluateBench, model_uri: str, folder: Path) -> tuple[np.ndarray, pd.DataFrame]:
    manifest = bench.store.manifests.get(model_uri)
    rows = DatasetReader(bench.store, bench.store.manifests.get(bench.dataset_uri), folder / "dataset").rows("train")
    return load_predictor(bench.store.manifests.fetch(manifest, folder / "model")).predict(rows), rows


@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_weights_of_classes_make_the_same_trees_as_a_column_with_these_weights(tmp_path: Path, task: str) -> None:
    frame = orders()
    label = frame["cancelled" if task == "binary" else "size"]
    bench = bench_of(tmp_path / "bench", task, frame.assign(w=np.where(label == 1, 5.0, 1.0)))
    found = {
        name: bench.train(change, work=name)
        for name, change in {
            "none": {},
            "column": WEIGHTED,
            "classes": {MODEL: f"{MODEL} class_weight: {{'1': 5}},"},
            "again": WEIGHTED,
        }.items()
    }
    digests = {name: result.scalars["weights_digest"] for name, result in found.items()}
    assert digests["column"] == digests["classes"] == digests["again"] != digests["none"]
    if task == "binary":
        plain, rows = scores(bench, found["none"].artifact_uri, tmp_path / "none")
        weighed, _ = scores(bench, found["column"].artifact_uri, tmp_path / "column")
        assert plain.mean() == pytest.approx(rows["cancelled"].mean(), abs=0.02)
        assert np.average(weighed, weights=rows["w"]) == pytest.approx(np.average(rows["cancelled"], weights=rows["w"]), abs=0.02)


def test_dataset_without_weights_has_the_bytes_of_one_whose_column_is_not_named(tmp_path: Path) -> None:
    bench = bench_of(tmp_path / "bench", "regression", orders().assign(w=2.0))
    plain = bench.store.manifests.get(bench.prepare(work="plain"))
    weighed = bench.store.manifests.get(bench.prepare(WEIGHTED, work="weighed"))
    assert "weight" not in plain.meta
    assert weighed.meta["weight"] == "w"
    assert weighed.meta["layout"]["row_bytes"] == plain.meta["layout"]["row_bytes"] + 4
    assert {name: entry for name, entry in weighed.files.items() if "shards/" not in name} == {
        name: entry for name, entry in plain.files.items() if "shards/" not in name
    }


@pytest.mark.parametrize(("value", "code"), [(-1.0, "weight.value"), (np.nan, "weight.value"), (0.0, "weight.zero")])
def test_weights_that_cannot_be_used_fail_prepare(tmp_path: Path, value: float, code: str) -> None:
    bench = bench_of(tmp_path / "bench", "binary", orders().assign(w=value))
    bench.spec = bench.spec_of(WEIGHTED)
    ended, work_folder = bench.attempt("prepare", {"snapshot": bench.snapshot_uri}, {}, "wrong")
    error = work_folder.error("a1")
    assert ended is ExitCode.BAD_DATA
    assert error is not None
    assert error["code"] == code
