"""Exact sums of float64 values by group: see `training.data.exact.sums`."""

from __future__ import annotations

import math
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from training.data.exact.rounding import rounded_quotient
from training.data.exact.sums import LARGE_EXPONENT, LEAST_EXPONENT, SCALING, Floats

LIMB_BITS: Final = 30
"""Of one digit of a group's sum."""
LIMB_CHUNK_ROWS: Final = 1 << 18
"""Of so many values, digits add up to less than 2**53, so that their sum is exact as float64."""
MAX_EXACT: Final = 1 << 53
"""Below it every integer is a float64."""
BATCHES_BETWEEN_CARRIES: Final = 1 << 12
"""An int64 holds the digits' sums of so many chunks."""


class GroupSums:
    """The exact sum and count of each group's values.

    A group's sum is a number of base 2**LIMB_BITS, one int64 for each digit in use: 8 bytes a group, and 2 to 4 digits for values of
    similar size.
    """

    def __init__(self, num_groups: int) -> None:
        self.counts = np.zeros(num_groups, dtype=np.int64)
        """[groups] values added, NaN and infinite ones included."""
        self._limbs: dict[int, NDArray[np.int64]] = {}
        """By the digit's place: [groups]; the digit counts for 2**(LIMB_BITS * place + LEAST_EXPONENT)."""
        self._special = np.zeros(num_groups)
        self._chunks = 0

    def add(self, groups: NDArray[np.integer], values: Floats) -> None:
        """Add values.

        Args:
            groups: [n] numbers from 0.
            values: [n].
        """
        for start in range(0, len(values), LIMB_CHUNK_ROWS):
            rows = slice(start, start + LIMB_CHUNK_ROWS)
            self._add_chunk(np.asarray(groups[rows], dtype=np.intp), np.asarray(values[rows], dtype=np.float64))

    def grow(self, num_groups: int) -> None:
        """Have groups up to this number; new ones have no values."""
        added = num_groups - len(self.counts)
        if added:
            self.counts = np.append(self.counts, np.zeros(added, dtype=np.int64))
            self._special = np.append(self._special, np.zeros(added))
            self._limbs = {place: np.append(limb, np.zeros(added, dtype=np.int64)) for place, limb in self._limbs.items()}

    def merge(self, other: GroupSums) -> Self:
        """Add what another has summed of the same groups; return self."""
        self.counts += other.counts
        for sums in (self, other):
            sums._carry()
        for place, limb in other._limbs.items():
            self._limb(place)[:] += limb
        with np.errstate(invalid="ignore"):
            self._special += other._special
        self._chunks += 1
        return self

    def sums(self) -> Floats:
        """Return the sum of each group, rounded once, [groups]."""
        if len(self._limbs) == 1 and not self._special.any():
            [(place, limb)] = self._limbs.items()
            if np.abs(limb).max() < MAX_EXACT:
                return np.ldexp(limb.astype(np.float64), LIMB_BITS * place + LEAST_EXPONENT)
        return np.array([self._rounded(group, 1) for group in range(len(self.counts))], dtype=np.float64)

    def means(self) -> Floats:
        """Return each group's mean as `ExactSum.mean`, [groups]; NaN for a group without values."""
        sums = self.sums()
        with np.errstate(invalid="ignore", divide="ignore"):
            means: Floats = np.where(self.counts > 0, sums / np.maximum(self.counts, 1), np.nan)
        for group in np.flatnonzero(np.isinf(sums) & (self._special == 0)):
            means[group] = self._rounded(int(group), int(self.counts[group]))
        return means

    def _rounded(self, group: int, divisor: int) -> float:
        special = float(self._special[group])
        if special:
            return special
        units = sum(int(limb[group]) << LIMB_BITS * place for place, limb in self._limbs.items())
        return rounded_quotient(units, divisor << -LEAST_EXPONENT)

    def _add_chunk(self, groups: NDArray[np.intp], values: Floats) -> None:
        num_groups = len(self.counts)
        self.counts += np.bincount(groups, minlength=num_groups)
        finite = np.isfinite(values)
        if not finite.all():
            with np.errstate(invalid="ignore"):
                np.add.at(self._special, groups[~finite], values[~finite])
            groups, values = groups[finite], values[finite]
        rest = values.copy()
        while len(rest):
            largest = max(float(rest.max()), -float(rest.min()))
            if not largest:
                break
            place = (math.frexp(largest)[1] - 1 - LEAST_EXPONENT) // LIMB_BITS
            digits = _digits(rest, LIMB_BITS * place + LEAST_EXPONENT)
            self._limb(place)[:] += np.bincount(groups, weights=digits, minlength=num_groups).astype(np.int64)
        self._chunks += 1
        if self._chunks >= BATCHES_BETWEEN_CARRIES:
            self._carry()

    def _limb(self, place: int) -> NDArray[np.int64]:
        if place not in self._limbs:
            self._limbs[place] = np.zeros(len(self.counts), dtype=np.int64)
        return self._limbs[place]

    def _carry(self) -> None:
        """Make every digit small again: what exceeds it goes to the next place."""
        self._chunks = 0
        place = min(self._limbs, default=0)
        while self._limbs and place <= max(self._limbs):
            limb = self._limb(place)
            # Digits have signs, so that a small negative sum stays short.
            carried = (limb + (1 << LIMB_BITS - 1)) >> LIMB_BITS
            if carried.any():
                limb -= carried << LIMB_BITS
                self._limb(place + 1)[:] += carried
            place += 1


def _digits(rest: Floats, exponent: int) -> Floats:
    """Return whole numbers of 2**exponent, and leave in `rest` what is smaller; |rest| < 2**(exponent + LIMB_BITS)."""
    if exponent + 52 < LARGE_EXPONENT:
        splitting = math.ldexp(1.5, exponent + 52)
        high = (rest + splitting) - splitting
        rest -= high
        digits: Floats = np.ldexp(high, -exponent)
        return digits
    # The splitting constant would be infinite, and so might the nearest multiple be.
    splitting = math.ldexp(1.5, exponent + 52 - SCALING)
    high = (rest * 2.0**-SCALING + splitting) - splitting
    taken = high != 0
    rest[taken] = (rest[taken] * 0.5 - np.ldexp(high[taken], SCALING - 1)) * 2.0
    digits = np.ldexp(high, SCALING - exponent)
    return digits
