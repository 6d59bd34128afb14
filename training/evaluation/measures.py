"""Every measure of a model that the record of an evaluation has, over the same rows, by the spec's rules."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from training.errors import DataError
from training.evaluation import leakage_checks
from training.evaluation.bootstrap.paired import Pair
from training.evaluation.bootstrap.sequential import alarm_of
from training.evaluation.custom_metrics import load_own_metrics
from training.evaluation.metrics.metric import CalledMetric, Floats, OwnMetric, ScoredRows
from training.evaluation.metrics.ranking import num_groups_without_positive
from training.evaluation.metrics.registry import metrics_by_name
from training.evaluation.record import Alarm, Comparison, EvaluationRecord, FairnessGaps, Ranking, ResultChecks
from training.evaluation.rows import Ints, LabelledRows
from training.evaluation.slices import by_slice, fairness_of, worst_and_gap
from training.spec.descriptors.metrics import is_lower_better
from training.spec.sections.evaluation import Evaluate

logger = logging.getLogger(__name__)


MAX_IMPORTANCE_ROWS: Final = 4_096
MAX_IMPORTANCE_COLUMNS: Final = 200


class Measures:
    """Measures of scores ([n], or [n, classes]) of the same rows, as parts of the record."""

    def __init__(self, rules: Evaluate, rows: LabelledRows, *, seed: int, lenient: bool = False) -> None:
        """Look up the metrics: those of the task, of the gates, and the spec's own.

        Args:
            lenient: a metric of the spec's own that fails is NaN: it need not take the constant scores of a baseline.

        Raises:
            SpecError: one is not there, or not allowed.
        """
        self._rules = rules
        self._rows = rows
        self._seed = seed
        own = {name: CalledMetric(_lenient(metric) if lenient else metric) for name, metric in load_own_metrics(rules.metrics).items()}
        self._metrics = metrics_by_name(rules.task, (rules.primary, *rules.minimum, *rules.maximum), own)
        self._primary = self._metrics[rules.primary]
        # Of a function of the spec's own more is better, whatever its name.
        self._sign = -1.0 if rules.primary not in own and is_lower_better(rules.primary) else 1.0

    def metrics(self, scores: Floats) -> dict[str, float]:
        """Return every metric.

        Raises:
            DataError: `metric.failed`, one of the spec's own.
        """
        rows = self._scored(scores)
        return {name: metric.measured(rows) for name, metric in self._metrics.items()}

    def primary(self, scores: Floats) -> float:
        """Return the primary metric alone; raises as `metrics`."""
        return self._primary.measured(self._scored(scores))

    def ranking(self) -> Ranking | None:
        """Return how a ranking counts, and how many groups no metric counts; None for other tasks."""
        rules, rows = self._rules, self._rows
        if rules.task != "ranking" or rows.groups is None:
            return None
        without = num_groups_without_positive(rows.labels, rows.groups)
        return Ranking(gain=rules.gain, num_groups=rows.num_units, num_without_positive=without)

    def compare(self, candidate: Floats, champion: Floats) -> Comparison:
        """Compare by the primary metric; raises as `metrics`."""
        rules, origins = self._rules, self._rows.origins
        least_seconds = rules.block.total_seconds()
        pair = self._pair(candidate, champion)
        return pair.compare(confidence=rules.confidence, seed=self._seed, origins=origins, least_seconds=least_seconds)

    def alarm(self, canary: Floats, champion: Floats) -> Alarm | None:
        """Return the alarm of the primary metric; None where it has no value yet."""
        found, rows = self._pair(canary, champion).influence(), self._rows
        if found is None or rows.origins is None:
            return None
        return alarm_of(*found, rows.origins, rows.groups, confidence=self._rules.confidence)

    def measured(self, candidate: Floats, champion: Floats | None) -> EvaluationRecord:
        """Return what the record says of the scores alone: metrics, comparison, ranking, slices, fairness; raises as `metrics`."""
        rules, rows = self._rules, self._rows
        old = None if champion is None else self._scored(champion)
        slices = by_slice(
            rows.values,
            rules.slices,
            self._primary,
            self._scored(candidate),
            old,
            least_support=rules.slice_support,
            pairs=rules.slice_pairs,
        )
        worst, gap = worst_and_gap(slices, self._sign)
        metrics = self.metrics(candidate)
        return EvaluationRecord(
            metrics=metrics,
            without_value=self._without_value(metrics, candidate),
            champion_metrics={} if champion is None else self.metrics(champion),
            comparison=None if champion is None else self.compare(candidate, champion),
            ranking=self.ranking(),
            slices=tuple(slices),
            worst_slice=worst,
            slice_gap=gap,
            fairness=self.fairness(candidate),
        )

    def _without_value(self, metrics: Mapping[str, float], scores: Floats) -> dict[str, str]:
        """Return the metrics that the labels alone give no value, with the reason why."""
        missing = [name for name, value in metrics.items() if not math.isfinite(value)]
        reasons = {name: self._metrics[name].why_none(self._scored(scores)) for name in missing}
        return {name: why for name, why in reasons.items() if why}

    def fairness(self, scores: Floats) -> dict[str, FairnessGaps]:
        """Return what was measured of each sensitive column."""
        rules, rows = self._rules, self._rows
        return fairness_of(rows.values, rules.sensitive, self._scored(scores), task=rules.task, least_support=rules.slice_support)

    def importance(
        self, predict: Callable[[pd.DataFrame], Floats], read: Callable[[Ints], pd.DataFrame], columns: Sequence[str]
    ) -> dict[str, float] | None:
        """Return by how much the primary metric gets worse for each column shuffled, largest first; None where it has no value.

        It is measured once a column on up to 4,096 rows (whole groups), so a column of little weight may come out below zero. Of two
        columns that say the same, each may look dispensable (Breiman, 2001).

        Args:
            predict: frame to scores.
            read: numbers of these rows, ascending, to the raw rows.
            columns: of the raw rows, those that the model reads; the first 200 are measured.
        """
        generator = np.random.Generator(np.random.SFC64(self._seed))
        numbers = _chosen(generator, self._rows.num_rows, self._rows.groups)
        rows = read(numbers).reset_index(drop=True)

        def measured(changed: pd.DataFrame) -> float:
            return self._sign * self._primary.measured(self._scored(predict(changed), numbers))

        whole = measured(rows)
        if not math.isfinite(whole):
            return None
        found = {}
        for column in columns[:MAX_IMPORTANCE_COLUMNS]:
            changed = rows.copy(deep=False)
            changed[column] = rows[column].iloc[generator.permutation(len(rows))].reset_index(drop=True)
            found[column] = whole - measured(changed)
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))

    def checks(self, scores: Floats, champion: Floats | None) -> ResultChecks:
        """Return `drift` and `constant`."""
        rows = self._rows
        drift = None if champion is None else leakage_checks.prediction_drift(self._rules.task, scores, champion, rows.groups)
        return ResultChecks(drift=drift, constant=leakage_checks.is_constant(scores, rows.groups))

    def _scored(self, scores: Floats, part: Ints | slice = slice(None)) -> ScoredRows:
        """Return scores of the rows, or of a part of them."""
        rules, rows = self._rules, self._rows
        groups = None if rows.groups is None else rows.groups[part]
        return ScoredRows(labels=rows.labels[part], scores=scores, groups=groups, threshold=rules.threshold, gain=rules.gain)

    def _pair(self, candidate: Floats, champion: Floats) -> Pair:
        return Pair(metric=self._primary, sign=self._sign, new=self._scored(candidate), old=self._scored(champion))


def _lenient(own: OwnMetric) -> OwnMetric:
    def value(labels: Floats, scores: Floats, groups: NDArray[np.int64] | None) -> float:
        try:
            return own(labels, scores, groups)
        except DataError as err:
            logger.info("a baseline has no value: %s", err)
            return math.nan

    return value


def _chosen(generator: np.random.Generator, num_rows: int, groups: Ints | None) -> Ints:
    """Choose rows for the importance, rising; of groups whole ones."""
    if num_rows <= MAX_IMPORTANCE_ROWS:
        return np.arange(num_rows)
    if groups is None:
        return np.sort(generator.choice(num_rows, MAX_IMPORTANCE_ROWS, replace=False))
    numbers, sizes = np.unique(groups, return_counts=True)
    order = generator.permutation(len(numbers))
    num_chosen = max(1, int((np.cumsum(sizes[order]) <= MAX_IMPORTANCE_ROWS).sum()))
    return np.flatnonzero(np.isin(groups, numbers[order[:num_chosen]]))
