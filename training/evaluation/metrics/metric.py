"""What a metric is: its value on rows, what each unit adds to it, and how two models' difference is resampled.

Where a metric has no value it is NaN, which gates reject. Whether the labels alone are the cause (one class only, no group with a positive
label) is the metric's to say: such rows are not judged by it. No metric is computed a
thousand times over: a mean comes from weights, and each other kind of metric has its own plan. Only a user's function is
called for each resample.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from training.evaluation.bootstrap.influence import Influence
from training.evaluation.bootstrap.resampling import NUM_RESAMPLES, resampled_means
from training.evaluation.metrics.class_scores import with_all_classes
from training.evaluation.metrics.ranking import RankedRows, dense_groups
from training.spec.sections.evaluation import Gain

Floats = NDArray[np.float64]
Groups = NDArray[np.int64]
OwnMetric = Callable[[Floats, Floats, Groups | None], float]
"""(labels, scores, groups) to a number; higher is better."""

NAN: Final = float("nan")
OWN_CELLS: Final = 200_000_000
"""Rows that a function of a user's own may see over all resamples; above, there are fewer than 1,000, and never below 100."""
LEAST_OWN: Final = 100


@dataclass(frozen=True, kw_only=True)
class ScoredRows:
    """One model's scores of rows, and all that a metric depends on."""

    labels: Floats
    """[n]: 0 or 1 for binary, a gain for ranking, the class from 0 for multiclass, bytes of a token for language."""
    scores: Floats
    """[n]: probabilities for binary; [n, classes] probabilities for multiclass; nats of a token for language. Finite."""
    groups: Groups | None = None
    """[n] for ranking."""
    threshold: float = 0.5
    """At which a probability counts as a yes."""
    gain: Gain = "linear"
    """Of a label in NDCG."""

    def at(self, part: NDArray[np.int64]) -> Self:
        """Return the rows with these numbers."""
        groups = None if self.groups is None else self.groups[part]
        return replace(self, labels=self.labels[part], scores=self.scores[part], groups=groups)

    @cached_property
    def ranked(self) -> RankedRows:
        """The rows as metrics of ranked groups see them, for rows that have groups."""
        if self.groups is None:
            raise ValueError("rows without groups are not ranked")
        return RankedRows(labels=self.labels, scores=self.scores, groups=self.groups, gain=self.gain)


class Metric(ABC):
    """One metric. A new one has `value`, and either `unit_values` or both `influence` and `differences`."""

    is_of_groups: bool = False
    """Whether its units are groups: its unit values are by group."""

    def measured(self, rows: ScoredRows) -> float:
        """Return the metric of rows, NaN where it has no value, a score is not finite, or there is no row."""
        return self.value(rows) if len(rows.labels) and np.isfinite(rows.scores).all() else NAN

    def why_none(self, rows: ScoredRows) -> str:
        """Return why the labels and groups of these rows give no value, whatever the scores; empty where some scores have one."""
        return ""

    @abstractmethod
    def value(self, rows: ScoredRows) -> float:
        """Return the metric of at least one row with finite scores, NaN where it has no value."""

    def unit_values(self, rows: ScoredRows) -> Floats | None:
        """Return the value of each unit (group, or row) where their mean is the metric, NaN for units without one; else None."""
        return None

    def influence(self, rows: ScoredRows) -> Floats:
        """Return each row's influence on the metric, [n], up to a constant, where it is not a mean of units (see `Influence`)."""
        raise NotImplementedError(f"{type(self).__name__} has neither unit values nor an influence by row")

    def differences(self, new: ScoredRows, old: ScoredRows, seed: int) -> Floats:
        """Return the new value less the old one for each resample of the units, [resamples], in the metric's units.

        Args:
            new, old: two models' scores of the same rows.
            seed: of the resamples.
        """
        values = [self.unit_values(rows) for rows in (new, old)]
        if values[0] is None or values[1] is None:
            raise NotImplementedError(f"{type(self).__name__} has neither unit values nor a plan for resampling")
        found = values[0] - values[1]
        return resampled_means(found[np.isfinite(found)][:, None], seed)[:, 0]

    def part_values(self, rows: ScoredRows, codes: NDArray[np.integer[Any]], support: NDArray[np.int64]) -> Floats | None:
        """Return the metric of each part of the rows by one pass, [parts]; None where there is no way but part by part.

        Args:
            rows: of all parts, and others.
            codes: [n] number of each row's part from 0; -1 for none.
            support: [parts] rows of each.
        """
        units = self.unit_values(rows) if rows.groups is None else None
        if units is None or not np.isfinite(units).all():
            return None
        inside = np.flatnonzero(codes >= 0)
        return np.asarray(np.bincount(codes[inside], weights=units[inside], minlength=len(support)) / support)

    def gain_influence(self, new: ScoredRows, old: ScoredRows, *, sign: float, difference: float) -> Influence:
        """Return each unit's influence on the gain.

        Args:
            new, old: two models' scores of the same rows.
            sign: -1 where lower is better.
            difference: new value less old one.
        """
        units = [self.unit_values(rows) for rows in (new, old)]
        if units[0] is not None and units[1] is not None:
            numbers, values = _known_units(units[0] - units[1], new.groups if self.is_of_groups else None)
            return Influence(rows=numbers, num_units=len(values), values=sign * (values - values.mean()))
        values = sign * (self.influence(new) - self.influence(old))
        return Influence(rows=None, num_units=len(values), values=values - values.mean())


class ClassMetric(Metric):
    """A metric of probabilities, of one class or of several; without a value where the rows have one class only."""

    def why_none(self, rows: ScoredRows) -> str:
        return "one class only" if len(np.unique(rows.labels)) < 2 else ""

    def value(self, rows: ScoredRows) -> float:
        if self.why_none(rows):
            return NAN
        if rows.scores.ndim == 2:
            return self.of_classes(rows.labels, with_all_classes(rows.scores, rows.labels))
        return self.of_probabilities(rows.labels, rows.scores, rows.threshold)

    @abstractmethod
    def of_classes(self, labels: Floats, scores: Floats) -> float:
        """Return the metric of [n, classes] with a column for every label."""

    @abstractmethod
    def of_probabilities(self, labels: Floats, scores: Floats, threshold: float) -> float:
        """Return the metric of the positive class's probabilities, [n]."""


class CalledMetric(Metric):
    """A function of a user's own: the only metric that is called for each resample, and again without each block."""

    def __init__(self, function: OwnMetric) -> None:
        self._function = function

    def why_none(self, rows: ScoredRows) -> str:
        """Ask the function for its value of perfect scores: without one, the labels are the cause."""
        num_classes = 0 if rows.scores.ndim == 1 else max(rows.scores.shape[1], int(rows.labels.max()) + 1)
        perfect = np.eye(num_classes)[rows.labels.astype(np.int64)] if num_classes else rows.labels
        known = math.isfinite(self.value(replace(rows, scores=perfect)))
        return "" if known else "no value for perfect predictions either"

    def value(self, rows: ScoredRows) -> float:
        return float(self._function(rows.labels, rows.scores, rows.groups))

    def part_values(self, rows: ScoredRows, codes: NDArray[np.integer[Any]], support: NDArray[np.int64]) -> Floats | None:
        return None

    def differences(self, new: ScoredRows, old: ScoredRows, seed: int) -> Floats:
        labels, groups = new.labels, new.groups
        generator = np.random.Generator(np.random.SFC64(seed))
        num_resamples = int(np.clip(OWN_CELLS // max(1, len(labels)), LEAST_OWN, NUM_RESAMPLES))
        units = _units(groups, len(labels))
        found = np.empty(num_resamples)
        for number in range(num_resamples):
            chosen = generator.integers(0, len(units), size=len(units))
            drawn = chosen if groups is None else np.concatenate([units[unit] for unit in chosen])
            # A group that is drawn twice is two groups.
            again = None if groups is None else np.repeat(np.arange(len(chosen)), [len(units[unit]) for unit in chosen])
            values = [self._function(labels[drawn], rows.scores[drawn], again) for rows in (new, old)]
            found[number] = values[0] - values[1]
        return found

    def gain_influence(self, new: ScoredRows, old: ScoredRows, *, sign: float, difference: float) -> Influence:
        groups = new.groups

        def without(kept: NDArray[np.bool_]) -> float:
            left = None if groups is None else groups[kept]
            values = [self._function(new.labels[kept], rows.scores[kept], left) for rows in (new, old)]
            return values[0] - values[1] - difference

        numbers = None if groups is None else dense_groups(groups)
        num_units = len(new.labels) if numbers is None else int(numbers.max()) + 1
        return Influence(rows=numbers, num_units=num_units, without=without)


def _known_units(differences: Floats, groups: Groups | None) -> tuple[Groups | None, Floats]:
    """Leave out groups without a value: return (dense number of each row's unit, -1 for none; values of the others)."""
    if groups is None:
        return None, differences
    known = np.isfinite(differences)
    numbers = np.where(known, np.cumsum(known) - 1, -1)
    return numbers[dense_groups(groups)], differences[known]


def _units(groups: Groups | None, num_rows: int) -> list[Groups] | range:
    """Return the rows of each group, or the rows."""
    if groups is None:
        return range(num_rows)
    order = np.argsort(groups, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)
