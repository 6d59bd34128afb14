"""Metrics and intervals against plain references."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import ndcg_score, roc_auc_score

from training.evaluation.areas import weighted_roc_area
from training.evaluation.metrics import group_ndcg, group_reciprocal_rank, score_metrics
from training.evaluation.significance import compare

RNG = np.random.default_rng(3)


def test_ndcg_of_each_group_is_that_of_a_plain_reference() -> None:
    sizes = [5, 12, 3, 20]
    groups = np.repeat(np.arange(4), sizes)
    labels, scores = (RNG.random(40) < 0.4).astype(float), RNG.random(40)
    shuffled = RNG.permutation(40)
    found = group_ndcg(labels[shuffled], scores[shuffled], groups[shuffled], 10)
    for number in range(4):
        rows = groups == number
        expected = ndcg_score([labels[rows]], [scores[rows]], k=10) if labels[rows].any() else math.nan
        assert found[number] == pytest.approx(expected, nan_ok=True)


def test_reciprocal_rank_is_that_of_the_first_positive_row() -> None:
    found = group_reciprocal_rank(np.array([0.0, 1, 0, 0, 0]), np.array([3.0, 2, 1, 5, 4]), np.array([0, 0, 0, 1, 1]))
    assert found[0] == 0.5
    assert math.isnan(found[1])


@pytest.mark.parametrize("labels", [np.zeros(10), np.ones(10)])
def test_one_class_has_no_value_and_never_a_silent_zero(labels: np.ndarray) -> None:
    assert all(math.isnan(value) for value in score_metrics("binary", "auc", labels, RNG.random(10), None).values())


def test_ranking_without_a_positive_label_has_no_value() -> None:
    assert math.isnan(score_metrics("ranking", "ndcg@10", np.zeros(4), RNG.random(4), np.array([0, 0, 1, 1]))["ndcg@10"])


def test_weighted_auc_with_ties_is_that_of_a_plain_reference() -> None:
    labels, scores = (RNG.random(60) < 0.5).astype(float), RNG.integers(0, 6, 60).astype(float)
    weights = RNG.integers(0, 4, (5, 60)).astype(float)
    expected = [roc_auc_score(labels, scores, sample_weight=row) for row in weights]
    assert weighted_roc_area(labels, scores, weights.astype(np.float32)) == pytest.approx(expected)


@pytest.mark.parametrize(("name", "grouped"), [("auc", False), ("log_loss", False), ("brier", False), ("ndcg@10", True)])
def test_better_scores_have_an_interval_above_zero_and_worse_ones_below(name: str, grouped: bool) -> None:
    labels = (RNG.random(3000) < 0.4).astype(float)
    good = np.clip(0.5 + 0.35 * (2 * labels - 1) * (RNG.random(3000) < 0.9), 0.01, 0.99)
    bad = RNG.uniform(0.3, 0.7, 3000)
    groups = np.arange(3000) // 10 if grouped else None
    better = compare(name, labels, good, bad, groups, confidence=0.95, seed=1)
    worse = compare(name, labels, bad, good, groups, confidence=0.95, seed=1)
    assert 0 < better.low < better.gain < better.high
    assert worse.high < 0
    assert better == compare(name, labels, good, bad, groups, confidence=0.95, seed=1)


def test_equal_scores_are_no_gain() -> None:
    labels, scores = (RNG.random(500) < 0.4).astype(float), RNG.random(500)
    same = compare("auc", labels, scores, scores, None, confidence=0.95, seed=1)
    assert (same.gain, same.low, same.high, same.probability) == (0, 0, 0, 0)


def test_one_class_compares_to_nothing() -> None:
    found = compare("auc", np.ones(50), RNG.random(50), RNG.random(50), None, confidence=0.95, seed=1)
    assert math.isnan(found.low)
