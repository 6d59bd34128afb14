"""Ranked metrics of tied scores are expected values over all orders of the ties, against scikit-learn and against brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import ndcg_score

from benchmarks.scored import compare, group_ndcg, group_recall, group_reciprocal_rank, metric_value
from training.evaluation.measures import Measures
from training.evaluation.metrics import ranking
from training.evaluation.metrics.metric import ScoredRows
from training.evaluation.metrics.ranking import num_groups_without_positive
from training.evaluation.metrics.registry import metric_of
from training.evaluation.rows import LabelledRows
from training.evaluation.slices import by_slice, values_of
from training.pages.plots import ranking_plots
from training.spec.sections.evaluation import Evaluate

RNG = np.random.default_rng(11)
NAMES = ("ndcg@3", "ndcg@10", "mrr", "recall@3")


@pytest.mark.parametrize("seed", range(40))
def test_rows_are_in_the_order_of_group_falling_score_and_place(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num = int(rng.integers(1, 60))
    # Some have groups of many sizes, some are sorted by group, some have scores that nothing ranks.
    groups = rng.integers(-2, 3 if seed % 4 else 40, num)
    groups = np.sort(groups) if seed % 2 else groups
    scores = rng.choice([0.0, -0.0, 1.0, -np.inf, np.inf, np.nan if seed % 5 == 0 else 2.0], num)
    assert ranking._order(scores, groups).tolist() == np.lexsort((-scores, groups)).tolist()


def brute_force(name: str, labels: np.ndarray, scores: np.ndarray, *, exponential: bool = False) -> float:
    """Average over every order that puts higher scores first."""
    runs = [np.flatnonzero(scores == score) for score in sorted(set(scores), reverse=True)]
    orders = [np.concatenate(parts) for parts in itertools.product(*(list(itertools.permutations(run)) for run in runs))]
    return float(np.mean([plain(name, labels[order], exponential=exponential) for order in orders]))


def plain(name: str, ordered: np.ndarray, *, exponential: bool) -> float:
    kind, _, cut = name.partition("@")
    if kind == "mrr":
        return 1.0 / (1 + int(np.flatnonzero(ordered > 0)[0]))
    if kind == "recall":
        return float((ordered[: int(cut)] > 0).sum() / (ordered > 0).sum())
    gains = 2.0**ordered - 1 if exponential else ordered
    discounts = 1 / np.log2(np.arange(len(ordered)) + 2.0)
    best = np.sort(gains)[::-1]
    return float((gains * discounts)[: int(cut)].sum() / (best * discounts)[: int(cut)].sum())


@pytest.mark.parametrize("name", NAMES)
def test_tied_scores_have_the_mean_over_all_orders_of_the_ties(name: str) -> None:
    groups = np.repeat(np.arange(12), 6)
    labels, scores = RNG.integers(0, 3, 72).astype(float), RNG.integers(0, 3, 72).astype(float)
    labels[::6] = 1.0
    shuffled = RNG.permutation(72)
    found = metric_of(name).unit_values(ScoredRows(labels=labels[shuffled], scores=scores[shuffled], groups=groups[shuffled]))
    assert found is not None
    assert found is not None
    expected = [brute_force(name, labels[groups == number], scores[groups == number]) for number in range(12)]
    assert found == pytest.approx(expected, rel=1e-12)


def test_exponential_gain_is_two_to_the_label_less_one_under_ties_too() -> None:
    labels, scores = np.array([0.0, 3, 1, 2, 0, 1]), np.array([2.0, 1, 1, 1, 0, 2])
    found = group_ndcg(labels, scores, np.zeros(6, dtype=np.int64), 4, gain="exponential")
    assert found[0] == pytest.approx(brute_force("ndcg@4", labels, scores, exponential=True))
    assert found[0] != pytest.approx(group_ndcg(labels, scores, np.zeros(6, dtype=np.int64), 4)[0], abs=1e-3)


@pytest.mark.parametrize("cut", [1, 3, 10])
def test_ndcg_of_tied_scores_is_that_of_scikit_learn(cut: int) -> None:
    groups = np.repeat(np.arange(20), 15)
    labels, scores = RNG.integers(0, 4, 300).astype(float), RNG.integers(0, 4, 300).astype(float)
    expected = [ndcg_score([labels[groups == n]], [scores[groups == n]], k=cut) for n in range(20)]
    assert group_ndcg(labels, scores, groups, cut) == pytest.approx(expected)


def test_constant_scores_on_rows_sorted_by_label_gain_nothing_from_the_order_of_the_file() -> None:
    labels = np.sort(RNG.random(40) < 0.3)[::-1].astype(float)
    scores, groups = np.zeros(40), np.zeros(40, dtype=np.int64)
    assert group_ndcg(labels, scores, groups, 10)[0] == pytest.approx(ndcg_score([labels], [scores], k=10))
    for name in NAMES:
        assert metric_value(name, labels, scores, groups) == pytest.approx(metric_value(name, labels[::-1], scores, groups))
        assert metric_value(name, labels, scores, groups) < 0.9


def test_the_reciprocal_rank_of_a_long_tie_keeps_its_precision() -> None:
    labels = np.zeros(200_000)
    labels[:3] = 1.0
    found = group_reciprocal_rank(labels, np.zeros(200_000), np.zeros(200_000, dtype=np.int64))[0]
    # Three uniform places: the smallest has the density 3 (1 - x)^2, cut off below one row.
    places = np.arange(1, 200_000 - 1)
    exact = sum(math.comb(200_000 - int(j), 2) / math.comb(200_000, 3) / int(j) for j in places[::1][:50_000])
    rest = sum(3 * (1 - j / 200_000) ** 2 / 200_000 / j for j in range(50_001, 199_999))
    assert found == pytest.approx(exact + rest, rel=1e-4)


def test_no_rows_and_groups_without_a_positive_label_have_no_value() -> None:
    none = np.empty(0)
    for found in (group_ndcg(none, none, none.astype(np.int64), 3), group_reciprocal_rank(none, none, none.astype(np.int64))):
        assert len(found) == 0
    labels, scores, groups = np.array([0.0, 0, 1, 0]), np.zeros(4), np.array([7, 7, 9, 9])
    for values in (
        group_ndcg(labels, scores, groups, 2),
        group_reciprocal_rank(labels, scores, groups),
        group_recall(labels, scores, groups, 1),
    ):
        assert math.isnan(values[0])
        assert math.isfinite(values[1])
    assert num_groups_without_positive(labels, groups) == 1


def test_slices_importance_comparison_and_curves_do_not_depend_on_the_order_of_tied_rows() -> None:
    groups = np.repeat(np.arange(30), 8)
    labels, scores = (RNG.random(240) < 0.3).astype(float), RNG.integers(0, 2, 240).astype(float)
    better = scores + labels * (RNG.random(240) < 0.5)
    frame = pd.DataFrame({"place": np.repeat(RNG.integers(0, 3, 30), 8), "score": scores})

    def measured(order: np.ndarray) -> tuple[list[float], dict[str, str]]:
        some = frame.iloc[order].reset_index(drop=True)
        new, old = (ScoredRows(labels=labels[order], scores=part[order], groups=groups[order]) for part in (better, scores))
        slices = by_slice({"place": values_of(some["place"])}, ("place",), metric_of("ndcg@3"), new, old, least_support=1)
        found = compare("mrr", labels[order], better[order], scores[order], groups[order], confidence=0.95, seed=1)
        plots = ranking_plots(labels[order], {"candidate": scores[order]}, groups[order])
        sliced = [value for part in slices for value in (part.candidate, part.champion or 0.0)]
        return [*sliced, found.gain, found.low, found.high], plots

    # Rows change places inside their group only, so that the resampled groups stay the same.
    reordered = np.concatenate([number * 8 + RNG.permutation(8) for number in range(30)])
    (numbers, plots), (others, other_plots) = measured(np.arange(240)), measured(reordered)
    assert numbers == pytest.approx(others)
    assert plots == other_plots
    rules = Evaluate.model_validate({"task": "ranking", "primary": "ndcg@3"})
    measures = Measures(rules, LabelledRows(labels=np.sort(labels)[::-1].copy(), groups=groups), seed=1)
    constant = measures.importance(lambda some: np.zeros(len(some)), frame.iloc.__getitem__, ["score"])
    assert constant == {"score": 0.0}
