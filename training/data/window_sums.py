"""Counts, extremes and exact sums over ranges: each value is active for the places `first` to `end` of one axis.

No step of a sum rounds: values are added as integers of one scale, and the sum of a place is rounded once, to the nearest float64. It
equals `math.fsum` of the values that are active there, in any order of them and in any division into blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Values = NDArray[Any]

LIMB_BITS: Final = 32
LIMB_MASK: Final = 2**32 - 1
INT_BITS: Final = 62
"""An int64 holds sums of so many bits, with their sign."""


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
    scaled = _Scaled.of(values)
    if scaled.num_bits + len(values).bit_length() <= INT_BITS:
        return np.ldexp(ranges.totals(scaled.integers()).astype(np.float64), scaled.exponent)
    return _rounded([ranges.totals(limb) for limb in scaled.limbs()], scaled.exponent)


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
        spread = _large_spread(scaled, ranges, counts)
    return np.sqrt(spread / (counts.astype(np.float64) * (counts - 1)))


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

    def limbs(self) -> list[Ints]:
        """Return the digits to the base 2**32, the lowest first, with the value's sign."""
        size, sign = np.abs(self.significand).astype(np.uint64), np.sign(self.significand)
        found = []
        for place in range(0, self.num_bits + 1, LIMB_BITS):
            down, up = np.clip(place - self.shift, 0, 63), np.clip(self.shift - place, 0, 63)
            digit = np.where(self.shift <= place, size >> down.astype(np.uint64), size << up.astype(np.uint64)) & np.uint64(LIMB_MASK)
            digit[self.shift - place >= LIMB_BITS] = 0
            found.append(sign * digit.astype(np.int64))
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


def _rounded(limbs: Sequence[Ints], exponent: int) -> Floats:
    """Return the numbers that digits to the base 2**32, the lowest first, of either sign, make; rounded to nearest, ties to even."""
    carried = _carried(limbs)
    negative = carried[-1] < 0
    carried = _carried([np.where(negative, -limb, limb) for limb in carried])
    top = carried.pop()
    digits = np.stack([*carried, top & LIMB_MASK, top >> LIMB_BITS][::-1] + [np.zeros_like(top)] * 2).astype(np.uint64)
    first = (digits[:-2] != 0).argmax(axis=0)
    lead, second, third = (np.take_along_axis(digits, (first + more)[None], axis=0)[0] for more in range(3))
    rest = np.logical_or.accumulate(digits[::-1] != 0, axis=0)[::-1]
    below = np.take_along_axis(np.concatenate([rest, np.zeros_like(rest[:1])]), (first + 3)[None], axis=0)[0]
    bits = np.frexp(lead.astype(np.float64))[1].astype(np.uint64)
    bits[lead == 0] = 1
    head = (lead << (np.uint64(64) - bits)) | (second << (np.uint64(32) - bits)) | (third >> bits)
    # Far below the last bit of a float64, so it only breaks ties.
    head |= (below | ((third & ((np.uint64(1) << bits) - np.uint64(1))) != 0)).astype(np.uint64)
    place = (len(digits) - 3 - first) * LIMB_BITS + bits.astype(np.int64) - 64
    found = np.ldexp(head.astype(np.float64), (place + exponent).astype(np.int32))
    return np.where(negative, -found, np.where(lead == 0, 0.0, found))


def _carried(limbs: Sequence[Ints]) -> list[Ints]:
    """Return the same numbers with all digits but the last from 0 to 2**32 - 1."""
    carry, found = np.zeros_like(limbs[0]), []
    for limb in limbs[:-1]:
        whole = limb + carry
        found.append(whole & LIMB_MASK)
        carry = whole >> LIMB_BITS
    return [*found, limbs[-1] + carry]


def _ufunc_at(choose: Any, found: Values, places: Ints, values: Values) -> None:
    choose.at(found, places, values)
