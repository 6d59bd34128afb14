"""What each unit (row, or group) adds to the difference of two models' metrics, so that sums over any blocks of units are known.

The influence of a unit is the derivative of the gain by its weight, times the number of units; its mean is 0 (the infinitesimal
jackknife, Jaeckel, 1972). Means are their own influence, functions of means and F1 are linearised, areas have DeLong's components
(`areas`), quantiles the sign of the error over the density at the quantile (Serfling, 1980, section 2.5; bandwidth of Hall and
Sheather, 1988). A metric of the spec's own is computed again without each block (the delete-a-block jackknife, Künsch, 1989).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from training.evaluation.metrics import auc
from training.evaluation.metrics.by_task import (
    CALIBRATION_BINS,
    QUANTILES,
    calibration_bin,
    classes_of,
    confidence_and_hits,
    is_ranked,
    predicted_class,
    unit_values,
    with_all_classes,
)
from training.spec.sections.evaluation import Gain

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

MAX_OWN_PARTS: Final = 64
"""Blocks of which a metric of the spec's own is computed again without each."""
MAX_PARTS: Final = 2_048
"""Parts of the time axis that sums are formed for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Influence:
    """Units with what each adds to the gain, or a way to compute it for parts of them."""

    rows: Codes | None
    """[n] number of each row's unit; None where the rows are the units, -1 for rows of groups without a value."""
    num_units: int
    values: Floats | None = None
    """[units], of mean 0."""
    without: Callable[[NDArray[np.bool_]], float] | None = None
    """Kept rows, [n], to the gain less that of all rows: where there are no values by unit."""

    @property
    def max_parts(self) -> int:
        """Return how many parts `sums` is affordable for."""
        return MAX_OWN_PARTS if self.values is None else MAX_PARTS

    @property
    def squares(self) -> float | None:
        """Return the sum of the squared values, None where they are not known by unit."""
        return None if self.values is None else float(self.values @ self.values)

    def first_of(self, by_row: NDArray[np.int64]) -> Codes:
        """Return the smallest number of each unit's rows, [units], of numbers by row, [n]."""
        if self.rows is None:
            return by_row
        found = np.full(self.num_units, np.iinfo(np.int64).max)
        known = self.rows >= 0
        np.minimum.at(found, self.rows[known], by_row[known])
        return found

    def sums(self, parts: Codes, num_parts: int) -> Floats:
        """Return the sum of the values of each part, [num_parts], of parts by unit, [units]."""
        if self.values is not None:
            return np.bincount(parts, weights=self.values, minlength=num_parts).astype(np.float64)
        if self.without is None:
            raise ValueError("an influence has values or a way to compute them")
        of_row = parts if self.rows is None else parts[self.rows]
        counts = np.bincount(parts, minlength=num_parts)
        found = np.zeros(num_parts)
        for part in np.flatnonzero(counts):
            # Of a mean, leaving out a part of c units with the sum S moves it by -S / (n - c).
            found[part] = -self.without(of_row != part) * (self.num_units - counts[part])
        return found


def influence_of(
    name: str, labels: Floats, scores: tuple[Floats, Floats], groups: Codes | None, *, threshold: float, gain: Gain, sign: float
) -> Influence:
    """Return the influence on the gain of the first scores over the second by the metric `name`, for finite scores.

    Args:
        labels, scores, groups: as `metrics.score_metrics`.
        threshold: at which a probability counts as a yes.
        gain: of a label in NDCG.
        sign: -1 for metrics of which less is better.
    """
    units = [unit_values(name, labels, some, groups, gain=gain) for some in scores]
    if units[0] is not None and units[1] is not None:
        rows, values = _known_units(units[0] - units[1], groups if is_ranked(name) else None)
        return Influence(rows=rows, num_units=len(values), values=sign * (values - values.mean()))
    new, old = (_linear(name, labels, some, threshold) for some in scores)
    values = sign * (new - old)
    return Influence(rows=None, num_units=len(values), values=values - values.mean())


def _known_units(differences: Floats, groups: Codes | None) -> tuple[Codes | None, Floats]:
    """Leave out groups without a value: return (dense number of each row's unit, -1 for none; values of the others)."""
    if groups is None:
        return None, differences
    known = np.isfinite(differences)
    numbers = np.where(known, np.cumsum(known) - 1, -1)
    return numbers[np.unique(groups, return_inverse=True)[1]], differences[known]


def _linear(name: str, labels: Floats, scores: Floats, threshold: float) -> Floats:
    """Return each row's influence on one model's metric, [n], up to a constant."""
    if name in ("auc", "pr_auc"):
        return _of_areas(name, labels, scores)
    if name == "f1":
        return _of_f1(labels, scores, threshold)
    if name in QUANTILES:
        return _of_quantile(np.abs(labels - scores), QUANTILES[name])
    if name == "calibration_error":
        return _of_calibration(labels, scores)
    if name == "rmse":
        squares = (labels - scores) ** 2
        return np.asarray(squares / (2 * np.sqrt(squares.mean()))) if squares.any() else squares
    if name == "perplexity":
        return np.asarray(scores * np.exp(min(float(scores.mean()), 700.0)))
    if name == "bits_per_byte":
        bits, total = scores / np.log(2), labels.mean()
        return np.asarray((bits - bits.mean() / total * labels) / total)
    raise ValueError(f"{name} has no influence by row")


def _of_areas(name: str, labels: Floats, scores: Floats) -> Floats:
    influence = auc.roc_influence if name == "auc" else auc.precision_influence
    if scores.ndim == 1:
        return influence((labels > 0).astype(np.float64), scores)
    classes, wide = classes_of(labels).tolist(), with_all_classes(scores, labels)
    return np.asarray(np.mean([influence((labels == number).astype(np.float64), wide[:, number]) for number in classes], axis=0))


def _of_f1(labels: Floats, scores: Floats, threshold: float) -> Floats:
    """F1 of a class is 2 TP / (rows of the class + answers of the class); of several classes the mean over those that exist."""
    truth = labels.astype(np.int64)
    answers, classes = ((scores >= threshold).astype(np.int64), np.array([1])) if scores.ndim == 1 else (predicted_class(scores), None)
    if classes is None:
        classes = np.union1d(truth, answers)
    found = np.zeros(len(labels))
    for number in classes:
        is_truth, is_answer = truth == number, answers == number
        total = is_truth.sum() + is_answer.sum()
        if total:
            value = 2 * (is_truth & is_answer).sum() / total
            found += (2.0 * (is_truth & is_answer) - value * (is_truth.astype(np.float64) + is_answer)) * len(labels) / total / len(classes)
    return found


def _of_quantile(errors: Floats, share: float) -> Floats:
    """A row lifts the quantile by share / density where its error lies above it, and lowers it by (1 - share) / density below."""
    num, normal = len(errors), NormalDist()
    point = normal.inv_cdf(share)
    density = normal.pdf(point)
    # Hall and Sheather's bandwidth for a 95 % interval, in shares of the rows.
    width = num ** (-1 / 3) * normal.inv_cdf(0.975) ** (2 / 3) * (1.5 * density**2 / (2 * point**2 + 1)) ** (1 / 3)
    low, high = max(share - width, 0.0), min(share + width, 1.0)
    ends = np.quantile(errors, [low, share, high])
    return np.asarray((share - (errors <= ends[1])) * (ends[2] - ends[0]) / (high - low))


def _of_calibration(labels: Floats, scores: Floats) -> Floats:
    """The error is the sum over bins of |sum of (confidence - hit)| / n: each row counts with the sign of its bin."""
    hits, confidences = confidence_and_hits(labels, scores)
    bins, above = calibration_bin(confidences), confidences - hits
    signs = np.sign(np.bincount(bins, weights=above, minlength=CALIBRATION_BINS))
    return np.asarray(signs[bins] * above)
