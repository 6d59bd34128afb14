"""The family `lightgbm`: the model that LightGBM itself makes, the same bits in every run, and the same scores after it is saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

lightgbm = pytest.importorskip("lightgbm", exc_type=(ImportError, OSError))  # type: ignore[arg-type]

from tests.unit.training.models import family_bench  # noqa: E402
from tests.unit.training.models.family_bench import FamilyBench  # noqa: E402
from tests.unit.training.stages.evaluate_bench import EvaluateBench, without_services  # noqa: E402
from training.data.dataset.mapped_shards import MappedShards  # noqa: E402
from training.data.dataset.reader import DatasetReader  # noqa: E402
from training.data.features.transforms import LayoutEntry, Matrix  # noqa: E402
from training.errors import DataError, PreemptedError  # noqa: E402
from training.models.base import FitResult, load_family  # noqa: E402
from training.models.lightgbm.family import LightgbmSettings  # noqa: E402
from training.models.predictor import load_predictor  # noqa: E402

TASKS = ["binary", "multiclass", "regression", "ranking"]
SMALL = {"min_data_in_leaf": 5, "num_leaves": 7}


def fitted(bench: FamilyBench, **changes: Any) -> FitResult:
    settings = LightgbmSettings(**{**SMALL, **changes.pop("settings", {})}).model_dump()
    context = bench.fit_context("lightgbm", **{"epochs": 20, "learning_rate": 0.3, "early_stopping": None, "settings": settings, **changes})
    try:
        return load_family("lightgbm").fit(context)
    finally:
        context.checkpoints.close()


def rows_of(bench: FamilyBench, split: str) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, Matrix]:
    shards = MappedShards(bench.dataset_path, bench.meta, split)  # type: ignore[arg-type]
    features, label, group = shards.columns()
    cells = np.concatenate(shards.cells)[:, : len(shards.features)]
    layout = bench.meta["layout"]["features"]
    return features, label, group, Matrix(cells=cells, layout=tuple(LayoutEntry(**entry) for entry in layout))


def scores_of(bench: FamilyBench, result: FitResult, folder: Path, split: str = "validation") -> np.ndarray:
    folder.mkdir(exist_ok=True)
    (folder / result.weights_name).write_bytes(result.weights)
    return load_family("lightgbm").load(folder, result.architecture)(rows_of(bench, split)[3])


@pytest.mark.parametrize("task", TASKS)
def test_two_runs_make_the_same_model_and_it_is_better_than_none(tmp_path: Path, task: str) -> None:
    bench = FamilyBench(tmp_path, task)
    result = fitted(bench)
    assert fitted(bench).weights == result.weights
    assert [entry["epoch"] for entry in result.history] == list(range(1, len(result.history) + 1))
    assert result.validation_loss == min(entry["validation_loss"] for entry in result.history)
    assert result.history[result.best_epoch - 1]["validation_loss"] == result.validation_loss
    scores = scores_of(bench, result, tmp_path / "model")
    _, label, _, _ = rows_of(bench, "validation")
    assert scores.shape == ((len(label), 3) if task == "multiclass" else (len(label),))
    if task == "multiclass":
        assert np.mean(scores.argmax(axis=1) == label) > 0.6
    elif task == "regression":
        assert np.mean((scores - label) ** 2) < 0.5 * label.var()
        assert np.sqrt(np.mean((scores - label) ** 2)) == pytest.approx(result.validation_loss, rel=1e-5)
    else:
        assert scores[label == 1].mean() > scores[label == 0].mean() + 0.1


def test_the_model_is_the_one_that_lightgbm_makes_of_the_same_rows_in_memory(tmp_path: Path) -> None:
    bench = FamilyBench(tmp_path, "binary")
    found = scores_of(bench, fitted(bench, epochs=10), tmp_path / "model", "train")
    features, label, _, matrix = rows_of(bench, "train")
    parameters = {**SMALL, "objective": "binary", "learning_rate": 0.3, "verbosity": -1, "deterministic": True, "force_row_wise": True}
    ids = [place for place, entry in enumerate(matrix.layout) if entry.dtype == "int32"]
    train = lightgbm.Dataset(features, label=label, categorical_feature=ids, params=parameters)
    best = fitted(bench, epochs=10).best_epoch
    expected = lightgbm.train({**parameters, "num_threads": 2}, train, num_boost_round=best).predict(features)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_ids_are_categories_unless_the_settings_say_numbers(tmp_path: Path) -> None:
    bench = FamilyBench(tmp_path, "binary")

    def ranges(**settings: bool) -> list[str]:
        lines = fitted(bench, settings=settings).weights.decode().splitlines()
        return next(line for line in lines if line.startswith("feature_infos=")).partition("=")[2].split()

    assert all(text.startswith("[") for text in ranges(categorical=False))
    assert [text.startswith("[") for text in ranges()] == [True, True, False, False, False]


def test_samples_of_rows_and_features_follow_the_seed(tmp_path: Path) -> None:
    bench = FamilyBench(tmp_path, "regression")
    sampled = {"settings": {"bagging_fraction": 0.5, "feature_fraction": 0.6}}
    first = fitted(bench, seed=1, **sampled)
    assert fitted(bench, seed=1, **sampled).weights == first.weights
    assert fitted(bench, seed=2, **sampled).weights != first.weights
    assert fitted(bench, seed=1).weights != first.weights


def test_every_setting_reaches_the_library(tmp_path: Path) -> None:
    settings = {
        "num_leaves": 9,
        "max_depth": 4,
        "min_data_in_leaf": 6,
        "feature_fraction": 0.75,
        "bagging_fraction": 0.625,
        "lambda_l1": 0.25,
        "lambda_l2": 0.5,
        "min_gain_to_split": 0.125,
        "max_bin": 63,
    }
    assert settings.keys() | {"categorical", "objective", "quantile_alpha"} == LightgbmSettings.model_fields.keys()
    weights = fitted(FamilyBench(tmp_path, "regression"), settings=settings, learning_rate=0.375, seed=5).weights.decode()
    written = dict(line[1:-1].split(": ", 1) for line in weights.splitlines() if line.startswith("[") and ": " in line)
    assert {name: float(written[name]) for name in settings} == settings
    # Without a frequency, the library takes all rows.
    assert (written["bagging_freq"], written["learning_rate"], written["seed"]) == ("1", "0.375", "5")


@pytest.mark.parametrize("alpha", [0.2, 0.7])
def test_a_quantile_has_its_share_of_the_labels_below_it(tmp_path: Path, alpha: float) -> None:
    bench = FamilyBench(tmp_path, "regression")
    result = fitted(bench, epochs=40, settings={"objective": "quantile", "quantile_alpha": alpha})
    label = rows_of(bench, "train")[1]
    assert np.mean(label < scores_of(bench, result, tmp_path / "model", "train")) == pytest.approx(alpha, abs=0.12)


def test_training_ends_early_and_keeps_the_best_round(tmp_path: Path) -> None:
    result = fitted(FamilyBench(tmp_path, "binary"), epochs=200, early_stopping=3, learning_rate=0.5)
    assert result.num_steps == result.best_epoch + 3 < 200
    assert result.weights.count(b"\nTree=") == result.best_epoch


def test_stopped_training_is_preempted_and_the_next_one_begins_again(tmp_path: Path) -> None:
    bench = FamilyBench(tmp_path, "binary")
    settings = LightgbmSettings(**SMALL).model_dump()
    context = bench.fit_context("lightgbm", epochs=20, settings=settings)
    context.stop.request()
    try:
        with pytest.raises(PreemptedError, match="stopped after round 1; LightGBM begins again"):
            load_family("lightgbm").fit(context)
    finally:
        context.checkpoints.close()
    assert fitted(bench).weights == fitted(FamilyBench(tmp_path / "other", "binary")).weights


@pytest.mark.parametrize("highest", [-1, 0.5, 31])
def test_labels_that_are_no_counts_and_no_grades_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, highest: float) -> None:
    with pytest.raises(DataError) as caught:
        fitted(FamilyBench(tmp_path / "counts", "regression"), settings={"objective": "poisson"})
    assert caught.value.code == "label.negative"
    monkeypatch.setattr(family_bench, "labels", lambda task, signal: np.where(signal > 0, highest, 0).astype(np.float32))
    with pytest.raises(DataError, match=rf"labels are not a grade from 0 to 30, the first is {highest:g}") as caught:
        fitted(FamilyBench(tmp_path / "grades", "ranking"))
    assert caught.value.code == "label.not_a_grade"


@pytest.mark.slow
def test_a_night_with_lightgbm_ends_with_a_model_that_scores_raw_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_services(monkeypatch, tmp_path)
    bench = EvaluateBench(tmp_path / "bench", "binary")
    change = {"model: boosted_trees": "model: lightgbm", "settings: {max_depth: 3}": "settings: {num_leaves: 7}"}
    model = bench.train(change)
    record = bench.evaluate(model, change)[1]
    assert record["metrics"]["auc"] > 0.8
    manifest = bench.store.manifests.get(model.artifact_uri)
    assert not any(name.endswith((".pkl", ".pickle")) for name in manifest.files)
    predictor = load_predictor(bench.store.manifests.fetch(manifest, tmp_path / "model"))
    rows = DatasetReader(bench.store, bench.store.manifests.get(bench.dataset_uri), tmp_path / "dataset").rows("test")
    whole = predictor.predict(rows)
    assert np.array_equal(whole[:7], predictor.predict(rows.iloc[:7])), "a row's score does not depend on the others"


@pytest.mark.slow
def test_weights_of_classes_make_the_same_trees_as_a_column_with_these_weights(tmp_path: Path) -> None:
    bench = FamilyBench(tmp_path, "binary")
    plain = fitted(bench)
    weighed = fitted(bench, class_weight={"1": 5.0})
    assert weighed.weights != plain.weights
    assert scores_of(bench, weighed, tmp_path / "a").mean() > scores_of(bench, plain, tmp_path / "b").mean() + 0.05
