"""Leaks, returning entities, drift of predictions, constant models, importance: each with a case where it is known."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from training.evaluation.leakage_checks import is_constant, overlap, prediction_drift, strongest_feature
from training.evaluation.measures import Measures
from training.evaluation.raw_rows import hashes_of
from training.evaluation.rows import LabelledRows
from training.spec.sections.evaluation import Evaluate

NUM_ROWS = 4000


def measures_of(labels: np.ndarray, primary: str) -> Measures:
    rules = Evaluate.model_validate({"task": "binary", "primary": primary})
    return Measures(rules, LabelledRows(labels=labels, groups=None), seed=1)


def table(seed: int) -> tuple[pd.DataFrame, np.ndarray, np.ndarray, np.ndarray]:
    """Return columns and what they tell: a yes or no, a class, a number."""
    generator = np.random.default_rng(seed)
    signal = generator.normal(size=NUM_ROWS)
    frame = pd.DataFrame(
        {
            "weak": signal + 2 * generator.normal(size=NUM_ROWS),
            "noise": generator.normal(size=NUM_ROWS),
            "who": generator.integers(0, 2000, NUM_ROWS).astype(str),
            "at": pd.Timestamp("2026-01-01", tz="UTC") + pd.to_timedelta(generator.integers(0, 10**6, NUM_ROWS), unit="s"),
        }
    )
    return frame, (signal > 0.5).astype(float), np.digitize(signal, [-0.5, 0.5]).astype(float), signal


def strongest(task: str, leak: str | None = None) -> dict[str, object]:
    parts = []
    for seed in (0, 1):
        frame, yes, group, number = table(seed)
        labels = {"binary": yes, "ranking": yes, "multiclass": group, "regression": number}[task]
        if leak == "falling":
            frame["leak"] = -labels + 1e-3 * frame["noise"]
        elif leak == "code":
            frame["leak"] = [f"code {round(value, 1)}" for value in labels]
        elif leak == "in the middle":
            frame["leak"] = np.where(labels > 0, 0.0, 5.0) * np.sign(frame["noise"])
        elif leak == "missing":
            frame["leak"] = np.where(labels > 0, np.nan, 1.0)
        parts += [frame, labels]
    found = strongest_feature(task, list(parts[0]), parts[0], parts[1], parts[2], parts[3])
    assert found is not None
    return found


@pytest.mark.parametrize("task", ["binary", "ranking", "multiclass", "regression"])
@pytest.mark.parametrize("leak", ["falling", "code"])
def test_column_that_is_the_label_is_reported_in_every_form(task: str, leak: str) -> None:
    found = strongest(task, leak)
    assert found.feature == "leak"
    assert found.value is not None
    assert found.value > 0.98


@pytest.mark.parametrize("leak", ["in the middle", "missing"])
def test_column_that_predicts_the_label_without_rising_with_it_is_reported(leak: str) -> None:
    assert strongest("binary", leak).to_json() == {"feature": "leak", "value": pytest.approx(1.0, abs=0.01)}


@pytest.mark.parametrize("task", ["binary", "ranking", "multiclass", "regression"])
def test_honest_column_stays_below_and_an_identifier_of_the_training_rows_says_nothing(task: str) -> None:
    found = strongest(task)
    assert found.feature == "weak"
    assert found.value is not None
    assert 0.35 < found.value < 0.85


@pytest.mark.parametrize(("num_known", "judged"), [(2, False), (400, True)])
def test_column_that_is_missing_in_almost_all_rows_is_not_judged_where_a_number_is_predicted(num_known: int, judged: bool) -> None:
    frame, _yes, _kind, number = table(1)
    lowest = np.argsort(number)[:num_known]
    frame["rare"] = np.nan
    frame.loc[lowest, "rare"] = number[lowest]
    found = strongest_feature("regression", list(frame), frame, number, frame, number)
    assert found is not None
    assert (found.feature == "rare") is judged


def test_nothing_is_strongest_where_labels_are_all_the_same() -> None:
    frame = table(0)[0]
    assert strongest_feature("binary", list(frame), frame, np.ones(NUM_ROWS), frame, np.ones(NUM_ROWS)) is None


def test_overlap_is_the_share_of_entities_and_not_of_rows() -> None:
    frame = pd.DataFrame({"user": [1, 2, 3, 1, 1, 1, 4], "shop": ["a"] * 6 + ["b"]})
    hashes = hashes_of(frame)
    found = overlap(("user", "shop"), [hashes[:3]], [hashes[3:5], hashes[5:]])
    assert found.to_json() == {"entities": ["user", "shop"], "share": 0.5, "num_test": 2}


@pytest.mark.parametrize("seed", range(20))
def test_overlap_of_any_division_and_batches_is_that_of_the_sets(seed: int) -> None:
    rng = np.random.default_rng(seed)
    users, order = rng.integers(0, 9, 40), rng.permutation(40)
    training, test = order[: rng.integers(0, 41)], order[rng.integers(0, 41) :]
    hashes = hashes_of(pd.DataFrame({"user": users}))
    found = overlap(("user",), np.array_split(hashes[training], rng.integers(1, 9)), np.array_split(hashes[test], rng.integers(1, 9)))
    expected = set(users[test].tolist())
    share = len(expected & set(users[training].tolist())) / len(expected) if expected else 0.0
    assert (found.share, found.num_test) == (pytest.approx(share, abs=1e-15), len(expected))


def test_the_same_user_of_another_shop_is_another_entity() -> None:
    frame = pd.DataFrame({"user": [1, 1], "shop": ["a", "b"]})
    hashes = hashes_of(frame)
    assert overlap(("user", "shop"), [hashes[:1]], [hashes[1:]]).share == 0


def psi(task: str, candidate: np.ndarray, champion: np.ndarray, groups: np.ndarray | None = None) -> float:
    found = prediction_drift(task, candidate, champion, groups)
    assert found is not None
    assert found.psi is not None
    return found.psi


def test_drift_is_small_for_alike_predictions_and_large_for_moved_ones() -> None:
    generator = np.random.default_rng(0)
    champion = generator.beta(2, 5, 20_000)
    assert psi("binary", generator.beta(2, 5, 20_000), champion) < 0.01
    assert psi("binary", np.clip(champion + 0.15, 0, 1), champion) > 0.25
    assert psi("regression", champion, champion) == 0


def test_drift_is_the_index_of_a_worked_example() -> None:
    champion, candidate = np.repeat([0.1, 0.9], [50, 50]), np.repeat([0.1, 0.9], [80, 20])
    assert psi("binary", candidate, champion) == pytest.approx(0.3 * math.log(0.8 / 0.5) - 0.3 * math.log(0.2 / 0.5))


@pytest.mark.parametrize("noise", [1e-9, 1e-6, 1e-4])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_nearly_equal_models_whose_scores_pile_up_near_zero_have_no_drift(share: float, noise: float) -> None:
    generator = np.random.default_rng(0)
    num_piled = int(5000 * share)
    champion = np.concatenate([generator.gamma(0.05, 1e-7, num_piled), generator.beta(2, 3, 5000 - num_piled)])
    candidate = np.clip(champion + generator.normal(0, noise, 5000), 0, 1)
    assert psi("binary", candidate, champion) < 0.001


@pytest.mark.parametrize("moved_to", [0.05, 0.3])
def test_pile_of_scores_that_moves_is_drift(moved_to: float) -> None:
    generator = np.random.default_rng(0)
    champion = np.concatenate([generator.gamma(0.05, 1e-7, 3000), generator.beta(2, 3, 2000)])
    candidate = np.concatenate([moved_to + generator.gamma(0.05, 1e-7, 1500), champion[1500:]])
    assert psi("binary", candidate, champion) > 0.25


def test_drift_of_rankers_does_not_see_scale_and_of_classes_sees_the_likeliest() -> None:
    generator = np.random.default_rng(0)
    champion, groups = generator.normal(size=5000), np.arange(5000) // 10
    assert psi("ranking", 40 * champion + groups, champion, groups) == pytest.approx(0, abs=1e-9)
    ones, others = np.tile([0.9, 0.1], (100, 1)), np.tile([0.1, 0.9], (100, 1))
    assert psi("multiclass", ones, ones) == 0
    assert psi("multiclass", others, ones) > 5


def test_drift_of_scores_that_are_not_finite_is_unknown() -> None:
    assert prediction_drift("binary", np.array([0.1, math.nan]), np.array([0.1, 0.2]), None) is None


@pytest.mark.parametrize(
    ("scores", "groups", "constant"),
    [
        (np.full(5, 0.3), None, True),
        (np.array([0.3, 0.3, 0.31]), None, False),
        (np.tile([0.2, 0.8], (4, 1)), None, True),
        (np.array([1.0, 1, 2, 2]), np.array([0, 0, 1, 1]), True),
        (np.array([1.0, 1, 2, 3]), np.array([0, 0, 1, 1]), False),
        (np.array([1.0, 2]), np.array([0, 1]), False),
    ],
)
def test_constant_is_the_same_for_every_row_or_within_every_group(scores: np.ndarray, groups: np.ndarray | None, constant: bool) -> None:
    assert is_constant(scores, groups) is constant


def test_importance_is_what_shuffling_a_column_costs_largest_first() -> None:
    frame, labels = table(0)[:2]
    frame = frame.assign(strong=labels + np.random.default_rng(1).normal(size=NUM_ROWS) * 0.5)

    def predict(rows: pd.DataFrame) -> np.ndarray:
        return np.asarray(1 / (1 + np.exp(-(3 * rows["strong"] + rows["weak"] - 1.5))))

    def measured(columns: tuple[str, ...], primary: str) -> dict[str, float] | None:
        return measures_of(labels, primary).importance(predict, frame.iloc.__getitem__, columns)

    for primary in ("auc", "log_loss"):
        found = measured(("noise", "weak", "strong"), primary)
        assert found is not None
        assert list(found) == ["strong", "weak", "noise"]
        assert found["strong"] > found["weak"] > found["noise"] == 0
    assert measured(("weak",), "auc") == measured(("weak",), "auc")


@pytest.mark.parametrize("name", ["self", "kwargs", "cls", "Größe (cm)"])
def test_importance_of_a_column_is_found_whatever_its_name(name: str) -> None:
    frame, labels = table(0)[:2]
    frame = frame.rename(columns={"weak": name})
    found = measures_of(labels, "auc").importance(lambda rows: rows[name].to_numpy(float), frame.iloc.__getitem__, (name,))
    assert found is not None
    assert found[name] > 0


def test_importance_of_a_metric_without_a_value_is_unknown() -> None:
    frame = table(0)[0]
    found = measures_of(np.ones(NUM_ROWS), "auc").importance(lambda rows: np.zeros(len(rows)), frame.iloc.__getitem__, ("weak",))
    assert found is None
