"""The objective `log` of every family that has it: on real labels, gated by metrics of its own, and refused where it does not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.unit.training.stages.evaluate_bench import SPEC, EvaluateBench, orders, spec_for, without_services
from training.contracts import ExitCode
from training.data.dataset.reader import DatasetReader
from training.errors import SpecError
from training.models.predictor import load_predictor
from training.models.shard_rows import log_objective

pytestmark = pytest.mark.slow

MODEL = "model: boosted_trees, seed: 3, epochs: 20, learning_rate: 0.3, settings: {max_depth: 3}"
TRAINS = {
    "boosted_trees": "model: boosted_trees, epochs: 30, learning_rate: 0.3, settings: {OBJECTIVEmax_depth: 3}",
    "lightgbm": "model: lightgbm, epochs: 30, learning_rate: 0.3, settings: {OBJECTIVEnum_leaves: 7}",
    "linear": "model: linear, epochs: 100, settings: {OBJECTIVEpenalty: 1}",
}
PRIMARY = "primary: rmse"


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_services(monkeypatch, tmp_path)


def skewed() -> pd.DataFrame:
    """Return orders whose label has a heavy tail: log(1 + days) is linear in `value`, with noise."""
    frame = orders().assign(noise=0.0)
    noise = np.random.default_rng(5).normal(size=len(frame))
    return frame.assign(days=np.expm1(np.clip(2 + frame["value"] + noise, 0, None)))


@pytest.mark.parametrize("family", list(TRAINS))
def test_log_objective_predicts_labels_near_their_median_and_its_record_has_the_named_metrics(tmp_path: Path, family: str) -> None:
    bench = EvaluateBench(tmp_path / "bench", "regression", frame=skewed())
    rows = DatasetReader(bench.store, bench.store.manifests.get(bench.dataset_uri), tmp_path / "dataset").rows("test")
    label, found, records = rows["label"].to_numpy(), {}, {}
    for name, objective in {"plain": "", "log": "objective: log, ", "again": "objective: log, "}.items():
        change = {MODEL: TRAINS[family].replace("OBJECTIVE", objective), PRIMARY: "primary: pinball_loss@50"}
        model = bench.train(change, work=name)
        manifest = bench.store.manifests.get(model.artifact_uri)
        found[name] = load_predictor(bench.store.manifests.fetch(manifest, tmp_path / name)).predict(rows)
        records[name] = (bench.evaluate(model, change, work=name)[1]["metrics"], manifest.meta["weights_digest"])
    assert records["log"] == records["again"]
    assert records["log"][0]["pinball_loss@50"] == pytest.approx(np.mean(np.abs(label - found["log"])) / 2)
    assert records["log"][0]["pinball_loss@50"] < 0.9 * records["plain"][0]["pinball_loss@50"]
    assert abs(np.mean(label <= found["log"]) - 0.5) < 0.08, "half of the labels are below"
    assert np.mean(label <= found["plain"]) > 0.55


@pytest.mark.parametrize("family", list(TRAINS))
def test_negative_labels_are_refused(tmp_path: Path, family: str) -> None:
    bench = EvaluateBench(tmp_path / "bench", "regression")
    bench.spec = bench.spec_of({MODEL: TRAINS[family].replace("OBJECTIVE", "objective: log, ")})
    ended, work_folder = bench.attempt("train", {"dataset": bench.dataset_uri}, {"world_size": 1}, "negative")
    error = work_folder.error("a1")
    assert ended is ExitCode.BAD_DATA
    assert error is not None
    assert error["code"] == "label.negative"
    assert "log needs labels >= 0" in error["message"]


def test_a_setting_of_another_family_that_is_called_objective_is_none_of_these() -> None:
    train = "model: sklearn, seed: 3, settings: {estimator: sklearn.linear_model.Ridge, objective: log}"
    assert log_objective(spec_for(SPEC, "regression", "file:///x", {MODEL: train})) is None
    assert (
        log_objective(spec_for(SPEC, "regression", "file:///x", {MODEL: TRAINS["linear"].replace("OBJECTIVE", "objective: log, ")}))
        == "log"
    )


@pytest.mark.parametrize("objective", ["log", "poisson"])
def test_negative_labels_end_in_prepare_before_anything_is_trained(tmp_path: Path, objective: str) -> None:
    bench = EvaluateBench(tmp_path / "bench", "regression")
    bench.spec = bench.spec_of({MODEL: TRAINS["boosted_trees"].replace("OBJECTIVE", f"objective: {objective}, ")})
    ended, work_folder = bench.attempt("prepare", {"snapshot": bench.snapshot_uri}, {}, "negative")
    error = work_folder.error("a1")
    assert ended is ExitCode.BAD_DATA
    assert error is not None
    assert error["code"] == "label.negative"
    assert f"{objective} needs labels >= 0" in error["message"]


@pytest.mark.parametrize("family", list(TRAINS))
def test_log_objective_of_classes_is_refused_by_check(family: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec_for(SPEC, "binary", "file:///x", {MODEL: TRAINS[family].replace("OBJECTIVE", "objective: log, ")})
    assert [(problem.field, problem.code) for problem in caught.value.problems] == [("train.settings.objective", "field.conflict")]
