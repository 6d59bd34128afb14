"""Count, sum and sum of squares of integers of any size, exact, in a few passes of the processor's own arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from training.data.exact.rounding import rounded_quotient, rounded_root

LIMB_BITS: Final = 16
MAX_ROWS: Final = 1 << 20
"""Of so many values, sums of products of two limbs are less than 2**53, so that they are exact as float64."""


class IntegerMoments:
    """The moments of the integers added so far; as `training.data.exact.moments.ExactMoments`."""

    def __init__(self) -> None:
        self.count = 0
        self.sum = 0
        self.squares = 0

    def add(self, values: NDArray[np.signedinteger[Any]]) -> None:
        """Add values, [n]."""
        for start in range(0, len(values), MAX_ROWS):
            self._add_chunk(values[start : start + MAX_ROWS])

    def add_counted(self, least: int, counts: NDArray[np.integer[Any]]) -> None:
        """Add the integers from `least` on, each as often as `counts`, [fewer than 2**20], says; fewer than 2**20 in all."""
        places = np.arange(len(counts), dtype=np.int64)
        count = int(counts.sum())
        total = int(np.dot(places, counts))
        self.count += count
        self.sum += total + count * least
        self.squares += int(np.dot(places * places, counts)) + 2 * least * total + count * least**2

    def merge(self, other: IntegerMoments) -> Self:
        """Add what another has summed; return self."""
        self.count += other.count
        self.sum += other.sum
        self.squares += other.squares
        return self

    @property
    def mean(self) -> float:
        """Rounded once; NaN without values."""
        return rounded_quotient(self.sum, self.count) if self.count else math.nan

    @property
    def exact_mean(self) -> Fraction:
        """Of at least one value."""
        return Fraction(self.sum, self.count)

    @property
    def deviation(self) -> float:
        """The population's standard deviation, rounded once; NaN without values."""
        if not self.count:
            return math.nan
        return rounded_root(self.count * self.squares - self.sum**2, self.count**2)

    def _add_chunk(self, values: NDArray[np.signedinteger[Any]]) -> None:
        if not len(values):
            return
        # Differences to the least value: of identifiers and epochs they are small.
        least = int(values.min())
        span = int(values.max()) - least
        limbs = _limbs(values, least, span)
        count = len(values)
        total = sum(int(limb.sum()) << LIMB_BITS * place for place, limb in enumerate(limbs))
        squares = sum(
            int(np.dot(one, other)) << LIMB_BITS * (first + second) for first, one in enumerate(limbs) for second, other in enumerate(limbs)
        )
        self.count += count
        self.sum += total + count * least
        self.squares += squares + 2 * least * total + count * least**2


def _limbs(values: NDArray[np.signedinteger[Any]], least: int, span: int) -> list[NDArray[np.float64]]:
    """Return `values - least` as numbers of base 2**LIMB_BITS, the lowest place first; no value is larger than `least + span`."""
    if span < 2**LIMB_BITS and max(abs(least), abs(least + span)) < 2**53:
        return [values.astype(np.float64) - least]
    rest = values.astype(np.int64, copy=False).view(np.uint64) - np.uint64(least % 2**64)
    mask = np.uint64(2**LIMB_BITS - 1)
    return [
        ((rest >> np.uint64(LIMB_BITS * place)) & mask).astype(np.float64) for place in range(max(1, -(-span.bit_length() // LIMB_BITS)))
    ]
