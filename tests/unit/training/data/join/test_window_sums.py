"""Sums and deviations over ranges are the exact ones, rounded once, of values of any size and sign."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest

from training.data.join.window_sums import Ranges, deviations, sums

HOSTILE = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.1,
    1 / 3,
    2.0**53,
    -(2.0**53),
    2.0**53 + 2,
    5e-324,
    -5e-324,
    1e-308,
    1e300,
    -1e300,
    2.0**-60,
    1e16,
    -1e16,
)
KINDS = {
    "hostile": lambda chance: chance.choice(HOSTILE),
    "prices": lambda chance: round(chance.uniform(-500, 500), 2),
    "of one size": lambda chance: chance.gauss(0, 1),
    "large with a small spread": lambda chance: 1e9 + chance.choice((0.0, 0.25, 0.5)),
    "halves of the last bit": lambda chance: chance.choice((2.0**53, 1.0, -1.0, 2.0**-52)),
}


def ranges_of(chance: random.Random, count: int, num: int) -> Ranges:
    pairs = [sorted(chance.sample(range(num + 1), 2)) for _ in range(count)]
    return Ranges(*(np.array([pair[end] for pair in pairs], dtype=np.int64) for end in (0, 1)), num)


def active(values: Sequence[float], ranges: Ranges, place: int) -> list[Fraction]:
    both = zip(values, ranges.first, ranges.end, strict=True)
    return [Fraction(value) for value, first, end in both if first <= place < end]


@pytest.mark.parametrize("kind", list(KINDS))
def test_sum_is_the_nearest_float_of_the_exact_one(kind: str) -> None:
    chance = random.Random(kind)  # noqa: S311 - repeatable cases
    for _ in range(40):
        values = [KINDS[kind](chance) for _ in range(chance.randrange(1, 60))]
        ranges = ranges_of(chance, len(values), 40)
        found = sums(np.array(values), ranges)
        for place in range(40):
            expected = sum(active(values, ranges, place), Fraction())
            assert found[place] == float(expected), (place, expected)
            assert math.copysign(1, found[place]) == 1 or expected < 0


def test_sum_of_integers_beyond_those_of_a_float_is_exact() -> None:
    chance = random.Random(1)  # noqa: S311 - repeatable cases
    values = [chance.choice((2**63 - 1, -(2**63), 2**53 + 1, 1, -1)) for _ in range(50)]
    ranges = ranges_of(chance, 50, 40)
    found = sums(np.array(values, dtype=np.int64), ranges)
    assert found.tolist() == [float(sum(active(values, ranges, place), Fraction())) for place in range(40)]


@pytest.mark.parametrize("kind", ["prices", "of one size", "large with a small spread"])
def test_deviation_does_not_suffer_from_cancellation(kind: str) -> None:
    chance = random.Random(kind)  # noqa: S311 - repeatable cases
    values = [KINDS[kind](chance) for _ in range(60)]
    ranges = ranges_of(chance, 60, 40)
    counts = ranges.counts()
    found = deviations(np.array(values), ranges, counts)
    for place in np.flatnonzero(counts > 1):
        exact = active(values, ranges, int(place))
        mean = sum(exact) / len(exact)
        expected = math.sqrt(sum((value - mean) ** 2 for value in exact) / (len(exact) - 1))
        assert found[place] == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("kind", list(KINDS))
def test_deviation_is_that_of_the_exact_spread_rounded_once(kind: str) -> None:
    chance = random.Random(kind)  # noqa: S311 - repeatable cases
    for num_values in (2, 3, 60, 300):
        values = [KINDS[kind](chance) for _ in range(num_values)]
        ranges = ranges_of(chance, num_values, 40)
        counts = ranges.counts()
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            found = deviations(np.array(values), ranges, counts)
        for place in np.flatnonzero(counts > 1):
            exact, count = active(values, ranges, int(place)), int(counts[place])
            spread = count * sum(value * value for value in exact) - sum(exact) ** 2
            try:
                rounded = float(spread)
            except OverflowError:
                rounded = math.inf
            assert found[place] == math.sqrt(rounded / (count * (count - 1)))


@pytest.mark.parametrize("scale", [2.0**-1000, 2.0**-500, 2.0**-200, 1.0, 2.0**880, 2.0**940])
@pytest.mark.parametrize("sizes", [1.0, 2.0**20, 2.0**60])
def test_sum_of_values_of_any_scale_and_ratio_is_the_nearest_float(scale: float, sizes: float) -> None:
    chance = random.Random(7)  # noqa: S311 - repeatable cases
    values = [chance.uniform(-1, 1) * scale * chance.choice((1.0, sizes)) for _ in range(60)]
    ranges = ranges_of(chance, 60, 40)
    found = sums(np.array(values), ranges)
    assert found.tolist() == [float(sum(active(values, ranges, place), Fraction())) for place in range(40)]


def test_sum_of_many_values_is_rounded_once() -> None:
    chance = random.Random(8)  # noqa: S311 - repeatable cases
    num = 1 << 14
    for _ in range(10):
        values = [2.0**-27, *(1 + chance.random() for _ in range(num - 1))]
        found = sums(np.array(values), Ranges(np.zeros(num, dtype=np.int64), np.ones(num, dtype=np.int64), 1))
        units = sum(int(math.ldexp(value, 80)) for value in values)
        assert found.tolist() == [units / (1 << 80)]


@pytest.mark.parametrize(("choose", "python", "none"), [(np.minimum, min, 1000), (np.maximum, max, -1)])
def test_extreme_is_of_the_active_values_alone(choose: np.ufunc, python: Callable[..., Fraction], none: int) -> None:
    chance = random.Random(2)  # noqa: S311 - repeatable cases
    for _ in range(40):
        values = np.array([chance.randrange(100) for _ in range(chance.randrange(1, 30))])
        ranges = ranges_of(chance, len(values), 70)
        found = ranges.extreme(values, choose, none)
        assert found.tolist() == [python(active(values.tolist(), ranges, place), default=none) for place in range(70)]
