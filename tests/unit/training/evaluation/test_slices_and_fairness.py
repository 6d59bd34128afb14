"""Slices by one and two columns against each slice measured alone; gaps of sensitive columns."""

from __future__ import annotations

import math
import time

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from benchmarks.scored import metric_named, metric_value
from training.evaluation.metrics.metric import CalledMetric, Metric, OwnMetric, ScoredRows
from training.evaluation.metrics.registry import metric_of
from training.evaluation.record import Slice
from training.evaluation.slices import MAX_PAIRS, MAX_SLICES, MISSING, Values, by_slice, fairness_of, values_of, worst_and_gap

RNG = np.random.default_rng(4)
NUM_ROWS = 2000


def frame() -> pd.DataFrame:
    carrier = RNG.choice(["UA", "DL", "9E"], NUM_ROWS, p=[0.6, 0.39, 0.01]).astype(object)
    carrier[:40] = None
    return pd.DataFrame({"carrier": carrier, "stops": RNG.integers(0, 3, NUM_ROWS)})


FRAME = frame()
LABELS = (RNG.random(NUM_ROWS) < 0.4).astype(float)
CANDIDATE, CHAMPION = (np.clip(LABELS * 0.3 + RNG.random(NUM_ROWS) * 0.7, 0, 1) for _ in range(2))


def values_by_column(rows: pd.DataFrame) -> dict[str, Values]:
    return {str(name): values_of(rows[name]) for name in rows}


def sliced(
    primary: str = "auc",
    *,
    labels: np.ndarray = LABELS,
    champion: np.ndarray | None = CHAMPION,
    groups: np.ndarray | None = None,
    own: OwnMetric | None = None,
    pairs: bool = True,
) -> list[Slice]:
    new, old = (None if scores is None else ScoredRows(labels=labels, scores=scores, groups=groups) for scores in (CANDIDATE, champion))
    assert new is not None
    values = values_by_column(FRAME)
    return by_slice(values, ("carrier", "stops"), metric_named(primary, own), new, old, least_support=100, pairs=pairs)


def rows_of(part: Slice) -> np.ndarray:
    rows = np.ones(NUM_ROWS, dtype=bool)
    for column, value in part.columns.items():
        rows &= FRAME[column].astype("string").fillna(MISSING).to_numpy() == value
    return rows


@pytest.mark.parametrize("primary", ["auc", "log_loss", "f1", "calibration_error", "bias"])
def test_every_slice_and_pair_has_the_metric_of_its_rows_alone(primary: str) -> None:
    found = sliced(primary)
    assert len(found) == 4 + 3 + 12
    for part in found:
        rows = rows_of(part)
        assert part.support == rows.sum()
        assert part.is_small == (rows.sum() < 100)
        if len(np.unique(LABELS[rows])) == 2:
            assert part.candidate == pytest.approx(metric_value(primary, LABELS[rows], CANDIDATE[rows], None))
            assert part.champion == pytest.approx(metric_value(primary, LABELS[rows], CHAMPION[rows], None))


def test_slices_of_a_ranker_are_of_the_rows_of_each_group_in_them() -> None:
    groups = np.arange(NUM_ROWS) // 10
    for part in sliced("ndcg@10", groups=groups, pairs=False):
        rows = rows_of(part)
        assert part.candidate == pytest.approx(metric_value("ndcg@10", LABELS[rows], CANDIDATE[rows], groups[rows]))


def test_pairs_can_be_left_out_and_largest_slices_come_first() -> None:
    found = sliced(pairs=False)
    assert [len(part.columns) for part in found] == [1] * 7
    assert [part.columns.get("carrier") for part in found[:4]] == ["UA", "DL", MISSING, "9E"]


ONE_CLASS = np.where(FRAME["stops"] == 1, 0.0, LABELS)


def of_one_class(found: list[Slice]) -> tuple[float | None, float | None, str]:
    (part,) = (part for part in found if part.columns == {"stops": "1"})
    assert not any(other.why_none for other in found if other is not part)
    return part.candidate, part.champion, part.why_none


def test_slice_without_a_champion_has_none_and_one_class_has_no_value() -> None:
    found = sliced(labels=ONE_CLASS, champion=None, pairs=False)
    assert all(part.champion is None for part in found)
    assert of_one_class(found) == (None, None, "one class only")


def test_prediction_that_is_no_number_is_one_in_a_slice_of_one_class_too() -> None:
    broken = np.where(np.arange(NUM_ROWS) == np.flatnonzero(FRAME["stops"] == 1)[0], math.nan, CHAMPION)
    candidate, champion, why_none = of_one_class(sliced(labels=ONE_CLASS, champion=broken, pairs=False))
    assert (candidate, why_none) == (None, "one class only")
    assert champion is not None
    assert math.isnan(champion)


def test_slice_of_a_ranker_without_a_positive_label_has_no_value() -> None:
    groups = np.arange(NUM_ROWS) // 10
    found = sliced("ndcg@10", labels=ONE_CLASS, groups=groups, pairs=False)
    assert of_one_class(found) == (None, None, "no group with a positive label")


def test_own_metric_without_a_value_for_perfect_predictions_is_not_judged_there() -> None:
    def share_of_positives_above(labels: NDArray[np.float64], scores: NDArray[np.float64], _: object) -> float:
        return float((scores[labels > 0] > 0.5).mean()) if labels.any() else math.nan

    def never(labels: NDArray[np.float64], scores: NDArray[np.float64], _: object) -> float:
        return math.nan if scores.min() > 0 else 1.0

    assert (
        of_one_class(sliced("mine", own=share_of_positives_above, labels=ONE_CLASS, pairs=False))[2]
        == "no value for perfect predictions either"
    )
    assert all(part.candidate is not None and math.isnan(part.candidate) and not part.why_none for part in sliced("mine", own=never))


def test_own_metric_of_several_classes_is_asked_for_perfect_probabilities() -> None:
    rows = ScoredRows(labels=np.array([1.0, 3.0]), scores=np.full((2, 3), 1 / 3))
    seen = []

    def kept(labels: NDArray[np.float64], scores: NDArray[np.float64], _: object) -> float:
        seen.append(scores.argmax(axis=1).tolist())
        return 1.0

    assert CalledMetric(kept).why_none(rows) == ""
    assert seen == [[1, 3]]


def test_own_metric_is_measured_by_slice() -> None:
    for part in sliced("mine", own=lambda labels, scores, _: float((labels - scores).mean()), pairs=False):
        rows = rows_of(part)
        assert part.candidate == pytest.approx((LABELS[rows] - CANDIDATE[rows]).mean())


def test_worst_slice_and_gap_leave_small_ones_out_and_know_the_direction() -> None:
    values: list[tuple[float | None, bool]] = [(0.9, False), (0.7, False), (0.1, True), (math.nan, False), (0.8, False)]
    values.append((None, False))
    slices = [Slice(columns={"a": str(n)}, support=1, is_small=small, candidate=v, champion=None) for n, (v, small) in enumerate(values)]
    assert worst_and_gap(slices, 1.0) == (1, pytest.approx(0.2))
    assert worst_and_gap(slices, -1.0) == (0, pytest.approx(0.2))
    assert worst_and_gap(slices[2:4], 1.0) == (None, None)


def test_columns_of_many_values_keep_the_largest() -> None:
    many = pd.DataFrame({"a": np.arange(5000) % 1000, "b": np.minimum(np.arange(5000) % 777, 300)})
    labels = (np.arange(5000) % 2).astype(float)
    rows = ScoredRows(labels=labels, scores=labels * 0.5)
    found = by_slice(values_by_column(many), ("a", "b"), metric_of("brier"), rows, None, least_support=3)
    by_columns = [tuple(part.columns) for part in found]
    assert [by_columns.count(names) for names in (("a",), ("b",), ("a", "b"))] == [MAX_SLICES, MAX_SLICES, MAX_PAIRS]
    assert next(part for part in found if "b" in part.columns).columns == {"b": "300"}


@pytest.mark.slow
def test_a_million_rows_are_sliced_by_three_columns_and_their_pairs_in_seconds() -> None:
    num_rows = 1_000_000
    big = pd.DataFrame({name: RNG.integers(0, 30, num_rows) for name in ("a", "b", "c")})
    labels, scores = (RNG.random(num_rows) < 0.2).astype(float), RNG.random(num_rows)
    started_at = time.monotonic()
    rows = ScoredRows(labels=labels, scores=scores)
    found = by_slice(values_by_column(big), ("a", "b", "c"), metric_of("auc"), rows, None, least_support=100)
    assert len(found) == 3 * 30 + 3 * MAX_PAIRS
    assert time.monotonic() - started_at < 15


def test_gaps_are_between_values_of_enough_rows() -> None:
    people = pd.DataFrame({"sex": ["f"] * 200 + ["m"] * 200 + ["x"] * 10})
    labels = np.tile([1.0, 0], 205)
    scores = np.where(labels > 0, 0.8, 0.2)
    scores[:50] = 0.6
    scores[400:] = 0.0
    rows = ScoredRows(labels=labels, scores=scores, threshold=0.7)
    found = fairness_of(values_by_column(people), ("sex",), rows, task="binary", least_support=100)["sex"]
    rates = {one.value: one.true_positive_rate for one in found.values}
    assert rates == {"f": 0.75, "m": 1.0, "x": 0.0}
    assert [one.num_positives for one in found.values] == [100, 100, 5]
    assert found.equal_opportunity_gap == 0.25
    errors = {one.value: one.calibration_error for one in found.values}
    assert errors["m"] == pytest.approx(0.2)
    assert found.calibration_gap == pytest.approx(abs(errors["f"] - errors["m"]))  # type: ignore[operator]  # numbers


def test_one_value_of_enough_rows_has_no_gap_and_regression_neither() -> None:
    people = pd.DataFrame({"sex": ["f"] * 200 + ["m"] * 10})
    labels = np.tile([1.0, 0], 105)
    rows = ScoredRows(labels=labels, scores=labels)
    alone = fairness_of(values_by_column(people), ("sex",), rows, task="binary", least_support=100)["sex"]
    assert alone.equal_opportunity_gap is alone.calibration_gap is None
    other = fairness_of(values_by_column(people), ("sex",), rows, task="regression", least_support=5)["sex"]
    assert other.equal_opportunity_gap is other.calibration_gap is None


class ShareRight(Metric):
    """A metric of one's own distribution, that reads the threshold."""

    def unit_values(self, rows: ScoredRows) -> NDArray[np.float64]:
        return np.where(rows.labels < 0, np.nan, ((rows.scores >= rows.threshold) == (rows.labels > 0)).astype(np.float64))

    def value(self, rows: ScoredRows) -> float:
        return float(np.nanmean(self.unit_values(rows)))


def test_metric_of_a_distribution_sees_the_threshold_in_each_slice() -> None:
    frame = pd.DataFrame({"side": ["a", "a", "b", "b"]})
    rows = ScoredRows(labels=np.array([1.0, 0.0, 1.0, 1.0]), scores=np.array([0.3, 0.1, 0.3, 0.1]), threshold=0.2)
    found = by_slice(values_by_column(frame), ("side",), ShareRight(), rows, None, least_support=1)
    assert {part.columns["side"]: part.candidate for part in found} == {"a": 1.0, "b": 0.5}


def test_metric_whose_units_have_no_value_is_measured_part_by_part() -> None:
    rows = ScoredRows(labels=np.array([1.0, -1.0]), scores=np.array([0.9, 0.9]))
    assert ShareRight().part_values(rows, np.array([0, 0]), np.array([2])) is None
