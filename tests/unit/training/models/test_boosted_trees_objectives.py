"""Trees that predict a quantile, or the mean of counts: trained, scored by the saved model, and refused where they do not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.unit.training.stages.evaluate_bench import SPEC, EvaluateBench, orders, spec_for
from training.contracts import ExitCode
from training.data.dataset.reader import DatasetReader
from training.errors import SpecError
from training.models.predictor import load_predictor

pytestmark = pytest.mark.slow

SETTINGS = "settings: {max_depth: 3}"


@pytest.fixture(autouse=True)
def _no_tracking(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("NIGHTSHIFT_DATABASE", f"sqlite:///{tmp_path}/nightshift.db")
    monkeypatch.setattr("training.engine.tracking.tracker.CLOSE_SECONDS", 0.5)


def trained(bench: EvaluateBench, folder: Path, settings: str) -> tuple[np.ndarray, np.ndarray, str]:
    """Return (scores, labels) of the training rows, and the digest of the weights."""
    model = bench.train({SETTINGS: f"settings: {{max_depth: 3, {settings}}}"}, work=folder.name)
    manifest = bench.store.manifests.get(model.artifact_uri)
    predictor = load_predictor(bench.store.manifests.fetch(manifest, folder / "model"))
    reader = DatasetReader(bench.store, bench.store.manifests.get(bench.dataset_uri), folder / "dataset")
    rows = reader.rows("train")
    return predictor.predict(rows), rows["label"].to_numpy(), manifest.meta["weights_digest"]


def test_the_stated_share_of_labels_is_below_a_quantile_and_a_second_run_has_the_same_weights(tmp_path: Path) -> None:
    bench = EvaluateBench(tmp_path / "bench", "regression")
    low, labels, digest = trained(bench, tmp_path / "low", "objective: quantile, quantile_alpha: 0.1")
    high = trained(bench, tmp_path / "high", "objective: quantile, quantile_alpha: 0.9")[0]
    assert (labels <= low).mean() == pytest.approx(0.1, abs=0.04)
    assert (labels <= high).mean() == pytest.approx(0.9, abs=0.04)
    assert trained(bench, tmp_path / "again", "objective: quantile, quantile_alpha: 0.1")[2] == digest


def test_means_of_counts_are_positive_and_negative_labels_are_refused(tmp_path: Path) -> None:
    frame = orders()
    counts = np.random.default_rng(1).poisson(np.exp(frame["value"])).astype(float)
    scores, labels, _ = trained(
        EvaluateBench(tmp_path / "counts", "regression", frame=frame.assign(days=counts)), tmp_path / "poisson", "objective: poisson"
    )
    assert scores.min() > 0
    assert scores.mean() == pytest.approx(labels.mean(), rel=0.1)
    bench = EvaluateBench(tmp_path / "negative", "regression")
    bench.spec = bench.spec_of({SETTINGS: "settings: {objective: poisson}"})
    ended, work_folder = bench.attempt("train", {"dataset": bench.dataset_uri}, {"world_size": 1}, "negative")
    error = work_folder.error("a1")
    assert ended is not ExitCode.DONE
    assert error is not None
    assert error["code"] == "label.negative"


@pytest.mark.parametrize(
    ("task", "settings", "field"),
    [
        ("binary", "objective: poisson", "objective"),
        ("regression", "objective: quantile", "quantile_alpha"),
        ("regression", "quantile_alpha: 0.5", "quantile_alpha"),
    ],
)
def test_objective_that_does_not_fit_is_refused_by_check(task: str, settings: str, field: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec_for(SPEC, task, "file:///x", {SETTINGS: f"settings: {{{settings}}}"})
    assert [problem.field for problem in caught.value.problems] == [f"train.settings.{field}"]
