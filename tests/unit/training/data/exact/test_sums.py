from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from training.data.exact.group_sums import GroupSums
from training.data.exact.moments import ExactMoments
from training.data.exact.sums import CHUNK_ROWS, ExactSum, exact_mean

Floats = NDArray[np.float64]

LARGEST = math.nextafter(math.inf, 0)
LEAST = math.ulp(0.0)


def exact_sum(values: Floats) -> float:
    total = ExactSum()
    total.add(values)
    return total.value


def exact_deviation(values: Floats) -> float:
    moments = ExactMoments()
    moments.add(values)
    return moments.deviation


def any_bits(rng: np.random.Generator, num: int) -> Floats:
    """Return finite floats of every exponent."""
    values = rng.integers(0, 1 << 64, num, dtype=np.uint64).view(np.float64)
    # So that most sums stay finite.
    return np.where(np.abs(values) < 2.0**1000, values, values.view(np.uint64).astype(np.float64))


def cancelling(rng: np.random.Generator, num: int) -> Floats:
    """Return values of 600 orders of magnitude that cancel, and a remainder that a running sum loses."""
    half = rng.normal(size=num // 2) * 10.0 ** rng.integers(-300, 300, num // 2)
    values = np.concatenate([half, -half, rng.normal(size=3) * 1e-9])
    return rng.permutation(values)


def samples() -> Iterator[Floats]:
    rng = np.random.default_rng(7)
    for num in (1, 2, 3, 100, CHUNK_ROWS - 1, CHUNK_ROWS, CHUNK_ROWS + 1, 3 * CHUNK_ROWS + 17):
        yield any_bits(rng, num)
        yield cancelling(rng, num)
        yield rng.normal(size=num) * 1e3
        yield rng.integers(0, 1 << 20, num) * LEAST
        yield np.full(num, 0.1)
    yield np.array([LARGEST, LARGEST, -LARGEST])
    yield np.array([LARGEST, -LARGEST, LEAST])
    yield np.array([2.0**1023, 2.0**-1074, -(2.0**1023)])
    # Ties to even, and just above a tie.
    yield np.array([1.0, 2.0**-53])
    yield np.array([1.0, 2.0**-53, 2.0**-1074])
    yield np.array([1.0, -(2.0**-54), -LEAST])


def fsum(values: Floats) -> float:
    """Return `math.fsum`, and what it would be where that overflows on the way."""
    try:
        return math.fsum(values)
    except OverflowError:
        return _nearest(sum(map(Fraction, values.tolist()), Fraction(0)))


def in_parts(values: Floats, rng: np.random.Generator) -> list[Floats]:
    """Return the values in another order and in parts of random sizes."""
    return np.split(rng.permutation(values), np.sort(rng.integers(0, len(values) + 1, 5)))


@pytest.mark.parametrize("values", list(samples()))
def test_a_sum_is_that_of_fsum_in_any_order_and_any_batches(values: Floats) -> None:
    expected = fsum(values)

    assert exact_sum(values) == expected
    for seed in range(4):
        total = ExactSum()
        for part in in_parts(values, np.random.default_rng(seed)):
            total.add(part)
        assert (total.value, total.count) == (expected, len(values))
        assert total.mean == expected / len(values)


@pytest.mark.parametrize("values", list(samples()))
def test_merged_sums_are_the_sum_of_all(values: Floats) -> None:
    parts = [ExactSum() for _ in range(6)]
    for part, some in zip(parts, in_parts(values, np.random.default_rng(1)), strict=True):
        part.add(some)

    left = ExactSum()
    for part in parts:
        left.merge(part)
    right = ExactSum()
    for part in reversed(parts):
        right = ExactSum().merge(part).merge(right)

    assert left.value == right.value == fsum(values)
    assert left.units == right.units


@pytest.mark.parametrize("values", list(samples()))
def test_deviation_is_the_exact_one_rounded_once(values: Floats) -> None:
    moments = ExactMoments()
    for part in in_parts(values, np.random.default_rng(2)):
        moments.merge(_moments(part))
    # Multiples of 2**-1074: integers are many times faster than fractions.
    exact = [value.numerator * ((1 << 1074) // value.denominator) for value in map(Fraction, values.tolist())]
    variance = Fraction(len(exact) * sum(value * value for value in exact) - sum(exact) ** 2, len(exact) ** 2 << 2148)

    assert moments.mean == fsum(values) / len(values)
    assert is_nearest_root(moments.deviation, variance)


@pytest.mark.parametrize("small", [1e-5, 1e-17, 1e-60, 1e-200, 1e-320])
def test_the_moments_of_small_and_large_values_together_lose_no_bit(small: float) -> None:
    values = np.random.default_rng(4).normal(size=500)
    values[::3] *= small
    found = _moments(values)
    exact = list(map(Fraction, values.tolist()))
    assert found.exact_mean == sum(exact) / len(exact)
    assert is_nearest_root(found.deviation, sum(value**2 for value in exact) / len(exact) - found.exact_mean**2)


def _moments(values: Floats) -> ExactMoments:
    moments = ExactMoments()
    moments.add(values)
    return moments


def _nearest(value: Fraction) -> float:
    try:
        return value.numerator / value.denominator
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def is_nearest_root(root: float, square: Fraction) -> bool:
    """Return whether no other float is nearer to the square's root."""
    if not square or math.isinf(root):
        return root == 0.0 or square > Fraction(LARGEST) ** 2
    below, above = ((Fraction(root) + Fraction(math.nextafter(root, side))) / 2 for side in (0.0, math.inf))
    return below**2 <= square <= above**2


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], 0.0),
        ([-0.0], 0.0),
        ([-0.0, -0.0], 0.0),
        ([1.0, -1.0], 0.0),
        ([math.inf, 1.0], math.inf),
        ([-math.inf, LARGEST], -math.inf),
        ([math.inf, -math.inf], math.nan),
        ([math.nan, 1.0], math.nan),
        ([math.nan, math.inf], math.nan),
        ([LARGEST, LARGEST], math.inf),
        ([-LARGEST, -LARGEST], -math.inf),
        ([LARGEST, LARGEST / 2, -LARGEST], LARGEST / 2),
        ([LEAST, LEAST], 2 * LEAST),
    ],
)
def test_special_values_have_a_defined_sum(values: list[float], expected: float) -> None:
    for order in (values, values[::-1]):
        total = exact_sum(np.array(order, dtype=np.float64))
        groups = GroupSums(1)
        groups.add(np.zeros(len(order), dtype=np.int64), np.array(order, dtype=np.float64))

        assert repr(total) == repr(expected)
        assert repr(float(groups.sums()[0])) == repr(expected)


def test_a_mean_is_finite_where_the_sum_is_too_large() -> None:
    values = np.array([LARGEST, LARGEST, LARGEST])
    groups = GroupSums(2)
    groups.add(np.ones(3, dtype=np.int64), values)

    assert exact_mean(values) == LARGEST
    assert groups.means()[1] == LARGEST
    assert math.isnan(groups.means()[0])
    assert exact_deviation(values) == 0.0


def test_nothing_and_infinite_values_have_no_deviation() -> None:
    for values in ([], [math.nan, 1.0], [math.inf, 1.0]):
        assert math.isnan(exact_deviation(np.array(values)))
    assert math.isnan(exact_mean(np.array([])))


@pytest.mark.parametrize("num_groups", [1, 7, 2_000])
def test_sums_by_group_are_those_of_fsum_in_any_order_and_any_batches(num_groups: int) -> None:
    rng = np.random.default_rng(3)
    values = np.concatenate(list(samples()))
    groups = rng.integers(0, num_groups, len(values))
    expected = np.array([fsum(values[groups == group]) for group in range(num_groups)])

    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(values))
        merged = GroupSums(num_groups)
        for part in np.array_split(order, 7):
            sums = GroupSums(num_groups)
            sums.add(groups[part], values[part])
            merged.merge(sums)
        np.testing.assert_array_equal(merged.sums(), expected)
        np.testing.assert_array_equal(merged.counts, np.bincount(groups, minlength=num_groups))
        with np.errstate(invalid="ignore"):
            finite = np.isfinite(expected) & (merged.counts > 0)
        np.testing.assert_array_equal(merged.means()[finite], expected[finite] / merged.counts[finite])


def test_digits_of_groups_are_carried_before_they_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.data.exact.group_sums.BATCHES_BETWEEN_CARRIES", 3)
    rng = np.random.default_rng(5)
    sums, every = GroupSums(2), []
    for _ in range(50):
        values = any_bits(rng, 64)
        sums.add(np.ones(64, dtype=np.int64), values)
        every.append(values)

    assert sums.sums()[1] == fsum(np.concatenate(every))
    assert max(np.abs(limb).max() for limb in sums._limbs.values()) < 1 << 45
