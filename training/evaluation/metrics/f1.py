"""The harmonic mean of precision and recall; of several classes the mean over those that exist."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from training.evaluation.bootstrap.resampling import resampled_counts
from training.evaluation.metrics.class_scores import classes_of, predicted_class
from training.evaluation.metrics.metric import ClassMetric, Floats, Metric, ScoredRows

Numbers = NDArray[np.int64]


class F1(ClassMetric):
    def of_classes(self, labels: Floats, scores: Floats) -> float:
        predicted = predicted_class(scores)
        return float(np.mean([_f1(labels == number, predicted == number) for number in np.union1d(classes_of(labels), predicted)]))

    def of_probabilities(self, labels: Floats, scores: Floats, threshold: float) -> float:
        return _f1(labels > 0, scores >= threshold)

    def influence(self, rows: ScoredRows) -> Floats:
        """F1 of a class is 2 TP / (rows of the class + answers of the class)."""
        labels, truth, answers = rows.labels, rows.labels.astype(np.int64), _answers(rows)
        classes = np.array([1]) if rows.scores.ndim == 1 else np.union1d(truth, answers)
        found = np.zeros(len(labels))
        for number in classes:
            is_truth, is_answer = truth == number, answers == number
            total = is_truth.sum() + is_answer.sum()
            if total:
                value = 2 * (is_truth & is_answer).sum() / total
                part = 2.0 * (is_truth & is_answer) - value * (is_truth.astype(np.float64) + is_answer)
                found += part * len(labels) / total / len(classes)
        return found

    def differences(self, new: ScoredRows, old: ScoredRows, seed: int) -> Floats:
        """Resample the kinds of rows that there are: by label and both models' answers."""
        truth, answers = new.labels.astype(np.int64), [_answers(rows) for rows in (new, old)]
        classes = np.array([1]) if new.scores.ndim == 1 else np.unique(np.concatenate([truth, *answers]))
        kinds, counts = np.unique(np.stack([truth, *answers], axis=1), axis=0, return_counts=True)
        chunks = []
        for drawn in resampled_counts(counts, seed):
            after, before = (_macro_f1(drawn, kinds[:, 0], kinds[:, column], classes) for column in (1, 2))
            chunks.append(after - before)
        return np.concatenate(chunks)


def _answers(rows: ScoredRows) -> Numbers:
    """Return the class that each row is given, [n]."""
    return (rows.scores >= rows.threshold).astype(np.int64) if rows.scores.ndim == 1 else predicted_class(rows.scores)


def _f1(positive: NDArray[np.bool_], predicted: NDArray[np.bool_]) -> float:
    """Return the harmonic mean of precision and recall, 0 where nothing is positive and nothing is predicted so."""
    hits, total = int((positive & predicted).sum()), int(positive.sum()) + int(predicted.sum())
    return 2 * hits / total if total else 0.0


def _macro_f1(drawn: Numbers, labels: Numbers, answers: Numbers, classes: Numbers) -> Floats:
    """Return the mean F1 over classes that a resample has, [resamples]; `drawn` is [resamples, kinds], the others [kinds] or [classes]."""
    hits = np.stack([drawn[:, (labels == number) & (answers == number)].sum(axis=1) for number in classes], axis=1)
    of_label = np.stack([drawn[:, labels == number].sum(axis=1) for number in classes], axis=1)
    of_answer = np.stack([drawn[:, answers == number].sum(axis=1) for number in classes], axis=1)
    there = of_label + of_answer > 0
    values = np.where(there, 2 * hits / np.maximum(of_label + of_answer, 1), 0.0)
    means: Floats = values.sum(axis=1) / np.maximum(there.sum(axis=1), 1)
    return means


METRICS: Final[Mapping[str, Metric]] = {"f1": F1()}
