"""A histogram of numbers whose bins follow from the numbers alone: the same for any order and division of the rows, and mergeable.

A number's key is the bit pattern of its float64, as an integer that orders as the numbers do. A bin is all keys with the same leading
bits: `key >> shift`. The shift is the least with which there are at most `MAX_BINS` bins, so that few different values are kept apart
exactly, and many in bins whose width is in proportion to their size. Bins of two shifts nest, so that histograms of any two samples
can be compared.
"""

from __future__ import annotations

from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from training.contracts import JsonObject

Floats = NDArray[np.float64]
Keys = NDArray[np.int64]

MAX_BINS: Final = 1024
"""Of normally distributed numbers, a bin holds at most about 1 in 130 of them."""
SIGN_SHIFT: Final = 63
MAX_SPAN: Final = 2**18
"""Of keys that are counted in a table with a place for each; more are sorted."""
_MAGNITUDE: Final = np.int64(2**63 - 1)


class KeyHistogram:
    """Counts of finite numbers by bin."""

    def __init__(self, shift: int = 0, keys: Keys | None = None, counts: Keys | None = None) -> None:
        self.shift = shift
        self.keys = np.empty(0, np.int64) if keys is None else keys
        """[bins] leading bits of the bin's keys, rising."""
        self.counts = np.empty(0, np.int64) if counts is None else counts
        """[bins] more than 0."""

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def add(self, values: Floats) -> None:
        """Add finite numbers, [n] in any order, none of them -0.0."""
        if not len(values):
            return
        keys = keys_of(values)
        keys >>= self.shift
        least = int(keys.min())
        # The first numbers are sorted: without a shift, hardly any two of them are near each other.
        if int(keys.max()) - least >= MAX_SPAN:
            return self.add_sorted(np.sort(values))
        keys -= least
        counts = np.bincount(keys)
        found = np.flatnonzero(counts)
        return self._add(KeyHistogram(self.shift, found + least, counts[found]))

    def add_sorted(self, values: Floats, counts: Keys | None = None) -> None:
        """Add finite numbers, [n], rising, none of them -0.0, each as often as `counts`, [n], says; None: once."""
        if not len(values):
            return
        keys = keys_of(values) >> self.shift
        starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        sums = np.diff(np.append(starts, len(keys))) if counts is None else np.add.reduceat(counts, starts)
        self._add(KeyHistogram(self.shift, keys[starts], sums))

    def merge(self, other: KeyHistogram) -> Self:
        """Add the counts of another; return self."""
        self._add(other)
        return self

    def coarser(self, shift: int) -> KeyHistogram:
        """Return the histogram with a shift that is not less than its own."""
        keys = self.keys >> (shift - self.shift)
        starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])) if len(keys) else np.empty(0, np.intp)
        counts = np.add.reduceat(self.counts, starts) if len(starts) else self.counts
        return KeyHistogram(shift, keys[starts], counts)

    def lows(self) -> Floats:
        """Return the least number of each bin, [bins]."""
        return values_of(self.keys << self.shift)

    def to_json(self) -> JsonObject:
        """Return what `from_json` reads."""
        return {"shift": self.shift, "keys": self.keys.tolist(), "counts": self.counts.tolist()}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Self:
        return cls(int(stored["shift"]), np.array(stored["keys"], np.int64), np.array(stored["counts"], np.int64))

    def _add(self, other: KeyHistogram) -> None:
        shift = max(self.shift, other.shift)
        mine, theirs = self.coarser(shift), other.coarser(shift)
        keys, places = np.unique(np.concatenate([mine.keys, theirs.keys]), return_inverse=True)
        counts = np.zeros(len(keys), np.int64)
        np.add.at(counts, places, np.concatenate([mine.counts, theirs.counts]))
        merged = KeyHistogram(shift, keys, counts)
        if len(keys) > MAX_BINS:
            merged = merged.coarser(shift + _least_shift(keys))
        self.shift, self.keys, self.counts = merged.shift, merged.keys, merged.counts


def aligned(one: KeyHistogram, other: KeyHistogram) -> tuple[Keys, Keys, Keys]:
    """Return (keys, counts of one, counts of the other), [bins] each, over the bins that either has, at the larger shift."""
    shift = max(one.shift, other.shift)
    sides = one.coarser(shift), other.coarser(shift)
    keys = np.union1d(sides[0].keys, sides[1].keys)
    counts = []
    for side in sides:
        found = np.zeros(len(keys), np.int64)
        found[np.searchsorted(keys, side.keys)] = side.counts
        counts.append(found)
    return keys, counts[0], counts[1]


def keys_of(values: Floats) -> Keys:
    """Return integers that order as the numbers do; NaN has no place, and -0.0 one below 0.0."""
    bits = values.view(np.int64)
    keys: Keys = bits ^ ((bits >> SIGN_SHIFT) & _MAGNITUDE)
    return keys


def values_of(keys: Keys) -> Floats:
    """Return the numbers of `keys_of`."""
    return (keys ^ ((keys >> SIGN_SHIFT) & _MAGNITUDE)).view(np.float64)


def _least_shift(keys: Keys) -> int:
    """Return the least further shift that leaves at most `MAX_BINS` different keys."""
    # Of two neighbours, the bit that keeps them apart longest.
    apart = (keys[1:] ^ keys[:-1]).view(np.uint64)
    low, high = 0, 64
    while high - low > 1:
        middle = (low + high) // 2
        bins = 1 + int(np.count_nonzero(apart >> np.uint64(middle))) if middle < 64 else 1
        low, high = (low, middle) if bins <= MAX_BINS else (middle, high)
    return high
