"""Labels that 32 bits would round, such as the reading of a meter, are learned and measured in full."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.unit.training.stages.evaluate_bench import EvaluateBench, nobody_else, orders
from training.data.dataset.manifest import meta_of
from training.data.dataset.reader import DatasetReader
from training.models.predictor import load_predictor

pytestmark = pytest.mark.slow

MODEL = "model: boosted_trees, seed: 3, epochs: 20, learning_rate: 0.3, settings: {max_depth: 3}"
ENCODED = {"channel: {transform: category}": "channel: {transform: target_encode}"}
FILLED = {"noise: {transform: number}": "noise: {transform: standard}"}
CASES = {
    "boosted_trees": ENCODED,
    "boosted_trees, median": {"settings: {max_depth: 3}": "settings: {objective: quantile, quantile_alpha: 0.5, max_depth: 3}"},
    "lightgbm": {MODEL: "model: lightgbm, seed: 3, epochs: 60, learning_rate: 0.1, settings: {num_leaves: 7}"},
    "sklearn": {MODEL: "model: sklearn, settings: {estimator: sklearn.ensemble.HistGradientBoostingRegressor, max_iter: 30}"},
    "linear": {MODEL: "model: linear, epochs: 50, settings: {penalty: 1}", **FILLED},
}


@pytest.fixture(autouse=True)
def _nobody_else(tmp_path: Path) -> Iterator[None]:
    with nobody_else(tmp_path):
        yield


def test_label_of_four_billion_is_learned_to_its_noise_by_every_family(tmp_path: Path) -> None:
    frame = orders()
    frame["days"] += 4e9
    bench = EvaluateBench(tmp_path / "bench", "regression", frame=frame)
    dataset = bench.store.manifests.get(bench.dataset_uri, kind="dataset")
    rows = DatasetReader(bench.store, dataset, tmp_path / "dataset")
    label = rows["label"].to_numpy()
    assert np.array_equal(np.sort(label), np.sort(frame["days"].to_numpy())), "the frame has all digits"
    assert meta_of(dataset)["label_center"] == pytest.approx(label[rows.numbers("train")].mean(), abs=1e-6)
    for case, change in CASES.items():
        model = bench.train(change, work=case)
        _, record = bench.evaluate(model, change, work=case)
        naive = {entry["name"]: entry["metrics"]["rmse"] for entry in record["baselines"]["found"]}
        assert record["metrics"]["rmse"] < 1.2, case
        assert 2.5 < naive["mean"] < 4
        manifest = bench.store.manifests.get(model.artifact_uri)
        files = bench.store.manifests.fetch(manifest, tmp_path / case)
        assert json.loads((files / "model.json").read_bytes())["format_version"] == 2
        features = json.loads((files / "transforms.json").read_bytes())["features"]
        encoded = [feature["parameters"]["prior"] for feature in features if feature["transform"] == "target_encode"]
        assert encoded == pytest.approx([0.0] * (change is ENCODED), abs=1e-6), "means of differences"


@pytest.mark.parametrize("objective", ["log", "poisson"])
def test_objectives_of_logarithms_learn_the_whole_label(objective: str, tmp_path: Path) -> None:
    frame = orders()
    frame["days"] = 1e6 + 300 * frame["days"]
    bench = EvaluateBench(tmp_path / "bench", "regression", frame=frame)
    dataset = bench.store.manifests.get(bench.dataset_uri, kind="dataset")
    assert meta_of(dataset)["label_center"] == pytest.approx(1e6, rel=1e-3)
    rows = DatasetReader(bench.store, dataset, tmp_path / "dataset").rows("test")
    for family in ("boosted_trees, epochs: 20, learning_rate: 0.3", "linear, epochs: 100"):
        change = {MODEL: f"model: {family}, settings: {{objective: {objective}}}", **FILLED}
        manifest = bench.store.manifests.get(bench.train(change, work=family[:6]).artifact_uri)
        found = load_predictor(bench.store.manifests.fetch(manifest, tmp_path / family[:6]))
        assert "label_center" not in found.facts
        assert found.facts["format_version"] == 1
        assert np.sqrt(np.mean((found.predict(rows) - rows["label"]) ** 2)) < 600, family
