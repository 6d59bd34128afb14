"""Exact count, sum and sum of squares of float64 values, for means and deviations: see `training.data.exact.sums`."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from training.data.exact.rounding import rounded_root
from training.data.exact.sums import CHUNK_ROWS, LEAST_EXPONENT, SCALING, ExactSum, Floats, shifted

SQUARE_LEAST: Final = 2.0**-450
SQUARE_LARGEST: Final = 2.0**450
"""Between these, a square and its rounding error are normal floats."""
SPLITTER: Final = 134_217_729.0
"""2**27 + 1: splits a float into two of 26 bits."""
DIGIT_BITS: Final = 20
"""Of a chunk's digits: the products of two add up to at most 2**53, so that a dot product is exact as float64, in any order."""
MAX_DIGITS: Final = 6
"""Of a chunk; values of more different sizes are squared one by one."""
DIGIT_EXPONENTS: Final = range(-300, 450)
"""Of a chunk's largest value: the squares of its digits are normal floats."""


class ExactMoments:
    """Count, sum and sum of squares of the values added so far, all exact, in one pass."""

    def __init__(self) -> None:
        self.sum = ExactSum()
        self._squares = {scaling: ExactSum() for scaling in (-SCALING, 0, SCALING)}
        """By binary exponent that the values were scaled down by."""

    @property
    def count(self) -> int:
        return self.sum.count

    def add(self, values: NDArray[np.floating[Any]]) -> None:
        """Add values, any shape, as float64."""
        flat = np.ascontiguousarray(values).reshape(-1)
        # The square of 24 bits has 48, and its exponent is far from float64's ends: nothing is rounded.
        is_narrow = flat.dtype == np.float32
        work = np.empty((1 + MAX_DIGITS, min(len(flat), CHUNK_ROWS)))
        for start in range(0, len(flat), CHUNK_ROWS):
            chunk = flat[start : start + CHUNK_ROWS].astype(np.float64, copy=False)
            if self._add_digits(chunk, work[:, : len(chunk)]):
                continue
            if is_narrow:
                self.sum.add(chunk)
                self._squares[0].add(chunk * chunk)
            else:
                self._add_chunk(chunk)

    def merge(self, other: ExactMoments) -> Self:
        """Add what another has summed; return self."""
        self.sum.merge(other.sum)
        for scaling, squares in self._squares.items():
            squares.merge(other._squares[scaling])
        return self

    @property
    def mean(self) -> float:
        """As `ExactSum.mean`."""
        return self.sum.mean

    @property
    def exact_mean(self) -> Fraction:
        """The mean of finite values, of which there is one at least, without rounding."""
        return Fraction(self.sum.units, self.count << -LEAST_EXPONENT)

    @property
    def deviation(self) -> float:
        """The population's standard deviation: the root of the exact variance, rounded once.

        NaN without values, or if one is not finite.
        """
        numerator, denominator = self._exact_variance()
        return rounded_root(numerator, denominator) if denominator else math.nan

    def _add_digits(self, values: Floats, work: Floats) -> bool:
        """Add values as sums and dot products of their digits, where these are few and none is special; return whether they were added.

        A digit is a whole number of `DIGIT_BITS` bits and a sign, times a power of two that all values share: the first one that of the
        largest value, each next one 2**-DIGIT_BITS of it.

        Args:
            values: [n], at most `CHUNK_ROWS`.
            work: [1 + MAX_DIGITS, n], overwritten.
        """
        largest = max(float(values.max()), -float(values.min()))
        exponent = math.frexp(largest)[1] - DIGIT_BITS
        if not (math.isfinite(largest) and exponent + DIGIT_BITS in DIGIT_EXPONENTS):
            return False
        rest, digits = work[0], work[1:]
        rest[:] = values
        num_digits = 0
        while float(np.dot(rest, rest)):
            if num_digits == MAX_DIGITS:
                return False
            splitting = math.ldexp(1.5, exponent - DIGIT_BITS * num_digits + 52)
            digit = digits[num_digits]
            np.add(rest, splitting, out=digit)
            digit -= splitting
            rest -= digit
            num_digits += 1
        if rest.any():
            # So small that its squares are 0.
            return False
        self.sum.count += len(values)
        # In units of the last digit, and of its square.
        last = exponent - DIGIT_BITS * (num_digits - 1)
        total, squares = 0, 0
        for place in range(num_digits):
            total += int(math.ldexp(float(digits[place].sum()), -last))
            for other in range(place + 1):
                product = int(math.ldexp(float(np.dot(digits[place], digits[other])), -2 * last))
                squares += product if other == place else 2 * product
        self.sum.add_units(total << last - LEAST_EXPONENT)
        self._squares[0].add_units(squares << 2 * last - LEAST_EXPONENT)
        return True

    def _add_chunk(self, values: Floats) -> None:
        self.sum.add(values)
        sizes = np.abs(values)
        is_small, is_large = sizes < SQUARE_LEAST, sizes > SQUARE_LARGEST
        if not (is_small.any() or is_large.any()):
            return self._add_squares(values, 0)
        is_large &= np.isfinite(values)
        self._add_squares(values[is_small] * 2.0**SCALING, -SCALING)
        self._add_squares(values[is_large] * 2.0**-SCALING, SCALING)
        self._add_squares(values[(sizes >= SQUARE_LEAST) & (sizes <= SQUARE_LARGEST)], 0)
        return None

    def _add_squares(self, values: Floats, scaling: int) -> None:
        """Add the squares of values that were scaled, each as the rounded square and its error (Dekker)."""
        square = values * values
        high = values * SPLITTER
        high -= high - values
        low = values - high
        error = ((high * high - square) + 2.0 * high * low) + low * low
        self._squares[scaling].add(square)
        self._squares[scaling].add(error)

    def _exact_variance(self) -> tuple[int, int]:
        """Return the variance as a fraction; a denominator of 0 where there is none."""
        count = self.count
        if not count or not self.sum.is_finite:
            return 0, 0
        # In units of 2**(2 * LEAST_EXPONENT), the square of the sum's unit.
        shift = -LEAST_EXPONENT
        squares = sum(shifted(part.units, shift + 2 * scaling) for scaling, part in self._squares.items())
        return count * squares - self.sum.units**2, count * count << 2 * shift
