"""The areas under the ROC and the precision-recall curve as metrics; `auc` computes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from training.evaluation.bootstrap.resampling import resampled_means, resampled_weights
from training.evaluation.metrics import auc
from training.evaluation.metrics.class_scores import classes_of, with_all_classes
from training.evaluation.metrics.curves import average_precision
from training.evaluation.metrics.metric import ClassMetric, Metric, Rows

Floats = NDArray[np.float64]

FEW_ROWS: Final = 1_000
"""Up to which areas are computed for each resample; above, from influences, of which little is left out."""
FEW_OF_A_CLASS: Final = 200
"""Rows of the rarer class below which areas are computed for each resample, however many rows there are."""


class Area(ClassMetric):
    """An area under a curve; of several classes the mean of the areas of one against the rest."""

    def __init__(
        self,
        area: Callable[[Floats, Floats], float],
        influence: Callable[[Floats, Floats], Floats],
        weighted: Callable[[Floats, Floats, auc.Weights], Floats],
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
        return auc.roc_area_by(rows.labels[inside], rows.scores[inside], codes[inside], len(support))


METRICS: Final[Mapping[str, Metric]] = {
    "auc": RocArea(auc.roc_area, auc.roc_influence, auc.weighted_roc_area),
    "pr_auc": Area(average_precision, auc.precision_influence, auc.weighted_precision_area),
}
