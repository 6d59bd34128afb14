"""Sums of float64 that do not depend on the order of the values, on batches, threads or partitions.

Adding floats rounds after every step, so an engine's own `sum` or `avg` differs from run to run. Here no step rounds: values are added
as integers, multiples of the smallest float, and the result is rounded once, at the end, to the nearest float (ties to even). It equals
`math.fsum`, in any order. States of parts can be merged in any order too: each is an exact integer.

What is special, the same for every function here:

| values | sum |
| --- | --- |
| none | 0.0 |
| only -0.0, or values that cancel | 0.0, never -0.0 |
| a NaN, or inf and -inf | NaN |
| inf or -inf | that |
| finite, beyond the largest float | inf or -inf; a mean is right nevertheless |

Missing values are the caller's business: leave them out before.
"""

from __future__ import annotations

import math
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from training.data.exact.rounding import rounded_quotient

Floats = NDArray[np.float64]

LEAST_EXPONENT: Final = -1074
"""Every finite float64 is a multiple of 2 to this."""
CHUNK_ROWS: Final = 1 << 13
"""Fits the processor's nearest caches."""
LARGE_EXPONENT: Final = 960
"""Values from 2 to this on are scaled down first: the constant that splits them would be infinite."""
SCALING: Final = 600
"""Binary exponent that values too large or too small are scaled by, which loses no bit."""


class ExactSum:
    """The exact sum of the values added so far.

    About 200 M values a second and core where their sizes are similar, 12 M where they span every exponent.
    """

    def __init__(self) -> None:
        self.count = 0
        """Values added, NaN and infinite ones included."""
        self.units = 0
        """Sum of the finite values, in units of 2**LEAST_EXPONENT."""
        self._special = 0.0
        """Sum of the NaN and infinite values."""

    def add(self, values: NDArray[np.floating[Any]]) -> None:
        """Add values, any shape, each as float64."""
        flat = np.ascontiguousarray(values).reshape(-1)
        self.count += len(flat)
        work = np.empty((2, min(len(flat), CHUNK_ROWS)))
        for start in range(0, len(flat), CHUNK_ROWS):
            self._add_chunk(flat[start : start + CHUNK_ROWS].astype(np.float64, copy=False), work)

    def merge(self, other: ExactSum) -> Self:
        """Add what another has summed; return self."""
        self.count += other.count
        self.units += other.units
        self._special = _added(self._special, other._special)
        return self

    def add_units(self, units: int) -> None:
        """Add to the sum of the finite values, in units of 2**-1074; the count stays."""
        self.units += units

    @property
    def value(self) -> float:
        """The sum, rounded once."""
        return self._special if self._special else rounded_quotient(self.units, 1 << -LEAST_EXPONENT)

    @property
    def mean(self) -> float:
        """The rounded sum divided by the count, as `math.fsum(values) / len(values)`; NaN without values."""
        if not self.count:
            return math.nan
        total = self.value
        if math.isinf(total) and not self._special:
            return rounded_quotient(self.units, self.count << -LEAST_EXPONENT)
        return total / self.count

    @property
    def is_finite(self) -> bool:
        """Whether every value was finite."""
        return not self._special

    def _add_chunk(self, values: Floats, work: Floats) -> None:
        rest, high = work[0, : len(values)], work[1, : len(values)]
        largest = max(float(values.max()), -float(values.min()))
        if not math.isfinite(largest):
            finite = np.isfinite(values)
            for special in np.unique(values[~finite]):
                self._special = _added(self._special, float(special))
            if finite.any():
                self._add_chunk(values[finite], work)
            return
        if largest >= 2.0**LARGE_EXPONENT:
            is_large = np.abs(values) >= 2.0**LARGE_EXPONENT
            self._add_folds(values[is_large] * 2.0**-SCALING, high[: is_large.sum()], SCALING)
            values = values[~is_large]
            rest, high = rest[: len(values)], high[: len(values)]
        rest[:] = values
        self._add_folds(rest, high, 0)

    def _add_folds(self, rest: Floats, high: Floats, scaling: int) -> None:
        """Add `rest * 2**scaling`; both arrays are overwritten.

        Each round takes the leading bits of all values: their multiples of a power of two, whose sum is exact as float64 because it
        needs no more than 53 bits (Rump, Ogita, Oishi: Accurate floating-point summation, 2008). What is left is exact too.
        """
        spare_bits = (len(rest) + 2).bit_length()
        while len(rest):
            largest = max(float(rest.max()), -float(rest.min()))
            if not largest:
                return
            splitting = math.ldexp(1.0, math.frexp(largest)[1] + spare_bits)
            np.add(rest, splitting, out=high)
            high -= splitting
            rest -= high
            self.units += _in_units(float(high.sum()), scaling)


def exact_mean(values: NDArray[np.floating[Any]]) -> float:
    """Return the mean of values, see `ExactSum.mean`."""
    total = ExactSum()
    total.add(values)
    return total.mean


def _in_units(value: float, scaling: int) -> int:
    """Return `value * 2**scaling` in units of 2**LEAST_EXPONENT."""
    mantissa, exponent = math.frexp(value)
    return shifted(int(mantissa * 2.0**53), exponent - 53 + scaling - LEAST_EXPONENT)


def shifted(number: int, bits: int) -> int:
    """Return number * 2**bits, which is whole."""
    return number << bits if bits >= 0 else number >> -bits


def _added(one: float, other: float) -> float:
    """Return the sum of two, each 0.0, infinite or NaN."""
    return one + other
