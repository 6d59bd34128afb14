"""Areas under the ROC and the precision-recall curve: by weights, by slice, and how much each row has to do with them.

The influence of a row is the derivative of an area by the row's weight, times the number of rows (the infinitesimal jackknife,
Jaeckel, 1972; for the ROC area these are DeLong's structural components, DeLong et al., 1988). Its mean is 0, and resampling
influences as one resamples a mean gives the area's bootstrap to first order: what is left out shrinks as one over the rows,
the spread itself as one over their root.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.evaluation.bootstrap.resampling import resampled_means, resampled_weights
from training.evaluation.metrics.class_scores import classes_of, with_all_classes
from training.evaluation.metrics.curves import average_precision
from training.evaluation.metrics.metric import ClassMetric, Metric, Rows

Floats = NDArray[np.float64]
Weights = NDArray[np.float32]

FEW_ROWS: Final = 1_000
"""Up to which areas are computed for each resample; above, from influences, of which little is left out."""
FEW_OF_A_CLASS: Final = 200
"""Rows of the rarer class below which areas are computed for each resample, however many rows there are."""


class _Runs(NamedTuple):
    """Rows of equal scores together, by rising score."""

    order: NDArray[np.int64]
    """[n] rows by rising score."""
    starts: NDArray[np.int64]
    """[runs] where each begins in `order`."""
    of_row: NDArray[np.int64]
    """[n] each row's run."""
    positives: Floats
    """[runs]"""
    negatives: Floats
    """[runs]"""


def roc_area(labels: Floats, scores: Floats) -> float:
    """Return the chance that a positive outranks a negative, ties counting half; NaN for one class."""
    return float(roc_area_by(labels, scores, np.zeros(len(labels), dtype=np.int64), 1)[0])


def roc_area_by(labels: Floats, scores: Floats, codes: NDArray[np.int64], num_slices: int) -> Floats:
    """Return the area of each slice, [slices], NaN where it has one class only: all slices for the price of one sort.

    Args:
        labels: [n], 0 or 1.
        scores: [n].
        codes: [n] number of each row's slice, from 0 to `num_slices` - 1.
    """
    # Labels are counted, so the order of equal scores does not matter: one slice needs no stable sort, which takes twice the time.
    order = np.argsort(scores) if num_slices == 1 else np.lexsort((scores, codes))
    sorted_codes, sorted_scores, sorted_labels = codes[order], scores[order], labels[order]
    if len(order) == 0:
        return np.full(num_slices, np.nan)
    changes = (sorted_scores[1:] != sorted_scores[:-1]) | (sorted_codes[1:] != sorted_codes[:-1])
    starts = np.flatnonzero(np.concatenate([[True], changes]))
    positives = np.add.reduceat(sorted_labels, starts)
    negatives = np.diff(np.append(starts, len(order))) - positives
    run_codes = sorted_codes[starts]
    totals = [np.bincount(run_codes, weights=counts, minlength=num_slices) for counts in (positives, negatives)]
    before = np.concatenate([[0.0], np.cumsum(totals[1])[:-1]])
    below = np.cumsum(negatives) - negatives - before[run_codes]
    pairs = np.bincount(run_codes, weights=positives * (below + 0.5 * negatives), minlength=num_slices)
    with np.errstate(divide="ignore", invalid="ignore"):
        areas: Floats = pairs / (totals[0] * totals[1])
    return areas


def weighted_roc_area(labels: Floats, scores: Floats, weights: Weights) -> Floats:
    """Return the area under each row of weights, [resamples]; NaN where a class has no weight.

    Args:
        labels: [n], 0 or 1.
        scores: [n].
        weights: [resamples, n] whole numbers.
    """
    runs = _runs(labels, scores)
    positive, negative = _weights_of_runs(labels, runs, weights)
    below = np.cumsum(negative, axis=1) - negative
    with np.errstate(divide="ignore", invalid="ignore"):
        areas: Floats = (positive * (below + 0.5 * negative)).sum(axis=1) / (positive.sum(axis=1) * negative.sum(axis=1))
    return areas


def weighted_precision_area(labels: Floats, scores: Floats, weights: Weights) -> Floats:
    """Return the average precision under each row of weights, [resamples]; arguments as `weighted_roc_area`."""
    positive, negative = _weights_of_runs(labels, _runs(labels, scores), weights)
    found, missed = (np.cumsum(part[:, ::-1], axis=1)[:, ::-1] for part in (positive, negative))
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.where(found + missed > 0, found / (found + missed), 0.0)
        areas: Floats = (positive * precision).sum(axis=1) / positive.sum(axis=1)
    return areas


def roc_influence(labels: Floats, scores: Floats) -> Floats:
    """Return each row's influence on the ROC area, [n], for labels of both classes."""
    runs = _runs(labels, scores)
    num_positives, num_negatives = runs.positives.sum(), runs.negatives.sum()
    # Share of the other class that each row is on the right side of: DeLong's V10 for a positive, V01 for a negative.
    outranked = (np.cumsum(runs.negatives) - 0.5 * runs.negatives) / num_negatives
    outranking = 1 - (np.cumsum(runs.positives) - 0.5 * runs.positives) / num_positives
    area = float((runs.positives * outranked).sum() / num_positives)
    positive = (outranked - area)[runs.of_row] * len(labels) / num_positives
    negative = (outranking - area)[runs.of_row] * len(labels) / num_negatives
    influence: Floats = np.where(labels > 0, positive, negative)
    return influence


def precision_influence(labels: Floats, scores: Floats) -> Floats:
    """Return each row's influence on the average precision, [n], for labels of both classes."""
    runs = _runs(labels, scores)
    num_positives = runs.positives.sum()
    found, missed = (np.cumsum(part[::-1])[::-1] for part in (runs.positives, runs.negatives))
    precision = found / (found + missed)
    area = float((runs.positives * precision).sum() / num_positives)
    # A row changes the precision at every positive that it outranks or ties with: a positive lifts it, a negative lowers it.
    lift, drop = (np.cumsum(runs.positives * part / (found + missed) ** 2) for part in (missed, found))
    positive = (precision - area + lift)[runs.of_row]
    negative = -drop[runs.of_row]
    influence: Floats = np.where(labels > 0, positive, negative) * len(labels) / num_positives
    return influence


def _runs(labels: Floats, scores: Floats) -> _Runs:
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    begins = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    starts = np.flatnonzero(begins)
    of_row = np.empty(len(order), dtype=np.int64)
    of_row[order] = np.cumsum(begins) - 1
    positives = np.add.reduceat(labels[order], starts)
    return _Runs(order, starts, of_row, positives, np.diff(np.append(starts, len(order))) - positives)


def _weights_of_runs(labels: Floats, runs: _Runs, weights: Weights) -> tuple[Floats, Floats]:
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

    def influence(self, rows: Rows) -> Floats:
        labels, scores = rows.labels, rows.scores
        if scores.ndim == 1:
            return self._influence((labels > 0).astype(np.float64), scores)
        classes, wide = classes_of(labels).tolist(), with_all_classes(scores, labels)
        return np.asarray(np.mean([self._influence((labels == number).astype(np.float64), wide[:, number]) for number in classes], axis=0))

    def differences(self, new: Rows, old: Rows, seed: int) -> Floats:
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
                found += (self._influence(some, after) - self._influence(some, before)) / len(classes)
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
    def part_values(self, rows: Rows, codes: NDArray[np.int64], support: NDArray[np.int64]) -> Floats | None:
        if rows.scores.ndim == 2:
            return None
        inside = np.flatnonzero(codes >= 0)
        return roc_area_by(rows.labels[inside], rows.scores[inside], codes[inside], len(support))


METRICS: Final[Mapping[str, Metric]] = {
    "auc": RocArea(roc_area, roc_influence, weighted_roc_area),
    "pr_auc": Area(average_precision, precision_influence, weighted_precision_area),
}
