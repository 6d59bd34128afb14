"""The interval of a gain whose units depend on each other: sums over blocks of time, or over entities, and Student's t.

Rows of neighbouring hours fail together, so an interval over independent rows is too narrow. Here the influences (`influence`) are
summed by blocks, contiguous intervals of event time that are long enough to be nearly independent, and the interval is
studentised by the sums' own spread:

* Length: automatic (Politis and White, 2004, with the correction of Patton, Politis and White, 2009) on the sums by time bin,
  a quarter longer where it is more than a few bins (a test wants longer blocks than an estimate of the variance; Sun, Phillips
  and Jin, 2008), and at least `least_seconds`.
* Spread: delete-a-block jackknife, by which a large block counts for more (CR3; Bell and McCaffrey, 2002). Degrees of freedom: the
  effective number of blocks less one, from their sizes and the correlation inside them (Imbens and Kolesár, 2016).
* What correlation is left between neighbouring blocks widens the interval; where there is much of it, blocks are merged in pairs.

Entities that are better or worse on every day are invisible to blocks of time, and more days do not average them out. Where there are
at least `FEW_BLOCKS` entities, what clusters of entities add is part of the interval (two-way clusters; Cameron, Gelbach and Miller,
2011).

Only blocks with units count: one row far from the others makes no blocks of the time between. Below `FEW_BLOCKS` of them the
clusters are entities or groups instead. The few blocks may only widen the interval then: shocks that all entities share are
invisible to clusters of entities. Where even that says nothing, the interval is unbounded and promotes nothing: without
entities, if there are fewer than `FEW_BLOCKS` distinct times; and always, if the dependence that was measured reaches over more
than an eighth of the rows' time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from training.evaluation.bootstrap.influence import Influence
from training.evaluation.record import Blocks, Clusters

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

FEW_BLOCKS: Final = 8
BINS_TO_SEE: Final = 4
"""Bins of a block from which on the bins themselves show its dependence; below, what is left between blocks is taken to be more."""
LONGER: Final = 1.25


@dataclass(frozen=True, kw_only=True, slots=True)
class Origins:
    """When each row happened, and whose it is."""

    microseconds: Codes
    """[n] event time since any fixed moment."""
    entities: Mapping[str, Codes]
    """Columns that together name an entity (`carrier, flight`) to the number of each row's, [n]; the first that fits is used."""
    are_named: bool = False
    """Whether the pipeline names the entities: where all rows have one instant, each may then have a single row."""


class _Series(NamedTuple):
    """Sums by time bin, in the order of time."""

    sums: Floats
    counts: Codes
    of_unit: Codes
    bin_seconds: float


@np.errstate(over="ignore", invalid="ignore")
def block_interval(
    influence: Influence, origins: Origins, groups: Codes | None, *, gain: float, confidence: float, least_seconds: float
) -> Blocks:
    """Return the interval of `gain` by blocks of time, or by entities or groups where there are too few.

    Args:
        influence: of the rows that the gain was measured on.
        origins: of the same rows.
        groups: [n] where the units are groups, or the rows belong to some.
        gain: candidate less champion, positive is better.
        confidence: of the two-sided interval.
        least_seconds: the shortest block.
    """
    series = _series(influence, origins)
    time = _time_blocks(series, influence, confidence, least_seconds)
    half, num_clusters = time.half, time.num_clusters
    clusters: Clusters = "time"
    columns = ""
    # A block of time without units does not count.
    too_few = not time.is_enough or num_clusters < FEW_BLOCKS
    if time.is_enough:
        by_entities = _of_entities(influence, origins, confidence, of_time=half)
        if by_entities is not None and by_entities[0] > half:
            half, columns, num_clusters = by_entities
            clusters = "entity"
    if too_few:
        clusters, columns, codes = entity_codes(influence, origins, groups)
        few = _of_few_blocks(series, influence, time.num_blocks, confidence, has_entities=codes is not None, reaches_far=time.reaches_far)
        # Blocks with time between them only widen the interval of few blocks.
        half = max(half, few) if time.is_enough else few
        num_clusters = 0
        if codes is not None:
            of_entities, num_clusters = _of_clusters(influence, codes, confidence)
            half = max(half, of_entities)
    half = math.inf if math.isnan(half) else half
    return Blocks(
        low=gain - half,
        high=gain + half,
        clusters=clusters,
        columns=columns,
        num_clusters=num_clusters,
        num_blocks=int(np.count_nonzero(_merged(series, time.num_blocks)[1])),
        block_seconds=len(series.sums) * series.bin_seconds / time.num_blocks,
        automatic_seconds=time.automatic * series.bin_seconds,
        lag1=_lag1(series.sums),
        bin_seconds=series.bin_seconds,
        too_few_blocks=too_few,
        bounded=math.isfinite(half),
    )


class _TimeBlocks(NamedTuple):
    """The blocks of time that an interval is made from."""

    num_blocks: int
    automatic: float
    """Block length that the bins require, in bins."""
    half: float
    """Half of the interval's width by these blocks."""
    num_clusters: int
    reaches_far: bool
    """Whether too few blocks are left because neighbouring ones are correlated."""

    @property
    def is_enough(self) -> bool:
        return self.num_blocks >= FEW_BLOCKS and not self.reaches_far


def _time_blocks(series: _Series, influence: Influence, confidence: float, least_seconds: float) -> _TimeBlocks:
    """Return blocks so long that neighbouring ones are hardly correlated: from the automatic length on, twice as long each time."""
    num_bins = len(series.sums)
    automatic = automatic_length(series.sums)
    if not math.isfinite(automatic):
        # The squares of the sums overflowed: the length is unknown, so no interval is bounded.
        automatic = float(num_bins)
    automatic *= LONGER if automatic >= BINS_TO_SEE else 1.0
    num_blocks = _fitting(num_bins, max(automatic, least_seconds / series.bin_seconds if series.bin_seconds else 1.0))
    # A length that is measured too short by chance does more harm among few blocks.
    enough = FEW_BLOCKS if num_blocks >= FEW_BLOCKS else FEW_BLOCKS + 2
    reaches_far = num_bins >= FEW_BLOCKS and _fitting(num_bins, automatic) < enough
    num_clusters, half = 0, 0.0
    while num_blocks >= FEW_BLOCKS and not reaches_far:
        half, left, num_clusters = _of_blocks(series, influence, num_blocks, confidence)
        if left <= (0.4 if num_bins < BINS_TO_SEE * num_blocks else 0.5):
            break
        # Blocks that are correlated by chance, far above the length that the bins require, still have their few degrees of freedom.
        reaches_far = num_blocks < 2 * FEW_BLOCKS and num_bins < max(BINS_TO_SEE, 2 * automatic) * num_blocks
        num_blocks //= 2
    return _TimeBlocks(num_blocks, automatic, half, num_clusters, reaches_far)


def automatic_length(sums: Floats) -> float:
    """Return the block length in bins that estimates the variance of a mean best (Politis and White, 2004; Patton et al., 2009)."""
    num = len(sums)
    centered = sums - sums.mean()
    if num < 4 or not centered.any() or not np.isfinite(centered).all():
        return 1.0
    run = max(5, math.ceil(math.sqrt(math.log10(num))))
    covariances = _autocovariances(centered, min(math.ceil(math.sqrt(num)) + run, num - 1))
    seen = np.abs(covariances[1:] / covariances[0]) >= 2 * math.sqrt(math.log10(num) / num)
    # The last lag before `run` lags in a row without any correlation that stands out; without one, dependence reaches out of sight.
    last = next((lag for lag in range(len(seen) - run + 1) if not seen[lag : lag + run].any()), None)
    if last is None:
        return math.ceil(num / 3)
    lags = np.arange(1, min(2 * max(last, 1), len(seen)) + 1)
    window = np.clip(2 * (1 - lags / len(lags)), 0, 1)
    spectrum = max(covariances[0] + 2 * float(window @ covariances[lags]), 1e-12 * float(covariances[0]))
    slope = 2 * float((window * lags) @ covariances[lags])
    length = (1.5 * (slope / spectrum) ** 2 * num) ** (1 / 3)
    return float(np.clip(length, 1.0, math.ceil(min(3 * math.sqrt(num), num / 3))))


def correlation_left(sums: Floats) -> float:
    """Return the lag-1 autocorrelation of blocks' sums, without the bias that few blocks have (Kendall, 1954), at least 0."""
    num = len(sums)
    return float(np.clip((_lag1(sums) + 1 / num) / (1 - 3 / num), 0.0, 0.95)) if num > 3 else 0.0


def _series(influence: Influence, origins: Origins) -> _Series:
    times = influence.first_of(origins.microseconds)
    first, span = int(times.min()), int(times.max() - times.min())
    num_bins = min(influence.max_parts, len(np.unique(times)))
    if num_bins < 2:
        return _Series(np.zeros(1), np.array([len(times)]), np.zeros(len(times), dtype=np.int64), 0.0)
    # To the nearest point of a grid from the first to the last time: regular times have a bin each.
    of_unit = np.rint((times - first) / span * (num_bins - 1)).astype(np.int64)
    counts = np.bincount(of_unit, minlength=num_bins)
    return _Series(influence.sums(of_unit, num_bins), counts, of_unit, span / (num_bins - 1) / 1e6)


def _fitting(num_bins: int, length: float) -> int:
    """Return how many blocks fit: one more for a rest of three quarters, which the ends of the rows' time cut off."""
    return max(1, int(num_bins / length + 0.25))


def _merged(series: _Series, num_blocks: int) -> tuple[Floats, Floats]:
    """Return (sums, units) of blocks of as many bins each as can be, [num_blocks]."""
    of_bin = np.arange(len(series.sums)) * num_blocks // len(series.sums)
    sums, counts = (np.bincount(of_bin, weights=part, minlength=num_blocks).astype(np.float64) for part in (series.sums, series.counts))
    return sums, counts


def _of_blocks(series: _Series, influence: Influence, num_blocks: int, confidence: float) -> tuple[float, float, int]:
    """Return (half of the interval, correlation left between blocks, blocks with units)."""
    sums, counts = _merged(series, num_blocks)
    left = correlation_left(sums)
    if len(series.sums) < BINS_TO_SEE * num_blocks:
        left = min(left + 0.5 / math.sqrt(num_blocks), 0.95)
    half, num_clusters = _half_width(sums, counts, influence.squares, confidence)
    return half * math.sqrt((1 + left) / (1 - left)), left, num_clusters


def _of_few_blocks(
    series: _Series, influence: Influence, num_blocks: int, confidence: float, *, has_entities: bool, reaches_far: bool
) -> float:
    """Return half of the interval that too few blocks allow: unbounded, or Student's t with as few degrees of freedom as they have."""
    if reaches_far or (not has_entities and len(series.sums) < FEW_BLOCKS):
        return math.inf
    if num_blocks < 2:
        return 0.0 if has_entities else math.inf
    sums, counts = _merged(series, num_blocks)
    return _half_width(sums, counts, influence.squares, confidence)[0]


def _of_entities(influence: Influence, origins: Origins, confidence: float, *, of_time: float) -> tuple[float, str, int] | None:
    """Return (half of the interval by time and entities, columns, entities); None where there are too few entities.

    The squares of what time and entities each say are added, less what the units say alone, which both hold.
    """
    clusters, columns, codes = entity_codes(influence, origins, None)
    if clusters != "entity" or codes is None:
        return None
    half, num_clusters = _of_clusters(influence, codes, confidence)
    if num_clusters < FEW_BLOCKS:
        return None
    alone = (influence.squares or 0.0) * float(ndtri((1 + confidence) / 2)) ** 2 / influence.num_units**2
    return max(half, math.sqrt(max(half**2 + of_time**2 - alone, 0.0))), columns, num_clusters


def entity_codes(influence: Influence, origins: Origins, groups: Codes | None) -> tuple[Clusters, str, Codes | None]:
    """Return (what, columns, number of each unit's) of entities that hold whole units and several of them, else of groups."""
    for columns, codes in origins.entities.items():
        of_unit = influence.first_of(codes)
        if influence.rows is not None and not np.array_equal(of_unit, -influence.first_of(-codes)):
            continue
        numbers = np.unique(of_unit, return_inverse=True)[1].astype(np.int64)
        num = int(numbers.max(initial=0)) + 1
        if 1 < num < influence.num_units or (1 < num == influence.num_units and _is_said_to_be_independent(origins)):
            return "entity", columns, numbers
    if influence.rows is not None:
        return "group", "", np.arange(influence.num_units)
    if groups is not None:
        return "group", "", np.unique(groups, return_inverse=True)[1].astype(np.int64)
    return "none", "", None


def _is_said_to_be_independent(origins: Origins) -> bool:
    """Return whether rows of one instant, which nothing but the pipeline's author knows to be independent, are named as entities."""
    return origins.are_named and int(np.ptp(origins.microseconds)) == 0


def _of_clusters(influence: Influence, codes: Codes, confidence: float) -> tuple[float, int]:
    num = int(codes.max()) + 1
    if num > influence.max_parts and influence.values is None:
        # Whole entities share a part, so that parts are as independent as entities are.
        codes, num = codes % influence.max_parts, influence.max_parts
    return _half_width(influence.sums(codes, num), np.bincount(codes, minlength=num).astype(np.float64), influence.squares, confidence)


def _half_width(sums: Floats, counts: Floats, squares: float | None, confidence: float) -> tuple[float, int]:
    """Return (half of the interval of the mean, clusters with units) by the delete-a-cluster jackknife; infinite for one cluster.

    Args:
        sums, counts: [clusters] of the influences, and of units.
        squares: sum of the squared influences; without it the correlation inside clusters is taken to be 1.
    """
    sums, counts = sums[counts > 0], counts[counts > 0]
    num, total = len(sums), float(counts.sum())
    if num < 2:
        return math.inf, num
    variance = (num - 1) / num * float(np.sum((sums / (total - counts)) ** 2))
    if not math.isfinite(variance):
        return math.inf, num
    pairs = float(np.sum(counts * (counts - 1)))
    inside = 1.0
    if squares is not None and squares > 0 and pairs > 0:
        inside = float(np.clip((np.sum(sums**2) - squares) / (squares / total * pairs), 0.0, 1.0))
    shares = counts * (1 - inside) + counts**2 * inside
    freedom = max(float(shares.sum() ** 2 / np.sum(shares**2)) - 1, 0.2)
    return math.sqrt(variance) * float(stdtrit(freedom, (1 + confidence) / 2)), num


def _lag1(sums: Floats) -> float:
    power = float(sums @ sums)
    return float(sums[:-1] @ sums[1:]) / power if power > 0 else 0.0


def _autocovariances(centered: Floats, num_lags: int) -> Floats:
    """Return the autocovariances of lags 0 to `num_lags`, by Fourier transform."""
    transformed = np.fft.rfft(centered, 2 * len(centered))
    found: Floats = np.fft.irfft(transformed * np.conj(transformed))[: num_lags + 1] / len(centered)
    return found
