"""One test of a canary that may be looked at again and again: the alarm that it is worse than the champion.

The gain is summed over completed blocks of time, and the sums are tested by an e-process for the mean of normal values of unknown
spread: the mixture of t likelihood ratios over normal effect sizes (Lai, 1976; Wang and Ramdas, "Anytime-valid t-tests and
confidence sequences for Gaussian means with unknown variance", 2025). By Ville's inequality the chance that it ever exceeds 1 / (1
- confidence) is at most 1 - confidence for equal models, however often it is looked at, and about half of that on either side.
Blocks are of five completed hours, or of more where hours are correlated (`blocks.automatic_length`, and the autocorrelation that
so few hours may hide); what correlation is left shrinks the statistic, and much of it leaves no evidence. Where rows arrive in
batches, entities or groups are the blocks.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.evaluation.bootstrap.blocks import FEW_BLOCKS, Origins, automatic_length, correlation_left, entity_codes
from training.evaluation.bootstrap.influence import Influence
from training.evaluation.record import Alarm, Clusters

Floats = NDArray[np.float64]

HOUR_MICROSECONDS: Final = 3_600_000_000
UNSEEN: Final = 1.0
"""Standard errors by which the correlation of neighbouring blocks is taken to be more than it looks: few blocks hardly show it."""
LEAST_HOURS: Final = 5
LEAST_BATCHES: Final = 3
"""Below, a pause between hourly rows looks like batches."""
BATCH_HOURS: Final = 2
MAX_LEFT: Final = 0.6
"""Correlation of neighbouring blocks above which they are not evidence."""
EFFECT_VARIANCE: Final = 0.5
"""Of the effect sizes (mean of a block in its standard deviations) that the mixture expects."""


def alarm_of(gain: float, influence: Influence, origins: Origins, groups: NDArray[np.int64] | None, *, confidence: float) -> Alarm:
    """Return what completed blocks say of a canary's gain.

    Args:
        gain: canary less champion on all rows, positive is better.
        influence: of the same rows.
        origins: of the same rows; the hour of the latest row is not complete and does not count.
        groups: [n] or None.
        confidence: 0.95 for a false alarm in at most one of twenty canaries, over all looks together.
    """
    hours = influence.first_of(origins.microseconds) // HOUR_MICROSECONDS
    clusters: Clusters = "time"
    blocks = _completed(influence, hours)
    if _come_in_batches(hours):
        clusters, _, codes = entity_codes(influence, origins, groups)
        blocks = _CompletedBlocks(np.empty(0), np.empty(0), 0) if codes is None else _blocks(influence, codes, int(codes.max()) + 1)
    required, total = 1 / (1 - confidence), float(blocks.counts.sum())
    # The gain on the rows of these blocks: an influence is the rows' gain less that of all rows.
    mean = gain + float(blocks.sums.sum()) / total if total else 0.0
    is_enough = len(blocks.sums) >= FEW_BLOCKS
    evidence = math.exp(min(_log_e_value(mean, blocks, is_ordered=clusters == "time"), 700.0)) if is_enough else 1.0
    return Alarm(
        is_worse=mean < 0 and evidence >= required,
        e_value=evidence,
        required=required,
        mean=mean,
        num_blocks=len(blocks.sums),
        clusters=clusters,
        block_seconds=blocks.num_hours * 3600.0,
        required_blocks=FEW_BLOCKS,
    )


def _come_in_batches(hours: NDArray[np.int64]) -> bool:
    """Return whether units come in a few short batches far apart, once a day for example, so that blocks of hours would take too long.

    Entities do not show a shock that all of an hour share. So hourly rows with a pause between them, and one row of long ago, are no
    batches: a batch lasts at most `BATCH_HOURS`, and has at least half of a batch's mean number of units.
    """
    with_units, counts = np.unique(hours, return_counts=True)
    if len(with_units) >= FEW_BLOCKS:
        return False
    batch = np.cumsum(np.r_[0, np.diff(with_units) >= FEW_BLOCKS])
    sizes = np.bincount(batch, weights=counts)
    lasts = np.array([np.ptp(with_units[batch == number]) + 1 for number in range(len(sizes))])
    is_large = sizes >= sizes.mean() / 2
    return bool(is_large.sum() >= LEAST_BATCHES and lasts[is_large].max() <= BATCH_HOURS)


class _CompletedBlocks(NamedTuple):
    sums: Floats
    """[blocks] of influences."""
    counts: Floats
    """[blocks] units."""
    num_hours: int
    """Of a block; 0 for entities and groups."""


def _blocks(influence: Influence, parts: NDArray[np.int64], num: int) -> _CompletedBlocks:
    return _CompletedBlocks(influence.sums(parts, num), np.bincount(parts, minlength=num).astype(np.float64), 0)


def _completed(influence: Influence, hours: NDArray[np.int64]) -> _CompletedBlocks:
    """Return the completed blocks from the first hour on."""
    places = hours - hours.min()
    num_hours = int(places.max())
    if not 1 <= num_hours <= influence.max_parts:
        return _CompletedBlocks(np.empty(0), np.empty(0), 1)
    # The last hour is summed too, and left out: it is not complete.
    by_hour = _blocks(influence, places, num_hours + 1)
    sums = by_hour.sums[:num_hours]
    at_most = _correlation(sums)
    # So many hours of an AR(1) series count as one independent hour.
    length = max(LEAST_HOURS, math.ceil(automatic_length(sums) - 0.5), math.ceil((1 + at_most) / (1 - at_most) - 0.5))
    num = num_hours // length
    sums, counts = (part[: num * length].reshape(num, length).sum(axis=1) for part in by_hour[:2])
    # Hours without rows are not evidence: two batches days apart are two blocks, however many lie between them.
    return _CompletedBlocks(sums[counts > 0], counts[counts > 0], length)


def _correlation(sums: Floats) -> float:
    """Return the largest lag-1 autocorrelation that so few sums may hide, 0 to 0.95."""
    return min(correlation_left(sums) + UNSEEN / math.sqrt(len(sums)), 0.95)


def _log_e_value(mean: float, blocks: _CompletedBlocks, *, is_ordered: bool) -> float:
    """Return the logarithm of the t mixture's e-value of the mean gain of a unit against 0; infinite where blocks do not differ."""
    sums, counts, _ = blocks
    num, total = len(sums), float(counts.sum())
    residuals = sums - counts * (sums.sum() / total)
    variance = num / (num - 1) * float(residuals @ residuals) / total**2
    if variance == 0:
        return math.inf if mean else 0.0
    left = _correlation(residuals) if is_ordered else 0.0
    if left > MAX_LEFT:
        return 0.0
    squared = mean**2 / variance * (1 - left) / (1 + left) / (num - 1)
    scale = 1 + num * EFFECT_VARIANCE
    return -0.5 * math.log(scale) + num / 2 * (math.log1p(squared) - math.log1p(squared / scale))
