"""Trees from outside: imported instead of trained, measured and decided about as any other, or refused with what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost

from tests.unit.training.stages.outside_bench import OutsideBench, boosted
from training.data.transforms import FittedTransforms
from training.evaluation import latency
from training.models.boosted_trees.ubjson import decode
from training.models.predictor import load_predictor
from training.registry.ledger import Ledger
from training.registry.registered import Registration

LATENCY = {str(batch): {"p50_ms": 1.0, "p95_ms": 2.0, "p99_ms": 3.0, "rows_per_second": 9.0, "waited_share": 0.0} for batch in (1, 256)}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OutsideBench]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        patch.setenv("NIGHTSHIFT_DATABASE", f"sqlite:///{tmp_path_factory.mktemp('database')}/nightshift.db")
        patch.setattr("training.engine.tracking.CLOSE_SECONDS", 0.2)
        patch.setattr(
            "training.registry.mlflow_versions.register_candidate",
            lambda *_args, **_named: Registration(number="7", logged_model="m-7", artifact_digest="f" * 64),
        )
        patch.setattr("training.stages.promote.mirror", lambda ledger, _store, model, **_options: ledger.standing(model))
        patch.setattr("training.stages.promote.registration_now", lambda _store, _model, _origin, hint: hint)
        patch.setattr(latency, "measure", lambda *_args, **_named: LATENCY)
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
    assert [reason["words"] for reason in entry.reasons if reason["gate"] == "registered"] == [
        f"{words}; claimed, and not judged: auc 0.99"
    ]
    full = Ledger().decision("orders", entry.key)
    assert full is not None
    assert full.evidence["registered"]["metrics"] == {"auc": 0.99}
    page = bench.store.objects.get_bytes(bench.store.manifests.get(evaluation.artifact_uri).files["report.html"].digest).decode()
    assert "trained elsewhere: " in page
    assert "best epoch" not in page


def test_json_and_ubj_of_the_same_trees_are_the_same_model(bench: OutsideBench, trees: xgboost.Booster) -> None:
    found = [bench.registered(bytes(trees.save_raw(form)), "xgboost_json", work=form).scalars["weights_digest"] for form in ("json", "ubj")]
    assert found[0] == found[1]


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


def _one_child(tree: dict[str, Any]) -> None:
    leaf = tree["left_children"].index(-1)
    tree["right_children"][leaf] = len(tree["right_children"]) - 1


def _dart(learner: dict[str, Any]) -> None:
    learner["gradient_booster"] = {"name": "dart", "gbtree": learner["gradient_booster"], "weight_drop": [1.0]}


FAULTS: dict[str, tuple[Callable[[dict[str, Any]], object], str, str]] = {
    "a node with one child": (_tree(_one_child), "artifact.malformed", "one child"),
    "categories": (_tree(lambda tree: tree.__setitem__("categories_nodes", [0])), "artifact.malformed", "splits by categories"),
    "types of splits": (_tree(lambda tree: tree["split_type"].__setitem__(0, 1)), "artifact.malformed", "splits by categories"),
    "vectors": (_tree(lambda tree: tree["tree_param"].__setitem__("size_leaf_vector", "2")), "artifact.malformed", "vectors"),
    "a group too many": (_trees(lambda model: model["tree_info"].__setitem__(0, 1)), "artifact.malformed", "1 groups"),
    "rounds that end early": (_trees(lambda model: model["iteration_indptr"].__setitem__(-1, 5)), "artifact.malformed", "into rounds"),
    "a weight for one of twelve trees": (_learner(_dart), "artifact.malformed", "weight_drop"),
    "targets": (
        _learner(lambda learner: learner["learner_model_param"].__setitem__("num_target", "2")),
        *("artifact.mismatch", "predicts 2 targets"),
    ),
    "a child outside of the tree": (_tree(lambda tree: tree["left_children"].__setitem__(0, 10**6)), "artifact.malformed", "a child"),
    "a negative child": (_tree(lambda tree: tree["left_children"].__setitem__(0, -7)), "artifact.malformed", "a child"),
    "a loop": (_tree(lambda tree: tree["left_children"].__setitem__(1, 1)), "artifact.malformed", "parents"),
    "a feature that there is not": (_tree(lambda tree: tree["split_indices"].__setitem__(0, 99)), "artifact.malformed", "a feature"),
    "an array too short": (_tree(lambda tree: tree["split_conditions"].pop()), "artifact.malformed", "num_nodes"),
    "a number that is not finite": (_tree(lambda tree: tree["base_weights"].__setitem__(0, float("nan"))), "artifact.malformed", "finite"),
    "a text for a number": (_tree(lambda tree: tree.__setitem__("left_children", "many")), "artifact.malformed", "whole numbers"),
    "a tree at another place": (_tree(lambda tree: tree.__setitem__("id", 3)), "artifact.malformed", "its id is 3"),
    "wide texts": (_tree(lambda tree: tree.__setitem__("left_children", ["a" * 10**6, *[""] * 10**5])), "artifact.malformed", "a list of"),
    "tables of categories": (
        _learner(lambda learner: learner["gradient_booster"]["model"]["cats"].__setitem__("sorted_idx", [5, 10**6])),
        *("artifact.malformed", "categories"),
    ),
    "no trees": (_learner(lambda learner: learner["gradient_booster"]["model"].pop("trees")), "artifact.malformed", "KeyError"),
    "a newer version": (lambda values: values.__setitem__("version", [99, 0, 0]), "artifact.newer", "99.0.0"),
    "margins": (_learner(lambda learner: learner["objective"].__setitem__("name", "binary:logitraw")), "artifact.mismatch", "logitraw"),
    "linear": (_learner(lambda learner: learner["gradient_booster"].__setitem__("name", "gblinear")), "artifact.mismatch", "gblinear"),
    "other names": (_learner(lambda learner: learner["feature_names"].__setitem__(0, "age")), "artifact.mismatch", "'age'"),
    "another order": (_learner(lambda learner: learner["feature_names"].reverse()), "artifact.mismatch", "another order"),
    "another number": (
        _learner(lambda learner: learner["learner_model_param"].__setitem__("num_feature", "7")),
        *("artifact.mismatch", "7 features, the transforms have 4"),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_of_other_or_damaged_trees_is_refused_before_xgboost_reads_it(
    bench: OutsideBench, trees: xgboost.Booster, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    change, code, words = FAULTS[fault]
    values = json_of(trees)
    change(values)
    monkeypatch.setattr(xgboost.Booster, "load_model", _must_not_be_read)
    error = bench.refused(json.dumps(values).encode(), "xgboost_json", work=fault)
    assert (error["code"], words in error["message"]) == (code, True), error


def _must_not_be_read(*_arguments: object) -> None:
    raise AssertionError("XGBoost was given a file that had not been checked")


def test_what_another_program_wrote_into_the_file_is_not_in_the_model(bench: OutsideBench, trees: xgboost.Booster, tmp_path: Path) -> None:
    booster = trees.copy()
    booster.set_attr(best_score="0.9", secret="…")
    model = bench.registered(bytes(booster.save_raw("json")), "xgboost_json", work="attributes")
    weights = bench.store.manifests.fetch(bench.store.manifests.get(model.artifact_uri), tmp_path) / "weights.ubj"
    found = xgboost.Booster(model_file=str(weights))
    assert (found.attributes(), found.feature_names) == ({}, None)


def test_a_json_text_above_its_limit_is_not_parsed(bench: OutsideBench, trees: xgboost.Booster, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(trees.save_raw("json"))
    monkeypatch.setattr("training.models.boosted_trees.importing.MAX_JSON_BYTES", len(data) - 1)
    assert bench.refused(data, "xgboost_json", work="large")["code"] == "artifact.too_large"
    bench.registered(bytes(trees.save_raw("ubj")), "xgboost_json", work="as ubj")


@pytest.mark.parametrize(
    ("data", "words"), [(b"{U\x01a" * 40 + b"T" + b"}" * 40, "nested more than 32 deep"), (b"{}}", "1 bytes follow")], ids=["deep", "more"]
)
def test_bounds_of_ubj_are_kept(data: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        decode(data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"{", "artifact.malformed"),
        (b'{"learner": {}}', "artifact.malformed"),
        (b"[" * 100_000, "artifact.malformed"),
        (b"{" + b'"a":{' * 50_000, "artifact.malformed"),
        (b"{L\x7f\xff\xff\xff\xff\xff\xff\xff", "artifact.malformed"),
        (b"{U\x01a" * 40, "artifact.malformed"),
        (b"{U\x01a[$U#L\x7f\xff\xff\xff\xff\xff\xff\xff", "artifact.malformed"),
        (b"{U\x01a[$Z#U\xff" + b"Z" * 300 + b"}", "artifact.malformed"),
        (b"{U\x01a[#L\x7f\xff\xff\xff\xff\xff\xff\xff", "artifact.malformed"),
    ],
    ids=["cut", "empty", "deep list", "deep object", "long key", "deep ubj", "long numbers", "nothing, many times", "long list"],
)
def test_what_is_no_model_at_all_is_refused(bench: OutsideBench, data: bytes, words: str, request: pytest.FixtureRequest) -> None:
    assert bench.refused(data, "xgboost_json", work=request.node.callspec.id)["code"] == words


@pytest.mark.parametrize("name", [{"a": 1}, 5, None], ids=repr)
def test_transforms_that_are_damaged_are_refused(bench: OutsideBench, trees: xgboost.Booster, name: object) -> None:
    values = json.loads(bench.transforms.to_json())
    values["features"][0]["name"] = name
    values["derive"] = [{"name": 5, "type": "double", "sql": "value + 1"}] if name is None else []
    transforms = json.dumps(values).encode()
    error = bench.refused(bytes(trees.save_raw("ubj")), "xgboost_json", work=f"damaged {name}", transforms=transforms)
    assert error["code"] in ("transforms.malformed", "artifact.columns")


@pytest.mark.parametrize("form", ["json", "ubj"])
def test_a_key_of_which_xgboost_would_read_another_value_is_refused(
    bench: OutsideBench, trees: xgboost.Booster, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    data = bytes(trees.save_raw(form))
    key = b'"left_children":[9],' if form == "json" else b"L" + (13).to_bytes(8, "big") + b"left_children[$U#U\x01\x09"
    place = data.index(key[: key.index(b"[")])
    monkeypatch.setattr(xgboost.Booster, "load_model", _must_not_be_read)
    error = bench.refused(data[:place] + key + data[place:], "xgboost_json", work=f"twice {form}")
    assert (error["code"], "twice" in error["message"]) == ("artifact.malformed", True), error


def test_scores_that_are_missing_for_a_class_are_refused(bench: OutsideBench, trees: xgboost.Booster) -> None:
    values = json_of(trees)
    values["learner"]["learner_model_param"]["base_score"] = "[1,2,3]"
    assert bench.refused(json.dumps(values).encode(), "xgboost_json", work="base score")["code"] == "artifact.malformed"


def test_ubj_is_read_as_xgboost_writes_it(trees: xgboost.Booster) -> None:
    values, expected = decode(bytes(trees.save_raw("ubj"))), json_of(trees)
    tree, wanted = (each["learner"]["gradient_booster"]["model"]["trees"][3] for each in (values, expected))
    assert tree.keys() == wanted.keys()
    assert all(np.allclose(tree[name], wanted[name], rtol=1e-6) for name in wanted if name not in ("id", "tree_param"))
    assert values["learner"]["learner_model_param"] == expected["learner"]["learner_model_param"]


def test_a_model_that_has_seen_the_test_rows_is_refused(bench: OutsideBench, trees: xgboost.Booster) -> None:
    data = bytes(trees.save_raw("ubj"))
    start = datetime.fromisoformat(bench.store.manifests.get(bench.dataset_uri).meta["bounds"]["test"][0])
    # Rows until that instant are those before it, as the rows of a training here.
    bench.registered(data, "xgboost_json", work="early", trained_until=start.isoformat())
    late = (start + timedelta(seconds=1)).isoformat()
    error = bench.refused(data, "xgboost_json", work="late", trained_until=late)
    assert error["code"] == "artifact.test_rows"
    assert late in error["message"]


def test_rounds_after_the_best_one_are_left_out(bench: OutsideBench, trees: xgboost.Booster, tmp_path: Path) -> None:
    booster = trees.copy()
    booster.set_attr(best_iteration="3")
    model = bench.registered(bytes(booster.save_raw("ubj")), "xgboost_json", work="best")
    weights = bench.store.manifests.fetch(bench.store.manifests.get(model.artifact_uri), tmp_path) / "weights.ubj"
    assert xgboost.Booster(model_file=str(weights)).num_boosted_rounds() == 4
