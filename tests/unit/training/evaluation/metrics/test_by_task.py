"""Metrics and intervals against plain references."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, f1_score, ndcg_score, roc_auc_score

from benchmarks.scored import compare, group_ndcg, group_recall, group_reciprocal_rank, metric_value, score_metrics
from training.evaluation.metrics.auc import roc_area, roc_area_by, roc_influence, weighted_precision_area, weighted_roc_area
from training.evaluation.metrics.language import bits_per_byte, perplexity
from training.spec.descriptors.metrics import metrics_of

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


def test_weighted_average_precision_with_ties_is_that_of_a_plain_reference() -> None:
    labels, scores = (RNG.random(60) < 0.3).astype(float), RNG.integers(0, 9, 60).astype(float)
    weights = RNG.integers(0, 4, (5, 60)).astype(float)
    expected = [average_precision_score(labels, scores, sample_weight=row) for row in weights]
    assert weighted_precision_area(labels, scores, weights.astype(np.float32)) == pytest.approx(expected)


def test_area_by_slice_is_that_of_each_slice_alone() -> None:
    labels, scores = (RNG.random(300) < 0.4).astype(float), RNG.integers(0, 20, 300).astype(float)
    codes = RNG.integers(-1, 4, 300).astype(np.int16)
    labels[codes == 2] = 1.0
    found = roc_area_by(labels, scores, codes, np.bincount(codes[codes >= 0], minlength=6))
    assert found[[0, 1, 3]] == pytest.approx([roc_auc_score(labels[codes == n], scores[codes == n]) for n in (0, 1, 3)])
    assert np.isnan(found[[2, 4, 5]]).all()
    assert roc_area(labels, scores) == pytest.approx(roc_auc_score(labels, scores))


def test_areas_hold_few_bytes_of_each_row() -> None:
    num = 200_000
    labels, scores, codes = (RNG.random(num) < 0.1).astype(float), RNG.random(num), np.zeros(num, dtype=np.int16)
    codes[: num // 2] = 1
    limits: list[tuple[Callable[[], object], int]] = [
        (lambda: roc_area(labels, scores), 40),
        (lambda: roc_area_by(labels, scores, codes, np.array([num // 2, num // 2])), 50),
        (lambda: roc_influence(labels, scores), 70),
    ]
    for measured, bytes_per_row in limits:
        tracemalloc.start()
        measured()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < bytes_per_row * num, (peak / num, bytes_per_row)


def test_recall_is_the_share_of_positives_among_the_first() -> None:
    labels = np.array([1.0, 0, 1, 1, 0, 0])
    scores = np.array([9.0, 8, 7, 1, 5, 4])
    found = group_recall(labels, scores, np.array([0, 0, 0, 0, 1, 1]), 2)
    assert found[0] == pytest.approx(1 / 3)
    assert math.isnan(found[1])


def test_ranking_has_the_cuts_that_the_rules_name() -> None:
    labels, scores, groups = (RNG.random(90) < 0.4).astype(float), RNG.random(90), np.arange(90) // 9
    found = score_metrics("ranking", "ndcg@3", labels, scores, groups, also=("recall@5",))
    assert set(found) == {"ndcg@10", "mrr", "recall@10", "ndcg@3", "recall@5"}
    assert found["recall@10"] == 1
    assert found["recall@5"] < 1


def test_binary_metrics_follow_the_threshold_where_it_matters() -> None:
    labels = np.array([1.0, 1, 0, 0])
    scores = np.array([0.9, 0.4, 0.3, 0.1])
    strict, mild = (score_metrics("binary", "auc", labels, scores, None, threshold=limit) for limit in (0.5, 0.35))
    assert (strict["f1"], mild["f1"]) == (pytest.approx(2 / 3), 1)
    assert strict["brier"] == mild["brier"] == pytest.approx((0.01 + 0.36 + 0.09 + 0.01) / 4)
    assert strict["pr_auc"] == 1
    assert strict["calibration_error"] == pytest.approx((0.1 + 0.6 + 0.3 + 0.1) / 4)


def test_multiclass_metrics_are_macro_and_know_classes_that_the_model_never_saw() -> None:
    labels = np.array([0.0, 0, 1, 1, 2, 2])
    scores = np.array([[0.8, 0.2], [0.6, 0.4], [0.3, 0.7], [0.55, 0.45], [0.5, 0.5], [0.9, 0.1]])
    found = score_metrics("multiclass", "accuracy", labels, scores, None)
    assert set(found) == set(metrics_of("multiclass"))
    assert found["accuracy"] == 0.5
    assert found["f1"] == pytest.approx(f1_score(labels, [0, 0, 1, 0, 0, 0], average="macro"))
    first, second = (roc_auc_score(labels == number, scores[:, number]) for number in (0, 1))
    # Of a class that is always given 0, every pair is a tie.
    assert found["auc"] == pytest.approx((first + second + 0.5) / 3)
    assert found["log_loss"] == pytest.approx(-np.mean(np.log([0.8, 0.6, 0.7, 0.45, 1e-7, 1e-7])))
    assert found["brier"] == pytest.approx(np.mean([0.08, 0.32, 0.18, 0.605, 1.5, 1.82]))
    # The likeliest classes have 0.8, 0.6, 0.7 and are right, 0.55 and 0.5 in one bin, and 0.9, and are wrong.
    assert found["calibration_error"] == pytest.approx((0.2 + 0.4 + 0.3 + 0.55 + 0.5 + 0.9) / 6)


def test_regression_metrics_are_of_the_errors() -> None:
    labels, scores = np.zeros(101), np.arange(101.0) * np.where(np.arange(101) % 2, 1, -1)
    found = score_metrics("regression", "rmse", labels, scores, None)
    assert found == pytest.approx(
        {
            "rmse": math.sqrt(np.mean(np.arange(101) ** 2)),
            "mae": 50,
            "median_absolute_error": 50,
            "absolute_error_p90": 90,
            "absolute_error_p99": 99,
            "bias": -50 / 101,
        }
    )


def test_language_metrics_are_of_tokens_and_of_their_bytes() -> None:
    losses, num_bytes = np.full(4, math.log(8)), np.array([1.0, 2, 4, 5])
    found = score_metrics("language", "loss", num_bytes, losses, None)
    assert found == pytest.approx({"loss": math.log(8), "perplexity": 8, "bits_per_byte": 1})
    assert perplexity(np.array([1e4])) == math.inf
    assert math.isnan(bits_per_byte(losses, np.zeros(4)))


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression", "ranking"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_one_score_that_is_not_finite_leaves_no_metric_a_value(task: str, bad: float) -> None:
    labels = np.tile([0.0, 1, 0, 1, 0], 8)
    scores = RNG.random((40, 2)) if task == "multiclass" else RNG.random(40)
    scores[3] = bad
    groups = np.arange(40) // 8 if task == "ranking" else None
    assert all(math.isnan(value) for value in score_metrics(task, metrics_of(task)[0], labels, scores, groups).values())


def test_own_metric_is_asked_with_labels_scores_and_groups() -> None:
    labels, scores, groups = np.array([0.0, 1]), np.array([0.3, 0.8]), np.array([0, 0])
    found = score_metrics("ranking", "taste", labels, scores, groups, own={"taste": lambda y, s, g: float((y * s).sum() + g.sum())})
    assert found["taste"] == pytest.approx(0.8)
    assert math.isnan(metric_value("taste", labels, np.array([0.3, math.nan]), groups, own=lambda *_: 1.0))
