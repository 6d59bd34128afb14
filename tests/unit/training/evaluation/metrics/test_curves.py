"""Our metrics and curves against those of scikit-learn, which the stages do not import."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.metrics as reference

from benchmarks.scored import score_metrics
from training.evaluation.metrics.curves import average_precision, precision_recall_curve, roc_curve

RNG = np.random.default_rng(11)
ROWS = 400


def scored(case: str) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and scores: without ties, with many, one positive row, perfect, and the worst possible."""
    labels = (RNG.random(ROWS) < 0.3).astype(float)
    scores = np.clip(0.3 * labels + 0.7 * RNG.random(ROWS), 0, 1)
    if case == "ties":
        scores = np.round(scores, 1)
    if case == "one positive":
        labels = (np.arange(ROWS) == 7).astype(float)
    if case == "perfect":
        scores = 0.25 + labels / 2
    if case == "reversed":
        scores = 0.75 - labels / 2
    if case == "certain":
        scores = np.where(RNG.random(ROWS) < 0.1, 1 - labels, labels)
    return labels, scores


CASES = ["plain", "ties", "one positive", "perfect", "reversed", "certain"]


@pytest.mark.parametrize("case", CASES)
def test_curves_have_the_points_of_the_reference(case: str) -> None:
    labels, scores = scored(case)
    false_rate, true_rate, _ = reference.roc_curve(labels, scores)
    np.testing.assert_allclose(roc_curve(labels, scores), [false_rate, true_rate], rtol=1e-12)
    precision, recall, _ = reference.precision_recall_curve(labels, scores)
    np.testing.assert_allclose(precision_recall_curve(labels, scores), [precision, recall], rtol=1e-12)
    assert average_precision(labels, scores) == pytest.approx(reference.average_precision_score(labels, scores), rel=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_metrics_of_two_classes_are_those_of_the_reference(case: str) -> None:
    labels, scores = scored(case)
    found = score_metrics("binary", "auc", labels, scores, None, threshold=0.4)
    expected = {
        "auc": reference.roc_auc_score(labels, scores),
        "pr_auc": reference.average_precision_score(labels, scores),
        "log_loss": reference.log_loss(labels, np.clip(scores, 1e-7, 1 - 1e-7)),
        "brier": reference.brier_score_loss(labels, scores),
        "f1": reference.f1_score(labels > 0, scores >= 0.4, zero_division=0),
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-12)


def test_f1_is_zero_where_no_row_is_predicted_positive() -> None:
    labels = np.array([0.0, 1, 0, 1])
    assert score_metrics("binary", "auc", labels, labels / 10, None, threshold=0.9)["f1"] == 0


def test_metrics_of_several_classes_are_those_of_the_reference_also_for_a_class_without_rows() -> None:
    labels = RNG.integers(0, 3, ROWS).astype(float)
    scores = RNG.dirichlet(np.ones(4), ROWS)
    found = score_metrics("multiclass", "log_loss", labels, scores, None)
    predicted = scores.argmax(axis=1)
    expected = {
        "auc": np.mean([reference.roc_auc_score(labels == number, scores[:, number]) for number in range(3)]),
        "pr_auc": np.mean([reference.average_precision_score(labels == number, scores[:, number]) for number in range(3)]),
        "f1": reference.f1_score(labels, predicted, average="macro", zero_division=0),
        "accuracy": reference.accuracy_score(labels, predicted),
        "log_loss": reference.log_loss(labels, scores, labels=range(4)),
    }
    assert {name: found[name] for name in expected if name in found} == pytest.approx(
        {name: value for name, value in expected.items() if name in found}, rel=1e-6
    )


def test_metrics_of_numbers_are_those_of_the_reference() -> None:
    labels, scores = RNG.normal(size=ROWS), RNG.normal(size=ROWS)
    found = score_metrics("regression", "rmse", labels, scores, None)
    expected = {
        "rmse": reference.root_mean_squared_error(labels, scores),
        "mae": reference.mean_absolute_error(labels, scores),
        "median_absolute_error": reference.median_absolute_error(labels, scores),
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-12)
