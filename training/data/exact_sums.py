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
from fractions import Fraction
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEAST_EXPONENT: Final = -1074
"""Every finite float64 is a multiple of 2 to this."""
CHUNK_ROWS: Final = 1 << 13
"""Fits the processor's nearest caches."""
LARGE_EXPONENT: Final = 960
"""Values from 2 to this on are scaled down first: the constant that splits them would be infinite."""
SCALING: Final = 600
"""Binary exponent that values too large or too small are scaled by, which loses no bit."""
LIMB_BITS: Final = 30
"""Of one digit of a group's sum."""
LIMB_CHUNK_ROWS: Final = 1 << 18
"""Of so many values, digits add up to less than 2**53, so that their sum is exact as float64."""
MAX_EXACT: Final = 1 << 53
"""Below it every integer is a float64."""
BATCHES_BETWEEN_CARRIES: Final = 1 << 12
"""An int64 holds the digits' sums of so many chunks."""
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


class ExactSum:
    """The exact sum of the values added so far.

    About 200 M values a second and core where their sizes are similar, 12 M where they span every exponent.
    """

    def __init__(self) -> None:
        self.count = 0
        """Values added, NaN and infinite ones included."""
        self._units = 0
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
        self._units += other._units
        self._special = _added(self._special, other._special)
        return self

    def add_units(self, units: int) -> None:
        """Add to the sum of the finite values, in units of 2**-1074; the count stays."""
        self._units += units

    @property
    def value(self) -> float:
        """The sum, rounded once."""
        return self._special if self._special else rounded_quotient(self._units, 1 << -LEAST_EXPONENT)

    @property
    def mean(self) -> float:
        """The rounded sum divided by the count, as `math.fsum(values) / len(values)`; NaN without values."""
        if not self.count:
            return math.nan
        total = self.value
        if math.isinf(total) and not self._special:
            return rounded_quotient(self._units, self.count << -LEAST_EXPONENT)
        return total / self.count

    @property
    def is_finite(self) -> bool:
        """Whether every value was finite."""
        return not self._special

    @property
    def units(self) -> int:
        """The sum of the finite values in units of 2**-1074, exact."""
        return self._units

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
            self._units += _in_units(float(high.sum()), scaling)


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
    def variance(self) -> float:
        """The population's variance, the exact value rounded once; NaN without values, or if one is not finite."""
        numerator, denominator = self._exact_variance()
        return rounded_quotient(numerator, denominator) if denominator else math.nan

    @property
    def deviation(self) -> float:
        """The population's standard deviation: the root of the exact variance, rounded once; NaN as `variance`."""
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
        squares = sum(_shifted(part.units, shift + 2 * scaling) for scaling, part in self._squares.items())
        return count * squares - self.sum.units**2, count * count << 2 * shift


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


def exact_sum(values: Floats) -> float:
    """Return the sum of values, see the module."""
    total = ExactSum()
    total.add(values)
    return total.value


def exact_mean(values: NDArray[np.floating[Any]]) -> float:
    """Return the mean of values, see `ExactSum.mean`."""
    total = ExactSum()
    total.add(values)
    return total.mean


def exact_deviation(values: Floats) -> float:
    """Return the population's standard deviation, see `ExactMoments.deviation`."""
    moments = ExactMoments()
    moments.add(values)
    return moments.deviation


def rounded_quotient(numerator: int, denominator: int) -> float:
    """Return a fraction as the nearest float, ties to even; infinite beyond the largest one."""
    try:
        # Python divides integers with one rounding.
        return numerator / denominator
    except OverflowError:
        return math.inf if numerator > 0 else -math.inf


def rounded_root(numerator: int, denominator: int) -> float:
    """Return the root of a fraction as the nearest float."""
    if not numerator:
        return 0.0
    # At least 64 bits of the root: its last bit then only says that the root is not exact, and cannot be a tie.
    shift = max(0, 128 + denominator.bit_length() - numerator.bit_length() + 1) & ~1
    scaled, remainder = divmod(numerator << shift, denominator)
    root = math.isqrt(scaled)
    is_exact = not remainder and root * root == scaled
    return rounded_quotient(2 * root + (not is_exact), 2 << shift // 2)


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


def _in_units(value: float, scaling: int) -> int:
    """Return `value * 2**scaling` in units of 2**LEAST_EXPONENT."""
    mantissa, exponent = math.frexp(value)
    return _shifted(int(mantissa * 2.0**53), exponent - 53 + scaling - LEAST_EXPONENT)


def _shifted(number: int, bits: int) -> int:
    """Return number * 2**bits, which is whole."""
    return number << bits if bits >= 0 else number >> -bits


def _added(one: float, other: float) -> float:
    """Return the sum of two, each 0.0, infinite or NaN."""
    return one + other
