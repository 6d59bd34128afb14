"""Areas under the ROC and the precision-recall curve: by weights, by slice, and how much each row has to do with them.

The influence of a row is the derivative of an area by the row's weight, times the number of rows (the infinitesimal jackknife,
Jaeckel, 1972; for the ROC area these are DeLong's structural components, DeLong et al., 1988). Its mean is 0, and resampling
influences as one resamples a mean gives the area's bootstrap to first order: what is left out shrinks as one over the rows,
the spread itself as one over their root.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.evaluation.bootstrap.resampling import resampled_means, resampled_weights
from training.evaluation.metrics.class_scores import classes_of, with_all_classes
from training.evaluation.metrics.curves import average_precision
from training.evaluation.metrics.metric import ClassMetric, Floats, Metric, ScoredRows

Weights = NDArray[np.float32]

FEW_ROWS: Final = 1_000
"""Up to which areas are computed for each resample; above, from influences, of which little is left out."""
FEW_OF_A_CLASS: Final = 200
"""Rows of the rarer class below which areas are computed for each resample, however many rows there are."""


class _EqualScores(NamedTuple):
    """Rows of equal scores together, by rising score."""

    order: NDArray[np.int64]
    """[n] rows by rising score."""
    starts: NDArray[np.int64]
    """[runs] where each begins in `order`."""


class _Counts(NamedTuple):
    """How many rows of each class have equal scores, by rising score."""

    of_row: NDArray[np.int32]
    """[n] each row's run."""
    positives: Floats
    """[runs]"""
    negatives: Floats
    """[runs]"""


def roc_area(labels: Floats, scores: Floats) -> float:
    """Return the chance that a positive outranks a negative, ties counting half; NaN for one class.

    Beside its arguments it holds about 30 bytes per row. The pairs are counted in integers, so the order of the rows changes nothing.
    """
    # Labels are counted, so the order of equal scores does not matter: a sort that is not stable takes half the time.
    order = np.argsort(scores)
    is_positive, ordered = (labels > 0)[order], scores[order]
    del order
    ends = np.append(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1, len(ordered))
    del ordered
    positives = np.append(np.int32(0), np.cumsum(is_positive, dtype=np.int32))[np.append(0, ends)]
    negatives = np.append(0, ends)
    negatives -= positives
    num_positives, num_negatives = int(positives[-1]), int(negatives[-1])
    if num_positives == 0 or num_negatives == 0:
        return math.nan
    # The trapezoidal rule, times 2: each run's positives outrank the negatives before it, and half of its own.
    negatives[1:] += negatives[:-1].copy()
    doubled = int(np.dot(np.diff(positives).astype(np.int64), negatives[1:]))
    return doubled / 2 / (num_positives * num_negatives)


def roc_area_by(labels: Floats, scores: Floats, codes: NDArray[np.integer[Any]], support: NDArray[np.int64]) -> Floats:
    """Return the area of each slice, [slices], NaN where it has one class only.

    Args:
        labels: [n], 0 or 1.
        scores: [n].
        codes: [n] number of each row's slice; -1 for none.
        support: [slices] rows of each.
    """
    order = np.argsort(codes, kind="stable")[len(codes) - int(support.sum()) :]
    parts = np.split(order, np.cumsum(support)[:-1]) if len(support) else []
    return np.array([roc_area(labels[part], scores[part]) for part in parts], dtype=np.float64)


def weighted_roc_area(labels: Floats, scores: Floats, weights: Weights) -> Floats:
    """Return the area under each row of weights, [resamples]; NaN where a class has no weight.

    Args:
        labels: [n], 0 or 1.
        scores: [n].
        weights: [resamples, n] whole numbers.
    """
    positive, negative = _weights_of_runs(labels, _runs(scores), weights)
    below = np.cumsum(negative, axis=1) - negative
    with np.errstate(divide="ignore", invalid="ignore"):
        areas: Floats = (positive * (below + 0.5 * negative)).sum(axis=1) / (positive.sum(axis=1) * negative.sum(axis=1))
    return areas


def weighted_precision_area(labels: Floats, scores: Floats, weights: Weights) -> Floats:
    """Return the average precision under each row of weights, [resamples]; arguments as `weighted_roc_area`."""
    positive, negative = _weights_of_runs(labels, _runs(scores), weights)
    found, missed = (np.cumsum(part[:, ::-1], axis=1)[:, ::-1] for part in (positive, negative))
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.where(found + missed > 0, found / (found + missed), 0.0)
        areas: Floats = (positive * precision).sum(axis=1) / positive.sum(axis=1)
    return areas


def roc_influence(labels: Floats, scores: Floats) -> Floats:
    """Return each row's influence on the ROC area, [n], for labels of both classes; about 50 bytes per row are held."""
    of_row, positives, negatives = _counts(labels, scores)
    num_positives, num_negatives = positives.sum(), negatives.sum()
    # Share of the other class that each row is on the right side of: DeLong's V10 for a positive, V01 for a negative.
    outranked = _until_half(negatives)
    outranked /= num_negatives
    area = float((positives * outranked).sum() / num_positives)
    outranked -= area
    influence: Floats = outranked[of_row]
    del outranked, negatives
    influence *= len(labels)
    influence /= num_positives
    outranking = _until_half(positives)
    outranking /= num_positives
    np.subtract(1, outranking, out=outranking)
    outranking -= area
    is_negative = ~(labels > 0)
    influence[is_negative] = outranking[of_row[is_negative]] * len(labels) / num_negatives
    return influence


def _until_half(counts: Floats) -> Floats:
    """Return the rows before each run and half of its own, [runs]."""
    found: Floats = np.cumsum(counts)
    found -= 0.5 * counts
    return found


def precision_influence(labels: Floats, scores: Floats) -> Floats:
    """Return each row's influence on the average precision, [n], for labels of both classes."""
    of_row, positives, negatives = _counts(labels, scores)
    num_positives = positives.sum()
    found, missed = (np.cumsum(part[::-1])[::-1] for part in (positives, negatives))
    del negatives
    precision = found / (found + missed)
    area = float((positives * precision).sum() / num_positives)
    # A row changes the precision at every positive that it outranks or ties with: a positive lifts it, a negative lowers it.
    lift, drop = (np.cumsum(positives * part / (found + missed) ** 2) for part in (missed, found))
    del found, missed, positives
    influence: Floats = (precision - area + lift)[of_row]
    del precision, lift
    is_negative = ~(labels > 0)
    influence[is_negative] = -drop[of_row[is_negative]]
    influence *= len(labels)
    influence /= num_positives
    return influence


def _runs(scores: Floats) -> _EqualScores:
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    return _EqualScores(order, np.append(0, np.flatnonzero(ordered[1:] != ordered[:-1]) + 1))


def _counts(labels: Floats, scores: Floats) -> _Counts:
    order, starts = _runs(scores)
    begins = np.zeros(len(order), dtype=np.bool_)
    begins[starts[1:]] = True
    of_row = np.empty(len(order), dtype=np.int32)
    of_row[order] = np.cumsum(begins, dtype=np.int32)
    positives = np.add.reduceat(labels[order], starts)
    negatives = np.diff(np.append(starts, len(order))) - positives
    return _Counts(of_row, positives, negatives)


def _weights_of_runs(labels: Floats, runs: _EqualScores, weights: Weights) -> tuple[Floats, Floats]:
    """Return the weight of each run's positives and negatives, [resamples, runs] each."""
    ordered = weights[:, runs.order]
    positive = ordered * labels[runs.order].astype(np.float32)
    both = np.add.reduceat(ordered, runs.starts, axis=1, dtype=np.float64)
    found = np.add.reduceat(positive, runs.starts, axis=1, dtype=np.float64)
    return found, both - found


class Area(ClassMetric):
    """An area under a curve; of several classes the mean of the areas of one against the rest."""

    def __init__(
        self,
        area: Callable[[Floats, Floats], float],
        influence: Callable[[Floats, Floats], Floats],
        weighted: Callable[[Floats, Floats, Weights], Floats],
    ) -> None:
        """Args: functions of labels (0 or 1) and scores, [n]: the area, each row's influence on it, and the area under weights."""
        self._area = area
        self._influence = influence
        self._weighted = weighted

    def of_classes(self, labels: Floats, scores: Floats) -> float:
        return float(np.mean([self._area((labels == number).astype(np.float64), scores[:, number]) for number in classes_of(labels)]))

    def of_probabilities(self, labels: Floats, scores: Floats, threshold: float) -> float:
        return float(self._area(labels, scores))

    def influence(self, rows: ScoredRows) -> Floats:
        labels, scores = rows.labels, rows.scores
        if scores.ndim == 1:
            return self._influence((labels > 0).astype(np.float64), scores)
        classes, wide = classes_of(labels).tolist(), with_all_classes(scores, labels)
        return np.asarray(np.mean([self._influence((labels == number).astype(np.float64), wide[:, number]) for number in classes], axis=0))

    def differences(self, new: ScoredRows, old: ScoredRows, seed: int) -> Floats:
        labels = new.labels
        if new.scores.ndim == 1:
            classes, parts = [1], [(new.scores, old.scores)]
        else:
            classes = classes_of(labels).tolist()
            wide = [with_all_classes(rows.scores, labels) for rows in (new, old)]
            parts = [(wide[0][:, number], wide[1][:, number]) for number in classes]
        positives = [(labels == number).astype(np.float64) for number in classes]
        rarest = min(min(some.sum(), len(some) - some.sum()) for some in positives)
        if len(labels) > FEW_ROWS and rarest >= FEW_OF_A_CLASS:
            found, exact = np.zeros(len(labels)), 0.0
            for some, (after, before) in zip(positives, parts, strict=True):
                influence = self._influence(some, after)
                influence -= self._influence(some, before)
                influence /= len(classes)
                found += influence
                exact += (float(self._area(some, after)) - float(self._area(some, before))) / len(classes)
            return resampled_means(found[:, None], seed)[:, 0] + exact
        chunks = []
        for weights in resampled_weights(len(labels), seed):
            by_class = [
                self._weighted(some, after, weights) - self._weighted(some, before, weights)
                for some, (after, before) in zip(positives, parts, strict=True)
            ]
            chunks.append(np.mean(by_class, axis=0))
        return np.concatenate(chunks)


class RocArea(Area):
    def part_values(self, rows: ScoredRows, codes: NDArray[np.integer[Any]], support: NDArray[np.int64]) -> Floats | None:
        return None if rows.scores.ndim == 2 else roc_area_by(rows.labels, rows.scores, codes, support)


METRICS: Final[Mapping[str, Metric]] = {
    "auc": RocArea(roc_area, roc_influence, weighted_roc_area),
    "pr_auc": Area(average_precision, precision_influence, weighted_precision_area),
}
