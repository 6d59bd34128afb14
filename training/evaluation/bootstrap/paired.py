"""How sure a difference is: a paired bootstrap, both models on the same resampled units (Efron and Tibshirani, 1993), and blocks.

The bootstrap takes units (rows, or groups) as independent; the interval by blocks of time, entities or groups (`blocks`) does not.
The comparison has both, and its ends are those of the wider one.

Each metric resamples its difference by its own plan (`training.evaluation.metrics.metric`): none is computed a thousand times
over but a function of a user's own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from training.evaluation.bootstrap.blocks import Origins, block_interval
from training.evaluation.bootstrap.influence import Influence
from training.evaluation.metrics.metric import Metric, ScoredRows
from training.evaluation.record import Blocks, Comparison


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """Two models' scores of the same rows, and the metric that compares them."""

    metric: Metric
    sign: float
    """-1 for a metric of which lower is better."""
    new: ScoredRows
    old: ScoredRows

    def compare(self, *, confidence: float, seed: int, origins: Origins | None = None, least_seconds: float = 86_400.0) -> Comparison:
        """Compare the models by the metric; whole groups are resampled where rows have groups.

        Args:
            confidence: of the two-sided intervals.
            seed: of the resamples.
            origins: when each row happened, and whose it is; without them there is no interval by blocks.
            least_seconds: the shortest block of time.
        """
        num_units, gain = self._num_units(), self._gain()
        if num_units < 2 or not math.isfinite(gain):
            return _comparison(math.nan, math.nan, math.nan, math.nan, num_units, None)
        low, high, probability = 0.0, 0.0, 0.0
        if not np.array_equal(self.new.scores, self.old.scores):
            samples = self.sign * self.metric.differences(self.new, self.old, seed)
            finite = samples[np.isfinite(samples)]
            if len(finite) < len(samples) * 0.9:
                return _comparison(math.nan, math.nan, math.nan, math.nan, num_units, None)
            tail = (1 - confidence) / 2
            low, high = (float(end) for end in np.quantile(finite, [tail, 1 - tail]))
            probability = float((finite > 0).mean())
        blocks = None
        if origins is not None:
            groups = self.new.groups
            blocks = block_interval(self._influence(gain), origins, groups, gain=gain, confidence=confidence, least_seconds=least_seconds)
        return _comparison(gain, low, high, probability, num_units, blocks)

    def influence(self) -> tuple[float, Influence] | None:
        """Return (gain of the new scores, influence of each unit on it), None where the metric has no value."""
        gain = self._gain()
        return (gain, self._influence(gain)) if math.isfinite(gain) else None

    def _gain(self) -> float:
        """Return by how much the new scores are better, NaN where the metric has no value."""
        # Never -0.0, where lower is better.
        return float(self.sign * (self.metric.measured(self.new) - self.metric.measured(self.old))) + 0.0

    def _num_units(self) -> int:
        """Return the rows, or groups where those are resampled; groups without a value do not count."""
        groups = self.new.groups
        if groups is None:
            return len(self.new.labels)
        values = self.metric.unit_values(self.new)
        return len(np.unique(groups)) if values is None else int(np.isfinite(values).sum())

    def _influence(self, gain: float) -> Influence:
        return self.metric.gain_influence(self.new, self.old, sign=self.sign, difference=self.sign * gain)


def _comparison(gain: float, low: float, high: float, probability: float, num_units: int, blocks: Blocks | None) -> Comparison:
    ends = [(low, high)] if blocks is None else [(low, high), (blocks.low, blocks.high)]
    return Comparison(
        gain=gain,
        low=float(np.min([end[0] for end in ends])),
        high=float(np.max([end[1] for end in ends])),
        probability=probability,
        num_units=num_units,
        row_low=low,
        row_high=high,
        blocks=blocks,
        decided_by="blocks" if blocks is not None and not blocks.low >= low else "rows",
    )
