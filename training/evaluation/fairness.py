"""How differently a model treats the values of a sensitive column: true positive rates and calibration by value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.evaluation.metrics.calibration import calibration_error
from training.evaluation.slices import Values

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Treated:
    """The rows with one value of a sensitive column."""

    value: str
    support: int
    is_small: bool
    true_positive_rate: float | None
    """Share of the positive rows that are found at the threshold; None without a positive row, or for a task without positives."""
    calibration_error: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Fairness:
    """One column. The gaps are between the largest and the smallest of values that are not small; None below two of them."""

    equal_opportunity_gap: float | None
    """Of true positive rates (Hardt et al., 2016)."""
    calibration_gap: float | None
    values: tuple[Treated, ...]


def fairness_of(
    known: Mapping[str, Values], columns: Sequence[str], labels: Floats, scores: Floats, *, task: str, threshold: float, least_support: int
) -> dict[str, Fairness]:
    """Return how each column's values fare, by column.

    Args:
        known: column to the values of [n] rows.
        columns: the sensitive ones.
        labels: [n].
        scores: [n], or [n, classes].
        task: binary has both gaps, multiclass that of calibration, the others neither.
        threshold: at which a probability counts as a yes.
        least_support: rows below which a value judges nothing.
    """
    found = {}
    for column in columns:
        values = known[column]
        treated = []
        for number, (name, support) in enumerate(zip(values.names, values.support.tolist(), strict=True)):
            rows = values.codes == number
            rate, error = _measures(task, labels[rows], scores[rows], threshold)
            treated.append(
                Treated(value=name, support=support, is_small=support < least_support, true_positive_rate=rate, calibration_error=error)
            )
        judged = [one for one in treated if not one.is_small]
        found[column] = Fairness(
            equal_opportunity_gap=_gap([one.true_positive_rate for one in judged]),
            calibration_gap=_gap([one.calibration_error for one in judged]),
            values=tuple(treated),
        )
    return found


def _measures(task: str, labels: Floats, scores: Floats, threshold: float) -> tuple[float | None, float | None]:
    if task not in ("binary", "multiclass") or not np.isfinite(scores).all():
        return None, None
    positive = labels > 0
    rate = float((scores[positive] >= threshold).mean()) if task == "binary" and positive.any() else None
    return rate, calibration_error(labels, scores)


def _gap(numbers: Sequence[float | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return max(known) - min(known) if len(known) > 1 else None
