"""Metrics of probabilities that are means over rows: accuracy, the logarithmic loss, and the score of Brier (1950)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from training.evaluation.metrics.class_scores import predicted_class, probability_of_label, with_all_classes
from training.evaluation.metrics.metric import ClassMetric, Floats, Metric, ScoredRows

EPSILON: Final = 1e-7


class Accuracy(ClassMetric):
    def of_classes(self, labels: Floats, scores: Floats) -> float:
        return float(np.mean(predicted_class(scores) == labels))

    def of_probabilities(self, labels: Floats, scores: Floats, threshold: float) -> float:
        raise ValueError("accuracy is of several classes")

    def unit_values(self, rows: ScoredRows) -> Floats | None:
        return np.asarray(predicted_class(rows.scores) == rows.labels, dtype=np.float64)


class LogLoss(ClassMetric):
    def of_classes(self, labels: Floats, scores: Floats) -> float:
        return float(_log_losses(labels, scores).mean())

    def of_probabilities(self, labels: Floats, scores: Floats, threshold: float) -> float:
        likely = np.clip(scores, EPSILON, 1 - EPSILON)
        return float(-np.mean(np.where(labels > 0, np.log(likely), np.log1p(-likely))))

    def unit_values(self, rows: ScoredRows) -> Floats | None:
        return _log_losses(rows.labels, rows.scores)


class Brier(ClassMetric):
    def of_classes(self, labels: Floats, scores: Floats) -> float:
        return float(_squared_errors(labels, scores).mean())

    def of_probabilities(self, labels: Floats, scores: Floats, threshold: float) -> float:
        return float(np.mean((np.clip(scores, 0, 1) - labels) ** 2))

    def unit_values(self, rows: ScoredRows) -> Floats | None:
        return _squared_errors(rows.labels, rows.scores)


def _log_losses(labels: Floats, scores: Floats) -> Floats:
    likely = np.clip(probability_of_label(labels, scores), EPSILON, 1 - EPSILON)
    return np.asarray(-np.log(likely))


def _squared_errors(labels: Floats, scores: Floats) -> Floats:
    if scores.ndim == 1:
        return (labels - scores) ** 2
    wide = with_all_classes(scores, labels)
    likely = wide[np.arange(len(labels)), labels.astype(np.int64)]
    found: Floats = (wide**2).sum(axis=1) - 2 * likely + 1
    return found


METRICS: Final[Mapping[str, Metric]] = {"accuracy": Accuracy(), "log_loss": LogLoss(), "brier": Brier()}
