"""Every measure of a model that the record of an evaluation has, over the same rows, by the spec's rules."""

from __future__ import annotations

import logging
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.errors import DataError
from training.evaluation import checks
from training.evaluation.bootstrap.paired import Comparison, compare, paired_influence
from training.evaluation.bootstrap.sequential import alarm_of
from training.evaluation.custom_metrics import load_own_metrics
from training.evaluation.fairness import fairness_of
from training.evaluation.importance import permutation_importance
from training.evaluation.metrics.by_task import metric_value, score_metrics
from training.evaluation.metrics.metric import OwnMetric
from training.evaluation.metrics.ranking import num_groups_without_positive
from training.evaluation.raw_rows import RawRows
from training.evaluation.rows import Rows
from training.evaluation.slices import by_slice, worst_and_gap
from training.evaluation_record import Alarm, Checks, Fairness, Ranking, Slice
from training.models.predictor import Predictor
from training.spec.sections.evaluation import Evaluate

logger = logging.getLogger(__name__)

Floats = NDArray[np.float64]


class Slices(NamedTuple):
    """Keys of the record about slices."""

    slices: tuple[Slice, ...]
    worst_slice: int | None
    slice_gap: float | None


class Measures:
    """Measures of scores ([n], or [n, classes]) of the same rows."""

    def __init__(self, rules: Evaluate, rows: Rows, *, seed: int, lenient: bool = False) -> None:
        """Look up the spec's own metrics.

        Args:
            lenient: a metric of the spec's own that fails is NaN: it need not take the constant scores of a baseline.

        Raises:
            SpecError: one is not there, or not allowed.
        """
        self._rules = rules
        self._rows = rows
        self._seed = seed
        self._own = load_own_metrics(rules.metrics)
        if lenient:
            self._own = {name: _lenient(own) for name, own in self._own.items()}

    def metrics(self, scores: Floats) -> dict[str, float]:
        """Return every metric of the task, of the gates and of the spec's own.

        Raises:
            DataError: `metric.failed`, one of the spec's own.
        """
        rules, rows = self._rules, self._rows
        also = (*rules.minimum, *rules.maximum)
        return score_metrics(
            rules.task,
            rules.primary,
            rows.labels,
            scores,
            rows.groups,
            threshold=rules.threshold,
            gain=rules.gain,
            also=also,
            own=self._own,
        )

    def primary(self, scores: Floats) -> float:
        """Return the primary metric alone; raises as `metrics`."""
        rules, rows = self._rules, self._rows
        return metric_value(
            rules.primary,
            rows.labels,
            scores,
            rows.groups,
            threshold=rules.threshold,
            gain=rules.gain,
            own=self._own.get(rules.primary),
        )

    def ranking(self) -> Ranking | None:
        """Return how a ranking counts, and how many groups no metric counts; None for other tasks."""
        rules, rows = self._rules, self._rows
        if rules.task != "ranking" or rows.groups is None:
            return None
        without = num_groups_without_positive(rows.labels, rows.groups)
        return Ranking(gain=rules.gain, num_groups=rows.num_units, num_without_positive=without)

    def compare(self, candidate: Floats, champion: Floats) -> Comparison:
        """Compare by the primary metric; raises as `metrics`."""
        rules, rows = self._rules, self._rows
        return compare(
            rules.primary,
            rows.labels,
            candidate,
            champion,
            rows.groups,
            confidence=rules.confidence,
            seed=self._seed,
            threshold=rules.threshold,
            gain=rules.gain,
            own=self._own.get(rules.primary),
            origins=rows.origins,
            least_seconds=rules.block.total_seconds(),
        )

    def alarm(self, canary: Floats, champion: Floats) -> Alarm | None:
        """Return the alarm of the primary metric; None where it has no value yet."""
        rules, rows = self._rules, self._rows
        found = paired_influence(
            rules.primary,
            rows.labels,
            canary,
            champion,
            rows.groups,
            threshold=rules.threshold,
            gain=rules.gain,
            own=self._own.get(rules.primary),
        )
        if found is None or rows.origins is None:
            return None
        return Alarm.model_validate(alarm_of(*found, rows.origins, rows.groups, confidence=rules.confidence))

    def slices(self, candidate: Floats, champion: Floats | None) -> Slices:
        """Return the primary metric by slice."""
        rules, rows = self._rules, self._rows
        found = by_slice(
            rows.values,
            rules.slices,
            primary=rules.primary,
            labels=rows.labels,
            candidate=candidate,
            champion=champion,
            groups=rows.groups,
            least_support=rules.slice_support,
            pairs=rules.slice_pairs,
            threshold=rules.threshold,
            gain=rules.gain,
            own=self._own.get(rules.primary),
        )
        worst, gap = worst_and_gap(found, rules.primary)
        return Slices(slices=tuple(map(Slice.model_validate, found)), worst_slice=worst, slice_gap=gap)

    def fairness(self, scores: Floats) -> dict[str, Fairness]:
        """Return what was measured of each sensitive column."""
        rules, rows = self._rules, self._rows
        found = fairness_of(
            rows.values,
            rules.sensitive,
            rows.labels,
            scores,
            task=rules.task,
            threshold=rules.threshold,
            least_support=rules.slice_support,
        )
        return {column: Fairness.model_validate(fairness) for column, fairness in found.items()}

    def importance(self, predictor: Predictor, raw: RawRows) -> dict[str, float] | None:
        """Return `importance`, by the columns that the model reads; `raw` are the same rows."""
        rules, rows = self._rules, self._rows
        return permutation_importance(
            predictor.predict,
            lambda numbers: raw.at(numbers).frame(predictor.inputs),
            predictor.inputs,
            rows.labels,
            rows.groups,
            primary=rules.primary,
            seed=self._seed,
            threshold=rules.threshold,
            gain=rules.gain,
            own=self._own.get(rules.primary),
        )

    def checks(self, scores: Floats, champion: Floats | None) -> Checks:
        """Return `drift` and `constant`."""
        rows = self._rows
        drift = None if champion is None else checks.prediction_drift(self._rules.task, scores, champion, rows.groups)
        return Checks(drift=drift, constant=checks.is_constant(scores, rows.groups))


def _lenient(own: OwnMetric) -> OwnMetric:
    def value(labels: Floats, scores: Floats, groups: NDArray[np.int64] | None) -> float:
        try:
            return own(labels, scores, groups)
        except DataError as err:
            logger.info("a baseline has no value: %s", err)
            return math.nan

    return value
