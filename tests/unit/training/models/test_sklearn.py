"""The family `sklearn`: the estimator that scikit-learn itself fits, float64 and weights included; no setting names other code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lightgbm import LGBMRegressor
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LinearRegression, Ridge, TweedieRegressor
from sklearn.neural_network import MLPRegressor
from xgboost import XGBRegressor

from tests.unit.training.models.family_bench import FamilyBench
from tests.unit.training.stages.evaluate_bench import SPEC, spec_for
from training.data.dataset.mapped_shards import MappedShards
from training.data.features.transforms import LayoutEntry, Matrix
from training.errors import DataError, SpecError
from training.models.base import FitResult, load_family
from training.models.sklearn.estimators import needs_whole_labels
from training.models.sklearn.scoring import inputs_of, scorer_of
from training.registry.model.code import model_code
from training.spec import parse_spec
from training.spec.descriptors.families import library_violations
from training.spec.reader.overrides import apply_overrides
from training.spec.trigger_form import params_schema

MODEL = "model: boosted_trees, seed: 3, epochs: 20, learning_rate: 0.3, settings: {max_depth: 3}"
FOREST = "sklearn.ensemble.RandomForestClassifier"


def fitted(bench: FamilyBench, estimator: str, *, seed: int = 3, trusted: list[str] | None = None, **parameters: Any) -> FitResult:
    weight = parameters.pop("class_weight", None)
    settings = {"estimator": estimator, "trusted": trusted or [], **parameters}
    keys = {"epochs": 1, "learning_rate": None, "early_stopping": None, "seed": seed, "class_weight": weight}
    context = bench.fit_context("sklearn", settings=settings, **keys)
    try:
        return load_family("sklearn").fit(context)
    finally:
        context.checkpoints.close()


def matrix_of(bench: FamilyBench, split: str) -> tuple[Matrix, np.ndarray]:
    shards = MappedShards(bench.dataset_path, bench.meta, split)  # type: ignore[arg-type]
    layout = tuple(LayoutEntry(**entry) for entry in shards.features)
    cells = np.concatenate(shards.cells)
    return Matrix(cells=cells[:, : len(layout)], layout=layout), shards.labels(cells)


def scores_of(result: FitResult, matrix: Matrix, folder: Path) -> np.ndarray:
    (folder / result.weights_name).write_bytes(result.weights)
    return load_family("sklearn").load(folder, json.loads(json.dumps(result.architecture)))(matrix)


@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_the_model_is_that_of_scikit_learn_with_the_seed_and_the_weights(tmp_path: Path, task: str) -> None:
    bench = FamilyBench(tmp_path, task)
    result = fitted(bench, FOREST, n_estimators=3, class_weight={"1": 4.0})
    matrix, labels = matrix_of(bench, "train")
    own = RandomForestClassifier(3, random_state=3).fit(inputs_of(matrix), labels, sample_weight=np.where(labels == 1, 4.0, 1.0))
    matrix, _ = matrix_of(bench, "validation")
    expected = own.predict_proba(inputs_of(matrix))
    assert np.array_equal(scores_of(result, matrix, tmp_path), expected[:, 1] if task == "binary" else expected)
    assert result.weights != fitted(bench, FOREST, n_estimators=3, class_weight={"1": 4.0}, seed=4).weights
    assert [entry["epoch"] for entry in result.history] == [1]
    assert 0 < result.history[0]["train_loss"] < 1 < result.validation_loss


def test_numbers_are_learned_and_predicted_in_float64(tmp_path: Path) -> None:
    bench = FamilyBench(tmp_path, "regression")
    result = fitted(bench, "sklearn.linear_model.Ridge", alpha=0.5)
    matrix, labels = matrix_of(bench, "train")
    own = Ridge(alpha=0.5, random_state=3).fit(inputs_of(matrix), labels.astype(float))
    matrix, labels = matrix_of(bench, "validation")
    scores = scores_of(result, matrix, tmp_path)
    assert np.array_equal(scores, own.predict(inputs_of(matrix)))
    assert result.validation_loss == pytest.approx(np.sqrt(np.mean((scores - labels) ** 2)), rel=1e-6)


def test_only_logarithms_learn_whole_labels(tmp_path: Path) -> None:
    bench = FamilyBench(tmp_path, "regression")
    bench.meta["label_center"] = 50.0
    matrix, labels = matrix_of(bench, "train")
    scores = {}
    for name in ("PoissonRegressor", "Ridge"):
        result = fitted(bench, f"sklearn.linear_model.{name}")
        assert result.whole_labels == (name == "PoissonRegressor")
        scores[name] = scores_of(result, matrix, tmp_path).mean() - labels.mean()
    assert scores == pytest.approx({"PoissonRegressor": 50.0, "Ridge": 0.0}, abs=0.1)
    assert fitted(bench, "sklearn.ensemble.HistGradientBoostingRegressor", loss="poisson", max_iter=2).whole_labels


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (TweedieRegressor(power=0, link="log"), True),
        (TweedieRegressor(power=0), False),
        (LGBMRegressor(objective="mape"), True),
        (LGBMRegressor(objective="huber"), False),
        (XGBRegressor(objective="reg:squaredlogerror", eval_metric="rmse"), True),
        (XGBRegressor(eval_metric="mape"), False),
        (RandomForestRegressor(max_features="log2"), False),
        (MLPRegressor(activation="logistic"), False),
    ],
    ids=str,
)
def test_an_objective_that_is_not_of_differences_learns_whole_labels(estimator: Any, *, expected: bool) -> None:
    assert needs_whole_labels(estimator) == expected


def test_an_estimator_of_another_distribution_is_trained_where_it_is_trusted(tmp_path: Path) -> None:
    bench, trusted = FamilyBench(tmp_path, "regression"), ["xgboost.XGBRegressor", "xgboost.core.Booster"]
    result = fitted(bench, "xgboost.XGBRegressor", trusted=trusted, n_estimators=2, max_depth=2)
    assert np.isfinite(scores_of(result, matrix_of(bench, "validation")[0], tmp_path)).all()
    assert [requirement.partition("==")[0] for requirement in result.requirements] == ["xgboost-cpu"]
    assert {"xgboost-cpu==3", "skops==0.16.0"} < set(model_code("sklearn", ["xgboost-cpu==3"]).requirements)
    with pytest.raises(DataError, match=r"not allowed: 'xgboost\.core\.Booster'") as caught:
        fitted(bench, "xgboost.XGBRegressor", trusted=trusted[:1], n_estimators=2)
    assert caught.value.code == "estimator.untrusted"


def test_a_class_without_training_rows_has_a_column_of_its_own(tmp_path: Path) -> None:
    matrix, _ = matrix_of(FamilyBench(tmp_path, "multiclass"), "validation")
    estimator = DummyClassifier().fit(inputs_of(matrix)[:4], [0, 2, 2, 2])
    assert scorer_of(estimator, 3)(matrix)[:2].tolist() == [[0.25, 0.0, 0.75]] * 2


def test_a_row_with_a_missing_number_has_no_score_and_no_row_gives_none(tmp_path: Path) -> None:
    matrix, labels = matrix_of(FamilyBench(tmp_path, "regression"), "validation")
    score = scorer_of(LinearRegression().fit(inputs_of(matrix), labels), None)
    matrix.floats[1, 0] = np.nan
    assert np.isnan(score(matrix)).nonzero()[0].tolist() == [1]
    assert score(Matrix(cells=matrix.cells[:0], layout=matrix.layout)).shape == (0,)


def test_what_an_estimator_does_not_take_is_refused_in_words(tmp_path: Path) -> None:
    bench = FamilyBench(tmp_path, "regression")
    with pytest.raises(DataError, match=r"PoissonRegressor does not take these 240 rows: .*out of the valid range") as caught:
        fitted(bench, "sklearn.linear_model.PoissonRegressor")
    assert caught.value.code == "estimator.fit"
    path = sorted((bench.dataset_path / "shards").glob("*"))[0]
    cells = np.fromfile(path, dtype="<i4")
    cells[:1].view(np.float32)[:] = np.nan
    cells.tofile(path)
    with pytest.raises(DataError, match="feature 'price': train rows have missing numbers, which Ridge cannot take"):
        fitted(bench, "sklearn.linear_model.Ridge")


@pytest.mark.parametrize(
    ("settings", "field", "code", "words"),
    [
        ("estimator: sklearn.ensemble.RandomForestClasifier", "estimator", "estimator.unknown", "mean RandomForestClassifier?"),
        ("estimator: sklearn.nowhere.Forest", "estimator", "estimator.unknown", "cannot be imported"),
        (f"estimator: {FOREST}, trusted: [sklearn]", "trusted[0]", "estimator.unknown", "'sklearn' is a package, and no class"),
        ("estimator: sklearn.ensemble.StackingClassifier", "estimator", "estimator.unknown", "needs estimators"),
        ("estimator: sklearn.utils.Bunch", "estimator", "model.task", "no classifier"),
        ("estimator: sklearn.linear_model.Ridge", "estimator", "model.task", "no classifier, evaluate.task is binary"),
        ("estimator: sklearn.svm.LinearSVC", "estimator", "model.task", "no probabilities"),
        (f"estimator: {FOREST}, n_trees: 3", "n_trees", "spec.unknown_key", "has no parameter 'n_trees'"),
        (f"estimator: {FOREST}, n_estimators: many", "n_estimators", "estimator.parameter", "Got 'many' instead"),
        (f"estimator: {FOREST}, trusted: [subprocess.Popen]", "trusted[0]", "estimator.unknown", "no installed distribution"),
        ("estimator: subprocess.Popen, trusted: [subprocess.Popen], args: id", "estimator", "estimator.unknown", "no installed"),
        ("estimator: pandas.DataFrame, trusted: [pandas.DataFrame], data: [1]", "estimator", "estimator.unknown", "no installed"),
        ("estimator: skops.io.loads, trusted: [skops.io.loads]", "estimator", "estimator.unknown", "no class 'loads'"),
    ],
)
def test_check_refuses_what_scikit_learn_would(settings: str, field: str, code: str, words: str) -> None:
    found = library_violations(spec_for(SPEC, "binary", "file:///x", {MODEL: f"model: sklearn, settings: {{{settings}}}"}))
    assert found[0].code == code
    assert ".".join(map(str, found[0].path[2:])).replace(".0", "[0]") == field
    assert words in f"{found[0].message} {found[0].hint}"


def test_check_refuses_weights_that_are_not_counted_and_searched_values_that_are_not_taken() -> None:
    weighted = "model: sklearn, class_weight: balanced, settings: {estimator: sklearn.neighbors.KNeighborsClassifier}"
    assert [each.code for each in library_violations(spec_for(SPEC, "binary", "file:///x", {MODEL: weighted}))] == ["model.weight"]
    study = "\ntune: {trials: 2, space: {settings.max_depth: {int: [0, 9]}}}\npromote:"
    changes = {MODEL: f"model: sklearn, settings: {{estimator: {FOREST}}}", "\npromote:": study}
    (found,) = library_violations(spec_for(SPEC, "binary", "file:///x", changes))
    assert (found.code, found.path) == ("estimator.parameter", ("tune", "space", "settings.max_depth"))


@pytest.mark.parametrize(
    ("train", "field", "code"),
    [
        ("settings: {estimator: xgboost.XGBClassifier}", "train.settings.estimator", "estimator.untrusted"),
        (f"settings: {{estimator: {FOREST}, random_state: 3}}", "train.settings.random_state", "field.conflict"),
        (f"settings: {{estimator: {FOREST}, n_jobs: 3}}", "train.settings.n_jobs", "field.conflict"),
        (f"epochs: 3, settings: {{estimator: {FOREST}}}", "train.epochs", "field.conflict"),
        ("settings: {max_iter: 3}", "train.settings.estimator", "field.missing"),
    ],
)
def test_keys_of_another_place_are_refused_by_the_spec(train: str, field: str, code: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec_for(SPEC, "binary", "file:///x", {MODEL: f"model: sklearn, {train}"})
    assert [(problem.field, problem.code) for problem in caught.value.problems] == [(field, code)]


def test_neither_a_trigger_nor_a_study_says_which_code_runs() -> None:
    text = f"model: sklearn, settings: {{estimator: {FOREST}, n_estimators: 9}}"
    orders = SPEC.replace("LABEL", "cancelled").replace("TASK", "binary").replace("PRIMARY", "auc").replace(MODEL, text)
    spec = parse_spec(orders.encode())
    for name, value in (("estimator", "sklearn.tree.DecisionTreeClassifier"), ("trusted", ["os.system"])):
        with pytest.raises(SpecError) as caught:
            apply_overrides(spec, {"train": {"settings": {name: value}}})
        assert [(problem.field, problem.code) for problem in caught.value.problems] == [(f"train.settings.{name}", "conf.unknown_key")]
        study = f"\ntune: {{trials: 2, space: {{settings.{name}: {{choices: [a, b]}}}}}}\npromote:"
        with pytest.raises(SpecError) as caught:
            parse_spec(orders.replace("\npromote:", study).encode())
        assert [problem.code for problem in caught.value.problems] == ["tune.unknown_param"]
    with pytest.raises(SpecError, match="the key epochs is missing: linear needs it"):
        apply_overrides(spec, {"train": {"model": "linear"}})
    changed, parameters = apply_overrides(spec, {"train": {"settings": {"n_estimators": 5, "max_depth": 2}}})
    assert parameters.overrides == {"train.settings.n_estimators": 5, "train.settings.max_depth": 2}
    assert changed.train.settings["max_depth"] == 2
    assert apply_overrides(spec, {name: part["default"] for name, part in params_schema(spec).items()})[0] == spec
