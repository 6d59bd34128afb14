"""Trees from outside: imported instead of trained, measured and decided about as any other, or refused with what is wrong."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost

from tests.unit.training.stages.evaluate_bench import LATENCY, without_services
from tests.unit.training.stages.outside_bench import OutsideBench, boosted
from training.contracts import ExitCode
from training.data.features.transforms import FittedTransforms
from training.models.predictor import load_predictor
from training.registry.ledger.ledger import Ledger


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OutsideBench]:
    with pytest.MonkeyPatch.context() as patch:
        without_services(patch, tmp_path_factory.mktemp("database"), LATENCY)
        patch.setattr("training.stages.promote.mirror", lambda ledger, _store, model, **_options: ledger.standing(model))
        patch.setattr("training.stages.promote.registration_now", lambda _store, _model, _origin, hint: hint)
        yield OutsideBench(tmp_path_factory.mktemp("outside"), "binary")


@pytest.fixture(scope="module")
def trees(bench: OutsideBench, tmp_path_factory: pytest.TempPathFactory) -> xgboost.Booster:
    return boosted(*bench.cells(tmp_path_factory.mktemp("rows"), "train"))


def json_of(booster: xgboost.Booster) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(bytes(booster.save_raw("json")))
    return values


def test_trees_from_outside_are_measured_and_decided_about_as_any_other(
    bench: OutsideBench, trees: xgboost.Booster, tmp_path: Path
) -> None:
    model = bench.registered(bytes(trees.save_raw("json")), "xgboost_json", metrics={"auc": 0.99}, version="17")
    manifest = bench.store.manifests.get(model.artifact_uri, kind="model")
    predictor = load_predictor(bench.store.manifests.fetch(manifest, tmp_path / "model"))
    frame = bench.cells(tmp_path / "rows", "test")[0]
    expected = trees.predict(xgboost.DMatrix(frame.as_floats(), feature_names=[cell.name for cell in frame.layout]))
    assert np.allclose(predictor.predict(bench.raw(tmp_path / "raw", "test")), expected, atol=1e-6)
    evaluation, record = bench.evaluate(model)
    # Measured, not as claimed.
    assert 0.7 < record["metrics"]["auc"] < 0.98
    inputs = {"model": model.artifact_uri, "evaluation": evaluation.artifact_uri}
    inputs |= {"dataset": bench.dataset_uri, "snapshot": bench.snapshot_uri}
    decided = bench.stage("promote", inputs, {"triggered_by": "ann"})
    assert decided.scalars["decision"] == "accepted"
    entry = Ledger().outline("orders")[-1]
    words = "trained elsewhere: ${MODELS_URI}/17/model (xgboost_json, SHA-256 000000000000), version 17, on rows that are not known here"
    assert [reason.words for reason in entry.reasons if reason.gate == "registered"] == [f"{words}; claimed, and not judged: auc 0.99"]
    full = Ledger().decision("orders", entry.key)
    assert full is not None
    assert full.evidence["registered"]["metrics"] == {"auc": 0.99}
    page = bench.store.reports.get(evaluation.reports["evaluation"]).decode()
    assert "trained elsewhere: " in page
    assert "best epoch" not in page


@pytest.mark.usefixtures("loaded_here")
def test_json_and_ubj_of_the_same_trees_are_the_same_model(bench: OutsideBench, trees: xgboost.Booster) -> None:
    found = [bench.registered(bytes(trees.save_raw(form)), "xgboost_json", work=form).scalars["weights_digest"] for form in ("json", "ubj")]
    assert found[0] == found[1]


@pytest.mark.usefixtures("loaded_here")
def test_trees_with_their_own_transforms_score_through_these(bench: OutsideBench, tmp_path: Path) -> None:
    values = json.loads(bench.transforms.to_json())
    values["features"] = [feature for feature in values["features"] if feature["name"] == "value"]
    own = FittedTransforms.from_json(json.dumps(values).encode())
    booster = boosted(*bench.cells(tmp_path / "rows", "train", own))
    data = bytes(booster.save_raw("ubj"))
    model = bench.registered(data, "xgboost_json", work="own", transforms=own.to_json())
    manifest = bench.store.manifests.get(model.artifact_uri, kind="model")
    assert load_predictor(bench.store.manifests.fetch(manifest, tmp_path / "model")).inputs == ("value",)
    # The same file without them is another model: it has four features to few.
    assert bench.refused(data, "xgboost_json", work="without")["code"] == "artifact.mismatch"


@pytest.mark.usefixtures("loaded_here")
@pytest.mark.parametrize(
    ("name", "code", "words"), [("leak", "", ""), ("days", "leakage.time", "known: after"), ("age", "artifact.columns", "'age'")]
)
def test_transforms_read_columns_that_there_are_and_that_are_known_before(
    bench: OutsideBench, trees: xgboost.Booster, name: str, code: str, words: str
) -> None:
    values = json.loads(bench.transforms.to_json())
    (number,) = (feature for feature in values["features"] if feature["name"] == "value")
    number["name"] = name
    booster = trees.copy()
    booster.feature_names = None
    data, transforms = bytes(booster.save_raw("ubj")), json.dumps(values).encode()
    if not code:
        bench.registered(data, "xgboost_json", work=name, transforms=transforms)
        return
    error = bench.refused(data, "xgboost_json", work=name, transforms=transforms)
    assert error["code"] == code
    assert words in error["message"]


def _learner(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], object]:
    return lambda values: change(values["learner"])


def _tree(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], object]:
    return lambda values: change(values["learner"]["gradient_booster"]["model"]["trees"][0])


def _trees(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], object]:
    return lambda values: change(values["learner"]["gradient_booster"]["model"])


FAULTS: dict[str, tuple[Callable[[dict[str, Any]], object], str, str]] = {
    "targets": (
        _learner(lambda learner: learner["learner_model_param"].__setitem__("num_target", "2")),
        *("artifact.mismatch", "predicts 2 targets"),
    ),
    "an array too short": (_tree(lambda tree: tree["split_conditions"].pop()), "artifact.malformed", "n_nodes"),
    "a text for a number": (_tree(lambda tree: tree.__setitem__("left_children", "many")), "artifact.malformed", "Invalid cast"),
    "a tree at another place": (_tree(lambda tree: tree.__setitem__("id", 30)), "artifact.malformed", "range"),
    "no trees": (_trees(lambda model: model.pop("trees")), "artifact.malformed", "map::at"),
    "missing scores of a class": (
        _learner(lambda learner: learner["learner_model_param"].__setitem__("base_score", "[1,2,3]")),
        *("artifact.malformed", "base_score"),
    ),
    "a score that is not finite": (
        _tree(lambda tree: tree.__setitem__("split_conditions", [float("nan")] * len(tree["split_conditions"]))),
        *("artifact.scores", "not finite"),
    ),
    "a newer version": (lambda values: values.__setitem__("version", [99, 0, 0]), "artifact.newer", "99.0"),
    "margins": (_learner(lambda learner: learner["objective"].__setitem__("name", "binary:logitraw")), "artifact.mismatch", "logitraw"),
    "no such objective": (
        _learner(lambda learner: learner["objective"].__setitem__("name", "x")),
        "artifact.malformed",
        "Unknown objective",
    ),
    "other names": (_learner(lambda learner: learner["feature_names"].__setitem__(0, "age")), "artifact.mismatch", "'age'"),
    "another order": (_learner(lambda learner: learner["feature_names"].reverse()), "artifact.mismatch", "another order"),
    "another number": (
        _learner(lambda learner: learner["learner_model_param"].__setitem__("num_feature", "7")),
        *("artifact.mismatch", "7 features, the transforms have 4"),
    ),
    "categories": (
        _learner(lambda learner: learner.__setitem__("feature_types", ["float", "c", "int", "int"])),
        "artifact.mismatch",
        "categories",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.usefixtures("loaded_here")
def test_a_file_of_other_or_damaged_trees_is_refused_with_what_is_wrong(bench: OutsideBench, trees: xgboost.Booster, fault: str) -> None:
    change, code, words = FAULTS[fault]
    values = json_of(trees)
    change(values)
    error = bench.refused(json.dumps(values).encode(), "xgboost_json", work=fault)
    assert (error["code"], words in error["message"]) == (code, True), error


@pytest.mark.usefixtures("loaded_here")
@pytest.mark.parametrize("form", ["json", "ubj"])
def test_a_file_of_a_newer_xgboost_is_refused_in_either_form(
    bench: OutsideBench, trees: xgboost.Booster, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    data = bytes(trees.save_raw(form))
    monkeypatch.setattr(xgboost, "__version__", "1.7.6")
    assert bench.refused(data, "xgboost_json", work=f"newer {form}")["code"] == "artifact.newer"


@pytest.mark.usefixtures("loaded_here")
def test_a_linear_booster_is_refused(bench: OutsideBench, tmp_path: Path) -> None:
    booster = boosted(*bench.cells(tmp_path, "train"), booster="gblinear", max_depth=None, rounds=2)
    error = bench.refused(bytes(booster.save_raw("ubj")), "xgboost_json", work="linear")
    assert (error["code"], "'gblinear'" in error["message"]) == ("artifact.mismatch", True), error


def _child(number: int) -> Callable[[dict[str, Any]], object]:
    return _tree(lambda tree: tree["left_children"].__setitem__(0, number))


ENDS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a child outside of the tree": (_child(10**9), "SIGSEGV"),
    "a loop": (
        _tree(lambda tree: tree.update(left_children=[0] * len(tree["parents"]), right_children=[0] * len(tree["parents"]))),
        "SIGSEGV",
    ),
    "trees for another booster": (_learner(lambda learner: learner["gradient_booster"].__setitem__("name", "gblinear")), "SIGSEGV"),
}


@pytest.mark.parametrize("fault", ENDS)
def test_trees_that_end_the_process_that_loads_them_are_refused_for_good(bench: OutsideBench, trees: xgboost.Booster, fault: str) -> None:
    """In a process, which they end."""
    change, signal_name = ENDS[fault]
    values = json_of(trees)
    change(values)
    ended, work_folder = bench.register(json.dumps(values).encode(), "xgboost_json", work=fault)
    error = work_folder.error("a1")
    assert error is not None
    # Data that are wrong: no attempt follows.
    assert (ended, error["code"], signal_name in error["message"]) == (ExitCode.BAD_DATA, "model.invalid", True), error
    assert "NIGHTSHIFT_STAGE_MEMORY" in error["hint"]


def test_a_process_that_was_killed_from_outside_says_nothing_of_the_model(
    bench: OutsideBench, trees: xgboost.Booster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", lambda command, **_options: subprocess.CompletedProcess(command, -signal.SIGKILL, stderr=""))
    ended, work_folder = bench.register(bytes(trees.save_raw("ubj")), "xgboost_json", work="killed")
    error = work_folder.error("a1")
    assert error is not None
    assert (ended, error["code"]) == (ExitCode.OUT_OF_MEMORY, "memory.exhausted")


@pytest.mark.usefixtures("loaded_here")
def test_what_another_program_wrote_into_the_file_is_not_in_the_model(bench: OutsideBench, trees: xgboost.Booster, tmp_path: Path) -> None:
    booster = trees.copy()
    booster.set_attr(best_score="0.9", secret="…")
    model = bench.registered(bytes(booster.save_raw("json")), "xgboost_json", work="attributes")
    weights = bench.store.manifests.fetch(bench.store.manifests.get(model.artifact_uri), tmp_path) / "weights.ubj"
    found = xgboost.Booster(model_file=str(weights))
    assert (found.attributes(), found.feature_names) == ({}, None)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"{", "artifact.malformed"),
        (b'{"learner": {}}', "artifact.malformed"),
        (b"{" + b'"a":{' * 50_000, "model.invalid"),
        (b"{L\x7f\xff\xff\xff\xff\xff\xff\xff", "artifact.malformed"),
    ],
    ids=["cut", "empty", "deep", "long key"],
)
def test_what_is_no_model_at_all_is_refused(bench: OutsideBench, data: bytes, code: str, request: pytest.FixtureRequest) -> None:
    """In a process: how XGBoost ends on such files is its own matter."""
    assert bench.refused(data, "xgboost_json", work=request.node.callspec.id)["code"] == code


@pytest.mark.usefixtures("loaded_here")
@pytest.mark.parametrize("name", [{"a": 1}, 5, None], ids=repr)
def test_transforms_that_are_damaged_are_refused(bench: OutsideBench, trees: xgboost.Booster, name: object) -> None:
    values = json.loads(bench.transforms.to_json())
    values["features"][0]["name"] = name
    values["derive"] = [{"name": 5, "type": "double", "sql": "value + 1"}] if name is None else []
    transforms = json.dumps(values).encode()
    error = bench.refused(bytes(trees.save_raw("ubj")), "xgboost_json", work=f"damaged {name}", transforms=transforms)
    assert error["code"] in ("transforms.malformed", "artifact.columns")


@pytest.mark.usefixtures("loaded_here")
def test_a_model_that_has_seen_the_test_rows_is_refused(bench: OutsideBench, trees: xgboost.Booster) -> None:
    data = bytes(trees.save_raw("ubj"))
    start = datetime.fromisoformat(bench.store.manifests.get(bench.dataset_uri).meta["bounds"]["test"][0])
    # Rows until that instant are those before it, as the rows of a training here.
    bench.registered(data, "xgboost_json", work="early", trained_until=start.isoformat())
    late = (start + timedelta(seconds=1)).isoformat()
    error = bench.refused(data, "xgboost_json", work="late", trained_until=late)
    assert error["code"] == "artifact.test_rows"
    assert late in error["message"]


@pytest.mark.usefixtures("loaded_here")
def test_rounds_after_the_best_one_are_left_out(bench: OutsideBench, trees: xgboost.Booster, tmp_path: Path) -> None:
    booster = trees.copy()
    booster.set_attr(best_iteration="3")
    model = bench.registered(bytes(booster.save_raw("ubj")), "xgboost_json", work="best")
    weights = bench.store.manifests.fetch(bench.store.manifests.get(model.artifact_uri), tmp_path) / "weights.ubj"
    assert xgboost.Booster(model_file=str(weights)).num_boosted_rounds() == 4
