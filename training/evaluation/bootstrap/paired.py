"""How sure a difference is: a paired bootstrap, both models on the same resampled units (Efron and Tibshirani, 1993), and blocks.

The bootstrap takes units (rows, or groups) as independent; the interval by blocks of time, entities or groups (`blocks`) does not.
The comparison has both, and its ends are those of the wider one.

Each metric resamples its difference by its own plan (`training.evaluation.metrics.metric`): none is computed a thousand times
over but a function of a user's own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from training.evaluation.bootstrap.blocks import BlockInterval, Origins, block_interval
from training.evaluation.bootstrap.influence import Influence
from training.evaluation.metrics.by_task import value_of
from training.evaluation.metrics.metric import CalledMetric, Metric, OwnMetric, Rows
from training.evaluation.metrics.registry import metric_of
from training.spec.metrics import is_lower_better
from training.spec.sections.evaluation import Gain

Floats = NDArray[np.float64]
Groups = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """By how much the candidate is better; positive is better for every metric."""

    gain: float
    low: float
    high: float
    """Ends of the wider interval: the lower of both lows, the higher of both highs."""
    probability: float
    """Share of resamples in which the candidate is better."""
    num_units: int
    row_low: float
    row_high: float
    """Ends of the bootstrap's interval over units."""
    blocks: BlockInterval | None
    """None where the times of the rows are unknown."""
    decided_by: Literal["rows", "blocks"]
    """Which interval has the lower low."""


def compare(  # noqa: PLR0913 - one array a role; bundling them would only move the names
    name: str,
    labels: Floats,
    candidate: Floats,
    champion: Floats,
    groups: Groups | None,
    *,
    confidence: float,
    seed: int,
    threshold: float = 0.5,
    gain: Gain = "linear",
    own: OwnMetric | None = None,
    origins: Origins | None = None,
    least_seconds: float = 86_400.0,
) -> Comparison:
    """Compare two models' scores of the same rows by the metric `name`.

    Args:
        labels, candidate, champion: [n], scores of several classes [n, classes]; see `metrics.by_task.score_metrics`.
        groups: [n] for ranking: whole groups are resampled.
        confidence: of the two-sided intervals.
        seed: of the resamples.
        threshold: at which a probability counts as a yes.
        gain: of a label in NDCG.
        own: the metric itself, where it is one of the spec's own.
        origins: when each row happened, and whose it is; without them there is no interval by blocks.
        least_seconds: the shortest block of time.
    """
    pair = _pair(name, labels, candidate, champion, groups, threshold=threshold, gain=gain, own=own)
    new, old = (value_of(rows, pair.metric) for rows in (pair.new, pair.old))
    num_units = pair.num_units
    if num_units < 2 or not np.isfinite([new, old]).all():
        return _comparison(math.nan, math.nan, math.nan, math.nan, num_units, None)
    if np.array_equal(candidate, champion):
        return _comparison(
            0.0, 0.0, 0.0, 0.0, num_units, None if origins is None else pair.by_blocks(origins, 0.0, confidence, least_seconds)
        )
    difference = float(pair.sign * (new - old))
    samples = pair.sign * pair.metric.differences(pair.new, pair.old, seed)
    finite = samples[np.isfinite(samples)]
    if len(finite) < len(samples) * 0.9:
        return _comparison(math.nan, math.nan, math.nan, math.nan, num_units, None)
    tail = (1 - confidence) / 2
    low, high = (float(end) for end in np.quantile(finite, [tail, 1 - tail]))
    blocks = None if origins is None else pair.by_blocks(origins, difference, confidence, least_seconds)
    return _comparison(difference, low, high, float((finite > 0).mean()), num_units, blocks)


def paired_influence(
    name: str,
    labels: Floats,
    candidate: Floats,
    champion: Floats,
    groups: Groups | None,
    *,
    threshold: float = 0.5,
    gain: Gain = "linear",
    own: OwnMetric | None = None,
) -> tuple[float, Influence] | None:
    """Return (gain of the candidate, influence of each unit on it), None where a metric has no value; arguments as `compare`."""
    pair = _pair(name, labels, candidate, champion, groups, threshold=threshold, gain=gain, own=own)
    new, old = (value_of(rows, pair.metric) for rows in (pair.new, pair.old))
    return (float(pair.sign * (new - old)), pair.influence(new - old)) if np.isfinite([new, old]).all() else None


def _comparison(gain: float, low: float, high: float, probability: float, num_units: int, blocks: BlockInterval | None) -> Comparison:
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


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two models' scores of the same rows, and the metric that compares them."""

    metric: Metric
    sign: float
    """-1 for a metric of which lower is better."""
    new: Rows
    old: Rows

    @property
    def num_units(self) -> int:
        """Rows, or groups where those are resampled; groups without a value do not count."""
        groups = self.new.groups
        if groups is None:
            return len(self.new.labels)
        values = self.metric.unit_values(self.new)
        return len(np.unique(groups)) if values is None else int(np.isfinite(values).sum())

    def influence(self, difference: float) -> Influence:
        """Return each unit's influence on the gain; `difference` is candidate less champion in the metric's units."""
        return self.metric.gain_influence(self.new, self.old, sign=self.sign, difference=difference)

    def by_blocks(self, origins: Origins, gain: float, confidence: float, least_seconds: float) -> BlockInterval:
        """Return the interval by blocks; `gain` is signed."""
        influence = self.influence(self.sign * gain)
        return block_interval(influence, origins, self.new.groups, gain=gain, confidence=confidence, least_seconds=least_seconds)


def _pair(
    name: str,
    labels: Floats,
    candidate: Floats,
    champion: Floats,
    groups: Groups | None,
    *,
    threshold: float,
    gain: Gain,
    own: OwnMetric | None,
) -> _Pair:
    new, old = (Rows(labels=labels, scores=some, groups=groups, threshold=threshold, gain=gain) for some in (candidate, champion))
    if own is not None:
        return _Pair(CalledMetric(own), 1.0, new, old)
    return _Pair(metric_of(name), -1.0 if is_lower_better(name) else 1.0, new, old)
