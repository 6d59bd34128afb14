"""Models of several classes from outside: they must know the classes of the rows, and give each its probability."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import xgboost

from tests.unit.training.stages.evaluate_bench import SPEC, orders
from tests.unit.training.stages.onnx_files import logistic
from tests.unit.training.stages.outside_bench import OutsideBench, boosted
from training.models.predictor import Predictor, load_predictor

NAMES = ("large", "medium", "small")
WEIGHTS = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)


@pytest.fixture(scope="module", params=["numbers", "names"])
def bench(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[OutsideBench]:
    text, frame = SPEC.replace("noise: {transform: number}", "noise: {transform: number, fill: mean}"), orders()
    if request.param == "names":
        text = text.replace("size: {type: int64", "size: {type: string")
        frame["size"] = frame["size"].map(dict(enumerate(NAMES)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        patch.setenv("NIGHTSHIFT_DATABASE", f"sqlite:///{tmp_path_factory.mktemp('database')}/nightshift.db")
        patch.setattr("training.engine.tracking.tracker.CLOSE_SECONDS", 0.2)
        yield OutsideBench(tmp_path_factory.mktemp("classes"), "multiclass", text=text, frame=frame)


def softprob(bench: OutsideBench, folder: Path, num_classes: int) -> bytes:
    trees = boosted(*bench.cells(folder, "train"), objective="multi:softprob", num_class=num_classes, rounds=4)
    return bytes(trees.save_raw("ubj"))


def scores_of(predictor: Predictor, bench: OutsideBench, folder: Path) -> np.ndarray:
    return np.asarray(predictor.predict(bench.raw(folder, "test")), dtype=np.float64)


def predictor_of(bench: OutsideBench, data: bytes, format_name: str, folder: Path) -> Predictor:
    model = bench.registered(data, format_name, work=format_name)
    return load_predictor(bench.store.manifests.fetch(bench.store.manifests.get(model.artifact_uri, kind="model"), folder))


@pytest.mark.usefixtures("loaded_here")
def test_trees_give_each_class_its_probability(bench: OutsideBench, tmp_path: Path) -> None:
    data = softprob(bench, tmp_path / "train", 3)
    matrix, _ = bench.cells(tmp_path / "test", "test")
    expected = xgboost.Booster(model_file=bytearray(data)).predict(
        xgboost.DMatrix(matrix.as_floats(), feature_names=[cell.name for cell in matrix.layout])
    )
    found = scores_of(predictor_of(bench, data, "xgboost_json", tmp_path / "model"), bench, tmp_path / "raw")
    assert found.shape == (len(matrix.as_floats()), 3)
    assert np.allclose(found, expected, atol=1e-6)


@pytest.mark.usefixtures("loaded_here")
def test_a_graph_gives_each_class_its_probability(bench: OutsideBench, tmp_path: Path) -> None:
    matrix, _ = bench.cells(tmp_path / "test", "test")
    powers = np.exp(matrix.as_floats() @ WEIGHTS)
    found = scores_of(predictor_of(bench, logistic(WEIGHTS, link="Softmax"), "onnx", tmp_path / "model"), bench, tmp_path / "raw")
    assert np.allclose(found, powers / powers.sum(axis=1, keepdims=True), atol=1e-5)


@pytest.mark.usefixtures("loaded_here")
def test_a_model_of_other_classes_or_no_probabilities_is_refused(bench: OutsideBench, tmp_path: Path) -> None:
    files: Mapping[str, tuple[bytes, str, str, str]] = {
        "classes of trees": (softprob(bench, tmp_path, 4), "xgboost_json", "artifact.mismatch", "it has 4 classes, the rows have 3"),
        "classes of a graph": (logistic(WEIGHTS[:, :2], link="Softmax"), "onnx", "artifact.mismatch", "multiclass needs [rows, 3]"),
        "sums": (logistic(WEIGHTS, link="Sigmoid"), "onnx", "artifact.scores", "do not add up to 1"),
    }
    for work, (data, format_name, code, words) in files.items():
        error = bench.refused(data, format_name, work=work)
        assert (error["code"], words in error["message"]) == (code, True), error
