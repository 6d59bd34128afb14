"""Values of a number column by their rank, exact, in passes of the rows that need little memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from training.data.validation.key_histogram import KeyHistogram
from training.data.validation.snapshot_view import TableView, numpy_of

MAX_COLLECTED: Final = 2**18
"""Values of a range that are kept and sorted; a range with more is divided once more."""

Floats = npt.NDArray[np.float64]


@dataclass
class _Range:
    """Values from `low` to `high`, the `first`-th of all finite ones being the least of them."""

    low: float
    high: float
    first: int
    count: int
    parts: KeyHistogram = field(default_factory=KeyHistogram)
    values: list[Floats] = field(default_factory=list)

    @property
    def is_small(self) -> bool:
        return self.count <= MAX_COLLECTED

    def add(self, ordered: Floats) -> None:
        inside = ordered[np.searchsorted(ordered, self.low, side="left") : np.searchsorted(ordered, self.high, side="right")]
        if self.is_small:
            self.values.append(inside.copy())
        else:
            self.parts.add_sorted(inside)

    def found(self, rank: int) -> float | None:
        """Return the value of a rank, None where the range must be divided."""
        if self.is_small:
            return float(np.sort(np.concatenate(self.values))[rank - self.first])
        return None

    def part_of(self, rank: int) -> _Range:
        return _part(self.parts, rank, self.first)


def values_at(view: TableView, column: str, ranks: Sequence[int], histogram: KeyHistogram) -> list[float]:
    """Return the values of these ranks among the finite numbers of a column, rank 0 being the least.

    Args:
        histogram: of all finite numbers of the column, each of which float64 holds.
    """
    ranges = {rank: _part(histogram, rank, 0) for rank in ranks}
    found = {rank: part.low for rank, part in ranges.items() if part.low == part.high}
    while missing := [rank for rank in ranges if rank not in found]:
        # Ranks of one range share it, so that its values are kept once.
        shared = {(ranges[rank].low, ranges[rank].high): ranges[rank] for rank in missing}
        for ordered in _ordered(view, column):
            for part in shared.values():
                part.add(ordered)
        for rank in missing:
            part = shared[ranges[rank].low, ranges[rank].high]
            value = part.found(rank)
            if value is None:
                ranges[rank] = part.part_of(rank)
                value = ranges[rank].low if ranges[rank].low == ranges[rank].high else None
            if value is not None:
                found[rank] = value
    return [found[rank] for rank in ranks]


def quantile(count: int, share: float, method: str) -> tuple[list[int], float]:
    """Return the ranks, one or two, that a quantile of `count` values lies at, and the second's weight, as `numpy.quantile` has them."""
    place = (count - 1) * share
    if method == "nearest":
        return [int(np.around(place))], 0.0
    low, high = int(np.floor(place)), min(int(np.floor(place)) + 1, count - 1)
    if method == "lower":
        return [low], 0.0
    if method == "higher":
        return [int(np.ceil(place))], 0.0
    if method == "midpoint":
        return [low, high], 0.0 if place == low else 0.5
    return [low, high], place - low


def between(low: float, high: float, weight: float) -> float:
    """Return the number between two, as `numpy.quantile` rounds it."""
    difference = high - low
    return high - difference * (1 - weight) if weight >= 0.5 else low + difference * weight


def _part(histogram: KeyHistogram, rank: int, first: int) -> _Range:
    """Return the bin with a rank; `first` is the rank of the histogram's least value."""
    up_to = np.cumsum(histogram.counts)
    place = int(np.searchsorted(up_to, rank - first, side="right"))
    count = int(histogram.counts[place])
    low, high = float(histogram.lows()[place]), float(histogram.highs()[place])
    return _Range(low, high, first + int(up_to[place]) - count, count)


def _ordered(view: TableView, column: str) -> Iterator[Floats]:
    for chunk in view.chunks([column]):
        stored: npt.NDArray[Any] = numpy_of(chunk.column(column).drop_null())
        numbers = stored.astype(np.float64) + 0.0
        numbers.sort()
        yield numbers[np.searchsorted(numbers, -np.inf, side="right") : np.searchsorted(numbers, np.inf, side="left")]
