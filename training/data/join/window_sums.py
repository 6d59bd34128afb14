"""Counts, extremes and exact sums over ranges: each value is active for the places `first` to `end` of one axis.

No step of a sum rounds: values are added as integers of one scale, and the sum of a place is rounded once, to the nearest float64. It
equals `math.fsum` of the values that are active there, in any order of them and in any division into blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Values = NDArray[Any]

INT_BITS: Final = 62
"""An int64 holds sums of so many bits, with their sign."""
MAX_LIMB_BITS: Final = 40
HALF_BITS: Final = 40
"""Of a value's lower half. The upper half has as many at most."""
FLOAT_BITS: Final = 53
MAX_SQUARED_BITS: Final = 24
"""Of a digit that is squared."""
MAX_DIGITS: Final = 10
"""Of a value that is squared: of more, Python's integers take less time."""
MAX_EXPONENT: Final = 900
"""Between 2**-900 and 2**900 no step over- or underflows."""


@dataclass(frozen=True, slots=True)
class Ranges:
    """Of each value, [n]: the places for which it is active, `first <= place < end`, of the places 0 to `num` - 1."""

    first: Ints
    end: Ints
    num: int

    def of(self, numbers: Ints) -> Ranges:
        """Return the ranges of some of the values."""
        return Ranges(self.first[numbers], self.end[numbers], self.num)

    def counts(self) -> Ints:
        """Return [num] how many values are active."""
        return self.totals(np.ones(len(self.first), dtype=np.int64))

    def totals(self, values: Ints) -> Ints:
        """Return [num] the sums of the values that are active; the sum of all must fit an int64."""
        steps = np.zeros(self.num + 1, dtype=np.int64)
        np.add.at(steps, self.first, values)
        np.subtract.at(steps, self.end, values)
        return np.cumsum(steps[:-1])

    def extreme(self, values: Values, choose: Callable[..., Values], none: float) -> Values:
        """Return [num] the smallest or largest value that is active, `none` without one.

        A range is covered by two of the largest power of two; each power's are then divided in two, down to single places.
        """
        found = np.full(self.num, none, dtype=values.dtype)
        if not len(values):
            return found
        level = np.frexp((self.end - self.first).astype(np.float64))[1] - 1
        for power in range(int(level.max()), -1, -1):
            here, width = np.flatnonzero(level == power), 1 << power
            if power < int(level.max()):
                # What covers 2 * width places from here on covers width from here, and width from there.
                shifted = found[:-width]
                found[width:] = choose(found[width:], shifted.copy())
            _ufunc_at(choose, found, self.first[here], values[here])
            _ufunc_at(choose, found, self.end[here] - width, values[here])
        return found


def sums(values: Values, ranges: Ranges) -> Floats:
    """Return [num] the exact sums of the values that are active, rounded once; 0.0 without one.

    Args:
        values: [n] int64, or finite float64.
    """
    halves = _halves(values) if values.dtype == np.float64 else None
    if halves is not None:
        high, low, exponent = halves
        found = _sum_of_halves(ranges.totals(high), ranges.totals(low), exponent)
        if found is not None:
            return found
    scaled = _Scaled.of(values)
    if scaled.num_bits + len(values).bit_length() <= INT_BITS:
        return np.ldexp(ranges.totals(scaled.integers()).astype(np.float64), scaled.exponent)
    limb_bits = min(MAX_LIMB_BITS, INT_BITS - len(values).bit_length())
    return _rounded([ranges.totals(limb) for limb in scaled.limbs(limb_bits)], limb_bits, scaled.exponent)


def deviations(values: Values, ranges: Ranges, counts: Ints) -> Floats:
    """Return [num] the sample standard deviations, from exact sums; undefined below two values.

    The variance is (n * sum of squares - square of the sum) / (n * (n - 1)): the difference is exact, and rounded once.
    """
    scaled = _Scaled.of(values)
    if 2 * (scaled.num_bits + len(values).bit_length()) <= INT_BITS:
        integers = scaled.integers()
        total, squares = ranges.totals(integers), ranges.totals(integers * integers)
        spread = np.ldexp((counts * squares - total * total).astype(np.float64), 2 * scaled.exponent)
    else:
        spread = _spread_of_digits(scaled, ranges, counts)
    return np.sqrt(spread / (counts.astype(np.float64) * (counts - 1)))


def _halves(values: Floats) -> tuple[Ints, Ints, int] | None:
    """Return (high, low, exponent): values are `(high * 2**HALF_BITS + low) * 2**exponent`, low from 0. None: not all are so."""
    if not len(values) or len(values).bit_length() + HALF_BITS > INT_BITS:
        return None
    size = np.abs(values)
    largest = float(size.max())
    smallest = float(size.min(where=size > 0, initial=largest))
    exponent = math.frexp(smallest)[1] - FLOAT_BITS
    top = math.frexp(largest)[1]
    if not largest or top - exponent > 2 * HALF_BITS or exponent < -MAX_EXPONENT or top > MAX_EXPONENT:
        return None
    # Scaling by a power of two is exact here, and so is the difference: both are multiples of 2**exponent.
    high = np.floor(values * 2.0 ** -(exponent + HALF_BITS))
    low = (values - high * 2.0 ** (exponent + HALF_BITS)) * 2.0**-exponent
    return high.astype(np.int64), low.astype(np.int64), exponent


def _sum_of_halves(high: Ints, low: Ints, exponent: int) -> Floats | None:
    """Return the numbers rounded once; None: one is so large that the sum of two floats would round twice."""
    high = high + (low >> HALF_BITS)
    if len(high) and max(int(high.max()), -int(high.min())) >= 1 << FLOAT_BITS:
        return None
    found: Floats = (high * 2.0**HALF_BITS + (low & ((1 << HALF_BITS) - 1))) * 2.0**exponent
    return found


@dataclass(frozen=True, slots=True)
class _Scaled:
    """Values as integers of one scale: `significand * 2**(shift + exponent)`."""

    significand: Ints
    """[n] odd, or 0."""
    shift: Ints
    """[n], from 0 on."""
    exponent: int
    num_bits: int
    """Of the largest `significand * 2**shift`."""

    @classmethod
    def of(cls, values: Values) -> _Scaled:
        if values.dtype == np.int64:
            significand, exponents = values, np.zeros(len(values), dtype=np.int64)
            size = np.abs(values.astype(np.float64))
            bits = int(np.frexp(size.max())[1]) + 1 if len(values) else 0
            return cls(significand, exponents, 0, bits)
        fraction, exponents = np.frexp(values)
        significand = np.ldexp(fraction, 53).astype(np.int64)
        zeros = np.frexp((significand & -significand).astype(np.float64))[1].astype(np.int64) - 1
        zeros[significand == 0] = 0
        used = significand != 0
        lowest = exponents.astype(np.int64) - 53 + zeros
        exponent = int(lowest[used].min()) if used.any() else 0
        highest = int(exponents[used].max()) if used.any() else 0
        return cls(significand >> zeros, np.where(used, lowest - exponent, 0), exponent, highest - exponent)

    def integers(self) -> Ints:
        return self.significand << self.shift

    def limbs(self, limb_bits: int) -> list[Ints]:
        """Return the digits to the base `2**limb_bits`, the lowest first, with the value's sign."""
        size, is_negative = np.abs(self.significand).astype(np.uint64), self.significand < 0
        shift, mask, found = self.shift.astype(np.uint64), np.uint64((1 << limb_bits) - 1), []
        for place in range(0, self.num_bits + 1, limb_bits):
            is_up = self.shift >= place
            # What is shifted out at the top belongs to a higher digit.
            digit = np.where(is_up, size << np.minimum(shift - place, 63), size >> np.minimum(place - shift, 63))
            digit &= mask
            digit[self.shift - place >= limb_bits] = 0
            found.append(np.where(is_negative, -digit.astype(np.int64), digit.astype(np.int64)))
        return found


def _spread_of_digits(scaled: _Scaled, ranges: Ranges, counts: Ints) -> Floats:
    """Return n * sum of squares - square of the sum, all as digits of one base, rounded once."""
    rows_bits = len(scaled.significand).bit_length()
    for base_bits in range(MAX_SQUARED_BITS, 0, -1):
        num_digits = scaled.num_bits // base_bits + 1
        # Digits that the largest sum has beyond those of a value.
        spare = rows_bits // base_bits + 2
        if 2 * base_bits + (num_digits + spare).bit_length() + rows_bits <= INT_BITS:
            break
    if num_digits > MAX_DIGITS or scaled.exponent < -MAX_EXPONENT // 2:
        return _large_spread(scaled, ranges, counts)
    zeros = [np.zeros(ranges.num, dtype=np.int64)] * (spare + 2)
    digits = scaled.limbs(base_bits)
    total = _carried([*(ranges.totals(digit) for digit in digits), *zeros], base_bits)
    squares = _carried([*(ranges.totals(digit) for digit in _squared(digits)), *zeros], base_bits)
    spread = [-digit for digit in _squared(total)]
    for place, digit in enumerate(squares):
        spread[place] += counts * digit
    return _rounded(spread, base_bits, 2 * scaled.exponent)


def _squared(digits: Sequence[Ints]) -> list[Ints]:
    """Return the digits of the squares, larger than the base."""
    found = [np.zeros_like(digits[0]) for _ in range(2 * len(digits) - 1)]
    for place, digit in enumerate(digits):
        found[2 * place] += digit * digit
        twice = 2 * digit
        for other in range(place + 1, len(digits)):
            found[place + other] += twice * digits[other]
    return found


def _large_spread(scaled: _Scaled, ranges: Ranges, counts: Ints) -> Floats:
    """Return n * sum of squares - square of the sum, in Python's integers of any size."""
    integers = [int(value) << int(shift) for value, shift in zip(scaled.significand, scaled.shift, strict=True)]
    steps = [[0] * (ranges.num + 1) for _ in range(2)]
    for value, first, end in zip(integers, ranges.first, ranges.end, strict=True):
        for power, column in enumerate(steps, start=1):
            column[first] += value**power
            column[end] -= value**power
    found, total, squares = np.empty(ranges.num), 0, 0
    for place, count in enumerate(counts):
        total, squares = total + steps[0][place], squares + steps[1][place]
        found[place] = _as_float(int(count) * squares - total * total, 2 * scaled.exponent)
    return found


def _as_float(number: int, exponent: int) -> float:
    try:
        return number / (1 << -exponent) if exponent < 0 else float(number << exponent)
    except OverflowError:
        return float("inf")


def _rounded(limbs: Sequence[Ints], limb_bits: int, exponent: int) -> Floats:
    """Return the numbers that digits to the base `2**limb_bits`, the lowest first, make; rounded to nearest, ties to even.

    Digits are of either sign, and larger than the base. From the highest on, as many bits are moved up as fit an integer of 62 bits; the
    last bit then stands for whatever is not zero below it: far below the last bit of a float64, it only breaks ties.
    """
    digits = _carried(limbs, limb_bits)
    head = digits.pop()
    place = np.full(len(head), limb_bits * len(digits) + exponent, dtype=np.int64)
    is_open, below = np.ones(len(head), dtype=bool), np.zeros(len(head), dtype=bool)
    for digit in reversed(digits):
        bits = np.frexp(np.abs(head.astype(np.float64)))[1]
        up = np.where(is_open, np.clip(INT_BITS - bits, 0, limb_bits), 0).astype(np.int64)
        rest = limb_bits - up
        head = (head << up) | (digit >> rest)
        below |= (digit & ((np.int64(1) << rest) - 1)) != 0
        place -= up
        is_open &= rest == 0
    return np.ldexp((head | below).astype(np.float64), place.astype(np.int32))


def _carried(limbs: Sequence[Ints], limb_bits: int) -> list[Ints]:
    """Return the same numbers with all digits but the last from 0 to the base - 1."""
    carry, found = np.zeros_like(limbs[0]), []
    for limb in limbs[:-1]:
        whole = limb + carry
        found.append(whole & ((1 << limb_bits) - 1))
        carry = whole >> limb_bits
    return [*found, limbs[-1] + carry]


def _ufunc_at(choose: Any, found: Values, places: Ints, values: Values) -> None:
    choose.at(found, places, values)
