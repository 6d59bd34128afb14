"""Intervals of every metric against a plain bootstrap that computes the metric again for each resample."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from benchmarks.scored import compare, group_ndcg, metric_value
from training.evaluation.bootstrap.resampling import resampled_counts, resampled_means, resampled_parts, resampled_weights
from training.evaluation.metrics import auc, f1, metric, regression
from training.evaluation.record import Comparison
from training.spec.descriptors.metrics import DESCRIPTORS, is_lower_better

NUM_ROWS = 600
ONE_DEVIATION = 0.6827

Scored = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]


def scored(task: str, seed: int = 0, num_rows: int = NUM_ROWS) -> Scored:
    """Return labels, a candidate's scores, a noisier champion's, groups."""
    generator = np.random.default_rng(seed)
    signal, noise = generator.normal(size=num_rows), generator.normal(size=(2, num_rows))
    if task == "regression":
        return signal, signal + 0.5 * noise[0], signal + 0.5 * noise[0] + 0.3 * noise[1], None
    if task == "multiclass":
        labels = np.digitize(signal, [-0.6, 0.6]).astype(float)
        centers = np.array([-1.0, 0.0, 1.0])
        odds = [np.exp(-((seen[:, None] - centers) ** 2)) for seen in (signal + 0.5 * noise[0], signal + 0.5 * noise[0] + 0.6 * noise[1])]
        new, old = (one / one.sum(axis=1, keepdims=True) for one in odds)
        return labels, new, old, None
    if task == "language":
        num_bytes = generator.integers(1, 8, num_rows).astype(float)
        losses = generator.gamma(2.0, 1.0, num_rows)
        return num_bytes, losses, losses * generator.uniform(0.9, 1.2, num_rows), None
    labels = (generator.random(num_rows) < 1 / (1 + np.exp(1 - 2 * signal))).astype(float)
    new, old = (1 / (1 + np.exp(1 - 2 * seen)) for seen in (signal + 0.3 * noise[0], signal + 0.3 * noise[0] + 0.6 * noise[1]))
    return labels, new, old, np.arange(num_rows) // 15 if task == "ranking" else None


def plain(name: str, rows: Scored, num_resamples: int = 300) -> tuple[float, float]:
    """Return (middle, half of the width) of the middle 68 % of a plain bootstrap."""
    labels, new, old, groups = rows
    generator = np.random.default_rng(11)
    found = []
    for _ in range(num_resamples):
        if groups is None:
            drawn, again = generator.integers(0, len(labels), len(labels)), None
        else:
            units = generator.integers(0, groups.max() + 1, groups.max() + 1)
            drawn = np.concatenate([np.flatnonzero(groups == unit) for unit in units])
            again = np.repeat(np.arange(len(units)), 15)
        values = [metric_value(name, labels[drawn], scores[drawn], again) for scores in (new, old)]
        found.append((values[0] - values[1]) * (-1 if is_lower_better(name) else 1))
    return ends(*np.quantile(found, [(1 - ONE_DEVIATION) / 2, (1 + ONE_DEVIATION) / 2]))


def ends(low: float, high: float) -> tuple[float, float]:
    return (low + high) / 2, (high - low) / 2


def fast(name: str, rows: Scored, **more: Any) -> Comparison:
    labels, new, old, groups = rows
    return compare(name, labels, new, old, groups, confidence=ONE_DEVIATION, seed=5, **more)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "name"),
    [(task, name if metric.cut is None else f"{name}@{metric.cut}") for name, metric in DESCRIPTORS.items() for task in metric.tasks],
)
def test_interval_of_every_metric_is_that_of_a_plain_bootstrap(task: str, name: str) -> None:
    rows = scored(task)
    if name == "poisson_deviance":
        # Of counts and means, which are positive.
        rows = (np.floor(np.exp(rows[0])), np.exp(rows[1]), np.exp(rows[2]), None)
    found, (middle, spread) = fast(name, rows), plain(name, rows)
    fast_middle, fast_spread = ends(found.low, found.high)
    assert fast_spread == pytest.approx(spread, rel=0.2)
    assert abs(fast_middle - middle) < 0.3 * spread
    exact = [metric_value(name, rows[0], scores, rows[3]) for scores in rows[1:3]]
    assert found.gain == pytest.approx((exact[0] - exact[1]) * (-1 if is_lower_better(name) else 1))


@pytest.mark.slow
@pytest.mark.parametrize(("task", "name"), [("binary", "auc"), ("binary", "pr_auc"), ("multiclass", "auc"), ("multiclass", "pr_auc")])
def test_many_rows_have_nearly_the_interval_that_areas_of_each_resample_have(monkeypatch: pytest.MonkeyPatch, task: str, name: str) -> None:
    rows = scored(task, num_rows=6000)
    by_influence = fast(name, rows)
    monkeypatch.setattr(auc, "FEW_ROWS", 10**9)
    each = fast(name, rows)
    assert by_influence != each
    assert by_influence.gain == each.gain
    assert by_influence.high - by_influence.low == pytest.approx(each.high - each.low, rel=0.08)
    assert ends(by_influence.low, by_influence.high)[0] == pytest.approx(ends(each.low, each.high)[0], abs=0.1 * (each.high - each.low))


def test_few_of_a_class_are_computed_for_each_resample_however_many_rows_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = scored("binary", num_rows=6000)
    rare = (np.where(np.arange(6000) % 100 == 0, rows[0], 0.0), *rows[1:])
    monkeypatch.setattr(auc, "roc_influence", None)
    assert math.isfinite(fast("auc", rare).low)


@pytest.mark.parametrize("influence", [auc.roc_influence, auc.precision_influence])
def test_influence_is_the_derivative_by_a_rows_weight(influence: Any) -> None:
    generator = np.random.default_rng(1)
    labels, scores = (generator.random(40) < 0.4).astype(float), generator.integers(0, 15, 40) / 15
    area = auc.weighted_roc_area if influence is auc.roc_influence else auc.weighted_precision_area
    step = 1e-2
    for row in range(40):
        weights = np.ones((2, 40), dtype=np.float32)
        weights[:, row] += (step, -step)
        above, below = area(labels, scores, weights)
        assert influence(labels, scores)[row] == pytest.approx(40 * (above - below) / (2 * step), abs=1e-3)
    assert influence(labels, scores).mean() == pytest.approx(0, abs=1e-12)


def test_weights_are_whole_and_as_many_as_there_are_units() -> None:
    few = np.concatenate(list(resampled_weights(50, 1)))
    assert few.shape == (1000, 50)
    assert (few.sum(axis=1) == 50).all()
    many = np.concatenate(list(resampled_weights(20_000, 1, 100)))
    assert many.shape == (100, 20_000)
    assert many.mean() == pytest.approx(1, abs=0.002)
    assert many.var() == pytest.approx(1, abs=0.005)
    assert (many == 0).mean() == pytest.approx(math.exp(-1), abs=0.001)
    assert np.array_equal(many, np.concatenate(list(resampled_weights(20_000, 1, 100))))


def test_means_of_many_units_spread_as_the_root_of_their_number() -> None:
    values = np.random.default_rng(2).exponential(size=(40_000, 2)) + 1000
    found = resampled_means(values, 3)
    assert found.mean(axis=0) == pytest.approx(values.mean(axis=0), rel=1e-6)
    assert found.std(axis=0) == pytest.approx(values.std(axis=0) / 200, rel=0.08)


def test_parts_add_up_to_the_whole_of_every_resample() -> None:
    found = resampled_parts(np.ones((3000, 1)), np.array([0, 100, 2500]), 1)
    assert found.shape == (1000, 3, 1)
    assert found.sum(axis=1) == pytest.approx(1)
    assert found.mean(axis=0)[:, 0] == pytest.approx([1 / 30, 24 / 30, 5 / 30], rel=0.01)


def test_quantile_of_drawn_values_is_that_of_the_values_written_out() -> None:
    generator = np.random.default_rng(0)
    values, drawn = generator.random(12), generator.multinomial(30, np.full(12, 1 / 12), size=20)
    for share in (0.5, 0.9, 0.99):
        expected = [np.quantile(np.repeat(values, counts), share) for counts in drawn]
        assert regression._quantile(values, drawn, share * 29) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["median_absolute_error", "absolute_error_p99"])
def test_quantiles_of_many_errors_never_leave_the_rows_that_are_drawn_one_by_one(name: str) -> None:
    labels, new, old, _ = scored("regression", num_rows=30_000)
    with np.errstate(invalid="raise"):
        found = compare(name, labels, new, old, None, confidence=0.9999, seed=1)
    assert 0 < found.low < found.gain < found.high < 1


def test_kinds_are_drawn_as_often_as_they_are() -> None:
    drawn = np.concatenate(list(resampled_counts(np.array([1, 0, 99]), 1)))
    assert (drawn.sum(axis=1) == 100).all()
    assert (drawn[:, 1] == 0).all()
    assert drawn[:, 0].mean() == pytest.approx(1, abs=0.1)


def test_another_seed_gives_another_interval_and_the_same_seed_the_same() -> None:
    labels, new, old, _ = scored("binary")
    first, again, other = (compare("auc", labels, new, old, None, confidence=0.95, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.low != other.low


@pytest.mark.parametrize(("task", "name"), [("regression", "rmse"), ("regression", "mae"), ("binary", "auc"), ("language", "perplexity")])
def test_probability_is_the_share_of_resamples_in_which_the_candidate_is_better(task: str, name: str) -> None:
    labels, new, old, groups = scored(task, num_rows=4_000)
    assert compare(name, labels, new, old, groups, confidence=0.95, seed=5).probability == 1.0
    assert compare(name, labels, old, new, groups, confidence=0.95, seed=5).probability == 0.0


def test_interval_has_the_width_that_its_confidence_says() -> None:
    generator = np.random.default_rng(3)
    labels = generator.normal(size=5_000)
    new, old = labels + generator.normal(size=5_000), labels + generator.normal(size=5_000)
    deviation = float(np.std(np.abs(labels - new) - np.abs(labels - old)) / math.sqrt(5_000))
    for confidence, quantile in ((0.8, 1.2816), (0.95, 1.9600)):
        found = compare("mae", labels, new, old, None, confidence=confidence, seed=5)
        assert (found.high - found.low) / 2 == pytest.approx(quantile * deviation, rel=0.08)


def test_wider_confidence_has_a_wider_interval() -> None:
    labels, new, old, _ = scored("binary")
    narrow, wide = (compare("auc", labels, new, old, None, confidence=level, seed=1) for level in (0.8, 0.99))
    assert wide.low < narrow.low < narrow.high < wide.high


def test_own_metric_is_compared_by_the_same_groups_and_more_is_better() -> None:
    def own(labels: np.ndarray, scores: np.ndarray, groups: np.ndarray | None) -> float:
        assert groups is not None
        assert len(np.unique(groups)) == NUM_ROWS // 15
        return float(np.nanmean(group_ndcg(labels, scores, groups, 10)))

    rows = scored("ranking")
    mine, known = fast("taste", rows, own=own), fast("ndcg@10", rows)
    assert mine.gain == pytest.approx(known.gain)
    assert mine.high - mine.low == pytest.approx(known.high - known.low, rel=0.2)


def test_own_metric_called_as_one_of_which_lower_is_better_is_still_one_of_more() -> None:
    labels, new, old, _ = scored("binary")
    found = compare("loss", labels, new, old, None, confidence=0.95, seed=1, own=lambda y, s, _: float(np.corrcoef(y, s)[0, 1]))
    assert found.gain > 0


def test_threshold_decides_who_is_better_by_f1() -> None:
    labels = np.array([1.0, 1, 0, 0] * 50)
    low, high = np.where(labels > 0, 0.3, 0.1), np.where(labels > 0, 0.9, 0.6)
    assert compare("f1", labels, low, high, None, confidence=0.95, seed=1, threshold=0.2).low > 0
    assert compare("f1", labels, low, high, None, confidence=0.95, seed=1, threshold=0.7).high < 0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_scores_that_are_not_finite_compare_to_nothing(bad: float) -> None:
    labels, new, old, _ = scored("binary")
    found = compare("auc", labels, np.where(np.arange(len(new)) == 7, bad, new), old, None, confidence=0.95, seed=1)
    assert math.isnan(found.gain)
    assert math.isnan(found.low)
    assert math.isnan(found.probability)


def test_two_rows_are_compared_and_one_is_not() -> None:
    labels, new, old = np.zeros(2), np.zeros(2), np.ones(2)
    found = compare("mae", labels, new, old, None, confidence=0.95, seed=1)
    assert (found.gain, found.low, found.high, found.num_units) == (1.0, 1.0, 1.0, 2)
    alone = compare("mae", labels[:1], new[:1], old[:1], None, confidence=0.95, seed=1)
    assert (math.isnan(alone.gain), alone.num_units) == (True, 1)


def test_resamples_in_which_both_are_equal_do_not_count_as_better() -> None:
    labels, new = np.zeros(10), np.zeros(10)
    old = np.where(np.arange(10) == 0, 1.0, 0.0)
    found = compare("mae", labels, new, old, None, confidence=0.95, seed=1)
    # The only row that differs is in none of the ten draws with probability 0.9^10.
    assert found.probability == pytest.approx(1 - 0.9**10, abs=0.05)


def test_groups_without_a_value_are_not_counted_as_units() -> None:
    labels, new, old, groups = scored("ranking")
    assert groups is not None
    assert fast("ndcg@10", (np.where(groups < 3, 0.0, labels), new, old, groups)).num_units == NUM_ROWS // 15 - 3


def test_groups_of_a_function_of_means_are_resampled_whole() -> None:
    num_bytes, new, old, _ = scored("language")
    repeated = tuple(np.repeat(values, 9) for values in (num_bytes, new, old))
    by_row = fast("perplexity", (*repeated, None))
    by_group = fast("perplexity", (*repeated, np.repeat(np.arange(NUM_ROWS), 9)))
    assert by_group.gain == by_row.gain
    assert by_group.high - by_group.low == pytest.approx(3 * (by_row.high - by_row.low), rel=0.15)
    assert ends(by_group.low, by_group.high)[0] == pytest.approx(by_group.gain, rel=0.1)


@pytest.mark.parametrize(("num_rows", "is_resampled"), [(1_000, True), (1_001, False)])
def test_areas_of_up_to_a_thousand_rows_are_computed_for_each_resample(
    monkeypatch: pytest.MonkeyPatch, num_rows: int, is_resampled: bool
) -> None:
    drawn: list[int] = []

    def weights(num_units: int, seed: int) -> Any:
        drawn.append(num_units)
        return resampled_weights(num_units, seed, 10)

    monkeypatch.setattr(auc, "resampled_weights", weights)
    fast("auc", scored("binary", num_rows=num_rows))
    assert drawn == [num_rows] * is_resampled


def test_median_of_three_rows_is_resampled_with_all_of_them() -> None:
    labels, new, old = np.zeros(3), np.array([1.0, 2.0, 3.0]), np.full(3, 5.0)
    middle = compare("median_absolute_error", labels, new, old, None, confidence=0.4, seed=1)
    # The median of a resample is 1, 2 or 3 with probabilities 7/27, 13/27 and 7/27.
    assert (middle.low, middle.gain, middle.high) == (3.0, 3.0, 3.0)
    wide = compare("median_absolute_error", labels, new, old, None, confidence=0.8, seed=1)
    assert (wide.low, wide.high) == (2.0, 4.0)
    # The row with the least error is the same one for both.
    alike = compare("median_absolute_error", labels, new, new + 4, None, confidence=0.8, seed=1)
    assert (alike.low, alike.gain, alike.high) == (4.0, 4.0, 4.0)


def test_own_metric_of_many_rows_is_resampled_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def own(labels: np.ndarray, scores: np.ndarray, _: np.ndarray | None) -> float:
        calls.append(len(labels))
        return -float(np.abs(labels - scores).mean())

    rows = scored("regression")
    monkeypatch.setattr(metric, "OWN_CELLS", 150 * NUM_ROWS)
    fast("mine", rows, own=own)
    assert len(calls) == 2 + 2 * 150


def test_class_that_a_resample_lacks_has_no_part_in_its_f1() -> None:
    kinds = np.array([0, 1, 2])
    drawn = np.array([[5, 5, 0], [4, 0, 0]])
    answers = np.array([0, 0, 2])
    assert f1._macro_f1(drawn, kinds, answers, kinds) == pytest.approx([(10 / 15 + 0) / 2, 1.0])
