"""The family `linear`: scikit-learn's models of the same rows, the same bits in every run, and the same scores after it is saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge

from tests.unit.training.models.family_bench import CARDINALITIES, FamilyBench
from tests.unit.training.stages.evaluate_bench import SPEC, EvaluateBench, orders, spec_for, without_services
from training.contracts import ExitCode
from training.data.dataset.mapped_shards import MappedShards
from training.data.dataset.reader import DatasetReader
from training.data.features.transforms import LayoutEntry, Matrix
from training.errors import DataError, PreemptedError, SpecError
from training.models.base import FitResult, load_family
from training.models.linear import fitting
from training.models.linear.family import LinearSettings
from training.models.predictor import load_predictor

TASKS = ["binary", "multiclass", "regression"]
MODEL = "model: boosted_trees, seed: 3, epochs: 20, learning_rate: 0.3, settings: {max_depth: 3}"


def fitted(bench: FamilyBench, **changes: Any) -> FitResult:
    settings = LinearSettings(**changes.pop("settings", {})).model_dump()
    keys = {"epochs": 200, "learning_rate": None, "early_stopping": None, "settings": settings, **changes}
    context = bench.fit_context("linear", **keys)
    try:
        return load_family("linear").fit(context)
    finally:
        context.checkpoints.close()


def rows_of(bench: FamilyBench, split: str) -> tuple[np.ndarray, np.ndarray, Matrix]:
    """Return the numbers and the ids one-hot, [n, inputs], the labels, and the matrix of the split."""
    shards = MappedShards(bench.dataset_path, bench.meta, split)  # type: ignore[arg-type]
    features, label, _ = shards.columns()
    ids = features[:, shards.num_floats :].astype(int)
    hot = [np.eye(size)[column] for column, size in zip(ids.T, CARDINALITIES.values(), strict=True)]
    cells = np.concatenate(shards.cells)[:, : len(shards.features)]
    matrix = Matrix(cells=cells, layout=tuple(LayoutEntry(**entry) for entry in bench.meta["layout"]["features"]))
    return np.concatenate([features[:, : shards.num_floats].astype(float), *hot], axis=1), label, matrix


def scores_of(result: FitResult, matrix: Matrix, folder: Path) -> np.ndarray:
    folder.mkdir(exist_ok=True)
    (folder / result.weights_name).write_bytes(result.weights)
    return load_family("linear").load(folder, result.architecture)(matrix)


def expected_scores(task: str, inputs: np.ndarray, label: np.ndarray, weights: np.ndarray, penalty: float) -> np.ndarray:
    if task == "regression":
        return Ridge(alpha=penalty, tol=1e-12).fit(inputs, label, sample_weight=weights).predict(inputs)
    if task == "poisson":
        model = PoissonRegressor(alpha=penalty / weights.sum(), tol=1e-12, max_iter=10_000)
        return model.fit(inputs, label, sample_weight=weights).predict(inputs)
    found = LogisticRegression(C=1 / penalty, tol=1e-12, max_iter=10_000).fit(inputs, label, sample_weight=weights).predict_proba(inputs)
    return found[:, 1] if task == "binary" else found


@pytest.mark.parametrize(
    ("task", "weighted"),
    [("binary", False), ("binary", True), ("multiclass", False), ("multiclass", True), ("regression", False), ("poisson", False)],
)
def test_the_model_is_that_of_scikit_learn(tmp_path: Path, task: str, weighted: bool) -> None:
    bench = FamilyBench(tmp_path, "regression" if task == "poisson" else task)
    if task == "poisson":
        for path in (bench.dataset_path / "shards").glob("*"):
            cells = np.fromfile(path, dtype="<i4").reshape(-1, bench.meta["layout"]["row_bytes"] // 4)
            counts = np.round(np.exp(cells[:, 5].view(np.float32) / 2) * 2)
            cells[:, 5] = counts.astype(np.float32).view(np.int32)
            cells.tofile(path)
    settings = {"penalty": 2.0, "tolerance": 1e-9, **({"objective": "poisson"} if task == "poisson" else {})}
    result = fitted(bench, settings=settings, epochs=3000, class_weight={"1": 4.0} if weighted else None)
    inputs, label, matrix = rows_of(bench, "train")
    scaled = inputs.copy()
    scaled[:, :2] = (inputs[:, :2] - inputs[:, :2].mean(axis=0)) / inputs[:, :2].std(axis=0)
    weights = np.where(label == 1, 4.0, 1.0) if weighted else np.ones(len(label))
    found = scores_of(result, matrix, tmp_path / "model")
    np.testing.assert_allclose(found, expected_scores(task, scaled, label, weights, 2.0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("task", TASKS)
def test_two_runs_make_the_same_bits_also_with_blocks_that_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    bench = FamilyBench(tmp_path, task)
    result = fitted(bench)
    assert fitted(bench).weights == result.weights
    monkeypatch.setattr(fitting, "MEMORY_SHARE", 0.0)
    assert fitted(bench).weights == result.weights
    losses = [entry["validation_loss"] for entry in result.history]
    assert result.validation_loss == losses[-1] < 0.9 * losses[0]
    assert result.best_epoch == len(losses)
    early = fitted(bench, early_stopping=5, settings={"penalty": 0.01})
    assert early.validation_loss == min(entry["validation_loss"] for entry in early.history)
    monkeypatch.setattr(fitting, "BLOCK_ROWS", 7)
    assert fitted(bench).validation_loss == pytest.approx(result.validation_loss, rel=1e-6)


def test_a_larger_penalty_makes_smaller_weights_and_early_stopping_ends_it(tmp_path: Path) -> None:
    bench = FamilyBench(tmp_path, "regression")
    scores = {
        penalty: scores_of(fitted(bench, settings={"penalty": penalty}), rows_of(bench, "train")[2], tmp_path / str(penalty)).std()
        for penalty in (0.0, 100.0, 1e6)
    }
    assert scores[0.0] > scores[100.0] > 10 * scores[1e6]
    stopped = fitted(bench, early_stopping=1, settings={"penalty": 0.0, "tolerance": 1e-12})
    assert stopped.num_steps < 200


def test_epochs_are_the_most_iterations_and_the_log_says_that_they_were_too_few(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bench = FamilyBench(tmp_path, "binary")
    result = fitted(bench, epochs=3)
    assert (result.num_steps, result.best_epoch, len(result.history)) == (3, 3, 3)
    assert "no minimum after 3 iterations" in caplog.text
    caplog.clear()
    fitted(bench)
    assert "no minimum" not in caplog.text


def test_missing_number_is_refused_by_its_feature(tmp_path: Path) -> None:
    bench = FamilyBench(tmp_path, "regression")
    path = next((bench.dataset_path / "shards").glob("validation-*"))
    cells = np.fromfile(path, dtype="<i4").reshape(-1, bench.meta["layout"]["row_bytes"] // 4)
    cells[3, 1] = np.array([np.nan], dtype=np.float32).view(np.int32)[0]
    cells.tofile(path)
    with pytest.raises(DataError, match="feature 'rating': validation rows have missing numbers") as caught:
        fitted(bench)
    assert caught.value.code == "feature.missing"


def test_stopped_training_is_preempted(tmp_path: Path) -> None:
    bench = FamilyBench(tmp_path, "binary")
    context = bench.fit_context("linear", epochs=50, learning_rate=None, settings=LinearSettings().model_dump())
    context.stop.request()
    try:
        with pytest.raises(PreemptedError, match="stopped after iteration 1"):
            load_family("linear").fit(context)
    finally:
        context.checkpoints.close()


def test_negative_counts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        fitted(FamilyBench(tmp_path, "regression"), settings={"objective": "poisson"})
    assert caught.value.code == "label.negative"


@pytest.mark.parametrize(
    ("task", "text", "field", "code"),
    [
        ("binary", "model: linear, epochs: 20, learning_rate: 0.1", "train.learning_rate", "field.conflict"),
        ("binary", "model: linear, epochs: 20, checkpoint: {keep: 2}", "train.checkpoint", "field.conflict"),
        ("binary", "model: linear, epochs: 20, settings: {objective: poisson}", "train.settings.objective", "field.conflict"),
        ("binary", "model: lightgbm, epochs: 20", "train.learning_rate", "field.missing"),
    ],
)
def test_keys_without_effect_and_missing_ones_are_refused_by_check(task: str, text: str, field: str, code: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec_for(SPEC, task, "file:///x", {MODEL: text})
    assert [(problem.field, problem.code) for problem in caught.value.problems] == [(field, code)]


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_night_with_linear_ends_with_a_model_that_scores_raw_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    without_services(monkeypatch, tmp_path)
    bench = EvaluateBench(tmp_path / "bench", task)
    change = {MODEL: "model: linear, epochs: 100", "noise: {transform: number}": "noise: {transform: standard}"}
    model = bench.train(change)
    bench.dataset_uri = bench.prepare(change)
    record = bench.evaluate(model, change)[1]
    assert record["metrics"]["rmse" if task == "regression" else "auc"] == pytest.approx(1.0 if task == "regression" else 0.85, abs=0.15)
    manifest = bench.store.manifests.get(model.artifact_uri)
    predictor = load_predictor(bench.store.manifests.fetch(manifest, tmp_path / "model"))
    rows = DatasetReader(bench.store, bench.store.manifests.get(bench.dataset_uri), tmp_path / "dataset").rows("test")
    assert np.array_equal(predictor.predict(rows)[:7], predictor.predict(rows.iloc[:7])), "a row's score does not depend on the others"
    assert predictor.facts["inputs"].keys() == set(predictor.inputs)
    assert np.array_equal(predictor.predict(rows.iloc[:7].to_dict("records")), predictor.predict(rows)[:7])


def test_missing_numbers_end_in_prepare_before_anything_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_DATABASE", f"sqlite:///{tmp_path}/nightshift.db")
    frame = orders()
    frame.loc[frame.index[-1], "noise"] = np.nan
    bench = EvaluateBench(tmp_path / "bench", "regression", frame=frame)
    linear = {MODEL: "model: linear, epochs: 10"}
    bench.spec = bench.spec_of(linear)
    ended, work_folder = bench.attempt("prepare", {"snapshot": bench.snapshot_uri}, {}, "missing")
    error = work_folder.error("a1")
    assert ended is ExitCode.BAD_DATA
    assert error is not None
    assert error["code"] == "feature.missing"
    assert "feature 'noise': " in error["message"]
    bench.prepare({**linear, "noise: {transform: number}": "noise: {transform: number, fill: mean}"}, work="filled")
