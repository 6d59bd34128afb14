"""Models in ONNX from outside: taken where their input is the pipeline's cells, and refused where they need more than their own file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.unit.training.stages import onnx_files
from tests.unit.training.stages.evaluate_bench import SPEC
from tests.unit.training.stages.onnx_files import field, logistic, node, of_two_inputs, whole_number
from tests.unit.training.stages.outside_bench import OutsideBench
from training.errors import SpecError
from training.models.predictor import Predictor, load_predictor
from training.registry.model.code import model_code
from training.spec import parse_spec

WEIGHTS = np.array([[2.0], [0.0], [0.1], [-0.1]], dtype=np.float32)
"""Of value, noise, country and channel."""


@pytest.fixture(scope="module", params=["binary"])
def bench(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[OutsideBench]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        patch.setenv("NIGHTSHIFT_DATABASE", f"sqlite:///{tmp_path_factory.mktemp('database')}/nightshift.db")
        patch.setattr("training.engine.tracking.tracker.CLOSE_SECONDS", 0.2)
        text = onnx_spec()
        yield OutsideBench(tmp_path_factory.mktemp("onnx"), request.param, text=text)


def onnx_spec() -> str:
    return SPEC.replace("noise: {transform: number}", "noise: {transform: number, fill: mean}")


def predictor_of(bench: OutsideBench, data: bytes, folder: Path, work: str) -> Predictor:
    model = bench.registered(data, "onnx", work=work)
    manifest = bench.store.manifests.get(model.artifact_uri, kind="model")
    assert manifest.meta["family"] == "onnx"
    return load_predictor(bench.store.manifests.fetch(manifest, folder / "model"))


def test_a_graph_scores_the_pipelines_cells(bench: OutsideBench, tmp_path: Path) -> None:
    matrix, _ = bench.cells(tmp_path / "rows", "test")
    expected = 1 / (1 + np.exp(-matrix.as_floats() @ WEIGHTS[:, 0]))
    raw = bench.raw(tmp_path / "raw", "test")
    found = predictor_of(bench, logistic(WEIGHTS), tmp_path, "one input").predict(raw)
    assert np.allclose(found, expected, atol=1e-6)
    apart = predictor_of(bench, of_two_inputs(WEIGHTS[:2], WEIGHTS[2:]), tmp_path / "apart", "two inputs")
    assert np.allclose(apart.predict(raw), found, atol=1e-6)
    assert apart.predict(raw.head(0)).shape == (0,)


@pytest.mark.usefixtures("loaded_here")
def test_of_two_probabilities_the_second_is_the_positive_class(bench: OutsideBench, tmp_path: Path) -> None:
    weights = np.concatenate([-WEIGHTS / 2, WEIGHTS / 2], axis=1)
    predictor = predictor_of(bench, logistic(weights, link="Softmax"), tmp_path, "two columns")
    matrix, _ = bench.cells(tmp_path / "rows", "test")
    expected = 1 / (1 + np.exp(-matrix.as_floats() @ WEIGHTS[:, 0]))
    assert np.allclose(predictor.predict(bench.raw(tmp_path / "raw", "test")), expected, atol=1e-6)


def with_labels(weights: np.ndarray) -> bytes:
    """Return a classifier: its scores, and the class as a whole number."""
    product, linked = onnx_files.node("MatMul", ["cells", "w"], ["logits"]), onnx_files.node("Sigmoid", ["logits"], ["scores"])
    cast = onnx_files.node("Cast", ["scores"], ["label"], onnx_files.whole_number("to", onnx_files.INT64))
    outputs = [onnx_files.port("label", onnx_files.INT64, ["rows", 1]), onnx_files.port("scores", onnx_files.FLOAT, ["rows", 1])]
    inputs = [onnx_files.port("cells", onnx_files.FLOAT, ["rows", len(weights)])]
    return onnx_files.model([product, linked, cast], [onnx_files.tensor("w", weights)], inputs, outputs)


@pytest.mark.usefixtures("loaded_here")
def test_the_label_beside_the_scores_of_a_classifier_is_left_out(bench: OutsideBench, tmp_path: Path) -> None:
    raw = bench.raw(tmp_path / "raw", "test")
    found = predictor_of(bench, with_labels(WEIGHTS), tmp_path / "both", "both")
    alone = predictor_of(bench, logistic(WEIGHTS), tmp_path / "alone", "alone")
    assert np.allclose(found.predict(raw), alone.predict(raw), atol=1e-6)


@pytest.mark.usefixtures("loaded_here")
def test_rows_are_scored_a_part_at_a_time(bench: OutsideBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = bench.raw(tmp_path / "raw", "test")
    predictor = predictor_of(bench, of_two_inputs(WEIGHTS[:2], WEIGHTS[2:]), tmp_path, "parts")
    whole = predictor.predict(raw)
    monkeypatch.setattr("training.models.onnx.module.SCORED_ROWS", 300)
    assert len(raw) % 300
    assert np.allclose(predictor.predict(raw), whole, atol=1e-6)


def of_nodes(last: bytes, *tensors: bytes) -> bytes:
    """Return a model that ends in this node."""
    ports = [onnx_files.port("cells", onnx_files.FLOAT, ["rows", 4])], [onnx_files.port("scores", onnx_files.FLOAT, ["rows", 1])]
    return onnx_files.model(
        [node("MatMul", ["cells", "weights"], ["logits"]), last], [onnx_files.tensor("weights", WEIGHTS), *tensors], *ports
    )


SIZES = field(1, 2) + field(2, onnx_files.INT64) + field(8, "shape") + field(9, np.array([64, 1], dtype="<i8").tobytes())
FAULTS: dict[str, tuple[bytes, str, str]] = {
    "weights in another file": (logistic(WEIGHTS, is_outside=True), "artifact.operator", "External data"),
    "an operator of a library": (logistic(WEIGHTS, domain="com.example"), "artifact.operator", "com.example"),
    "old operators": (logistic(WEIGHTS, opset=3), "artifact.operator", "Sigmoid(1)"),
    "future operators": (logistic(WEIGHTS, opset=999), "artifact.malformed", "Opset 999"),
    "no such operator": (logistic(WEIGHTS, link="Sigmund"), "artifact.malformed", "Sigmund"),
    "another width": (logistic(np.ones((7, 1), dtype=np.float32)), "artifact.mismatch", "float32 [rows, 4]"),
    "one row at a time": (logistic(WEIGHTS, rows=1), "artifact.mismatch", "needed: float32"),
    "three outputs": (logistic(np.ones((4, 3), dtype=np.float32)), "artifact.mismatch", "[rows, 1] or [rows, 2]"),
    "margins": (logistic(WEIGHTS * 9, link="Identity"), "artifact.scores", "probabilities from 0 to 1"),
    "not a number": (logistic(WEIGHTS * np.float32("nan")), "artifact.scores", "not finite"),
    "cut": (logistic(WEIGHTS)[:-9], "artifact.malformed", "parsing failed"),
    "another number of rows": (of_nodes(node("Reshape", ["logits", "shape"], ["scores"]), SIZES), "artifact.scores", "cannot be scored"),
    "chance": (of_nodes(node("RandomUniformLike", ["logits"], ["scores"])), "artifact.scores", "beside other rows"),
    "rows that know each other": (of_nodes(node("Softmax", ["logits"], ["scores"], whole_number("axis", 0))), "artifact.scores", "beside"),
    "a long number": (b"\x08" + b"\xff" * 20, "artifact.malformed", "parsing failed"),
    "a long field": (b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "artifact.malformed", "parsing failed"),
}


@pytest.mark.usefixtures("loaded_here")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_graph_that_needs_more_or_is_of_other_cells_is_refused(bench: OutsideBench, fault: str) -> None:
    data, code, words = FAULTS[fault]
    error = bench.refused(data, "onnx", work=fault)
    assert (error["code"], words in error["message"]) == (code, True), error


def endless() -> bytes:
    """Return a graph that repeats a copy of its scores while a condition holds that always holds."""
    true = field(2, onnx_files.BOOL) + field(8, "true") + field(9, b"\x01")
    state = onnx_files.port("state", onnx_files.FLOAT, ["rows", 1])
    body = [node("Identity", ["held"], ["holds"]), node("Identity", ["state"], ["next"])]
    ports = [onnx_files.port("number", onnx_files.INT64, []), onnx_files.port("held", onnx_files.BOOL, []), state]
    ends = [onnx_files.port("holds", onnx_files.BOOL, []), onnx_files.port("next", onnx_files.FLOAT, ["rows", 1])]
    graph = b"".join(field(1, each) for each in body) + field(2, "body")
    graph += b"".join(field(11, each) for each in ports) + b"".join(field(12, each) for each in ends)
    attribute = field(1, "body") + field(6, graph) + field(20, 5)
    return of_nodes(node("Loop", ["", "true", "logits"], ["scores"], attribute), true)


def test_a_graph_that_never_ends_is_refused_for_good(bench: OutsideBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process: the kernel ends it."""
    monkeypatch.setattr("training.models.isolated_import.MAX_CPU_SECONDS", 6)
    error = bench.refused(endless(), "onnx", work="endless")
    assert (error["code"], "SIGXCPU" in error["message"]) == ("model.invalid", True), error


def test_a_graph_that_wants_more_memory_than_a_stage_has_is_refused(bench: OutsideBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process, which has the limit."""
    monkeypatch.setenv("NIGHTSHIFT_STAGE_MEMORY", "1GiB")
    shape = field(1, 2) + field(2, onnx_files.INT64) + field(8, "shape") + field(9, np.array([1, 2**30], dtype="<i8").tobytes())
    wide = [node("MatMul", ["cells", "weights"], ["logits"]), node("Expand", ["logits", "shape"], ["wide"])]
    last = node("ReduceMax", ["wide"], ["scores"], field(1, "axes") + field(8, 1) + field(20, 7))
    ports = [onnx_files.port("cells", onnx_files.FLOAT, ["rows", 4])], [onnx_files.port("scores", onnx_files.FLOAT, ["rows", 1])]
    data = onnx_files.model([*wide, last], [onnx_files.tensor("weights", WEIGHTS), shape], *ports)
    assert bench.refused(data, "onnx", work="memory")["code"] in ("artifact.scores", "model.invalid")


def test_a_registered_model_carries_what_scores_it_and_names_onnxruntime_alone() -> None:
    code = model_code("onnx")
    carried = {f"training/models/onnx/{name}.py" for name in ("__init__", "module", "session")}
    assert {name for name in code.files if "/onnx/" in name} == carried
    named = {requirement.partition("==")[0] for requirement in code.requirements}
    assert "onnxruntime" in named
    assert named.isdisjoint({"torch", "xgboost-cpu", "onnx", "protobuf"})


def test_no_yaml_names_a_family_that_nothing_trains() -> None:
    text = onnx_spec().replace("model: boosted_trees", "model: onnx").replace(", settings: {max_depth: 3}", "")
    with pytest.raises(SpecError) as caught:
        parse_spec(text.replace("LABEL", "cancelled").replace("TASK", "binary").replace("PRIMARY", "auc").encode())
    assert caught.value.code == "model.imported"
    assert "boosted_trees" in caught.value.problems[0].hint
    assert "onnx" not in caught.value.problems[0].hint.split(";")[0]
