"""Histograms and moments of numbers: exact, and the same for any order and division of the rows."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pyarrow as pa
import pytest

from training.data.exact.integer_moments import IntegerMoments
from training.data.exact.moments import ExactMoments
from training.validation.columns.histogram import MAX_BINS, KeyHistogram, aligned, keys_of, values_of
from training.validation.columns.numbers import NumberColumn

RNG = np.random.default_rng(7)
SAMPLES = {
    "normal": RNG.normal(size=20_000),
    "years": RNG.integers(2013, 2027, 5_000).astype(float),
    "close": 1e9 + RNG.normal(size=5_000),
    "heavy": np.exp(RNG.normal(0, 40, 5_000)) * RNG.choice([-1, 1], 5_000),
    "ends": np.array([-1.7e308, -5e-324, 0.0, 5e-324, 1.7e308]),
    "one": np.array([3.0]),
}


def histogram(values: np.ndarray, parts: int = 1) -> KeyHistogram:
    found = KeyHistogram()
    for part in np.array_split(values, parts):
        found.add_sorted(np.sort(part))
    return found


@pytest.mark.parametrize("name", SAMPLES)
def test_a_histogram_is_the_same_for_any_order_and_division(name: str) -> None:
    values = SAMPLES[name]
    whole = histogram(values)
    assert whole.total == len(values)
    assert len(whole.keys) <= MAX_BINS
    for parts in (2, 7):
        shuffled = histogram(np.random.default_rng(parts).permutation(values), parts)
        merged = KeyHistogram()
        for part in np.array_split(values, parts):
            merged.merge(histogram(part))
        for found in (shuffled, merged, KeyHistogram.from_json(whole.to_json())):
            assert found.to_json() == whole.to_json()


@pytest.mark.parametrize("name", SAMPLES)
def test_numbers_in_any_order_are_counted_as_sorted_ones(name: str) -> None:
    found = KeyHistogram()
    for part in np.array_split(np.random.default_rng(3).permutation(SAMPLES[name]), 5):
        found.add(part)
    assert found.to_json() == histogram(SAMPLES[name]).to_json()


@pytest.mark.parametrize("name", SAMPLES)
def test_bins_hold_the_numbers_between_their_ends(name: str) -> None:
    values = np.sort(SAMPLES[name])
    found = histogram(values)
    # NaN, where the key is past that of the greatest number, sorts behind all.
    ends = values_of((found.keys + 1) << found.shift)
    counts = np.searchsorted(values, ends) - np.searchsorted(values, found.lows())
    assert counts.tolist() == found.counts.tolist()


def test_few_numbers_are_kept_apart_and_many_as_finely_as_the_bins_allow() -> None:
    assert (histogram(SAMPLES["years"]).shift, len(histogram(SAMPLES["years"]).keys)) == (0, 14)
    found = histogram(SAMPLES["normal"])
    assert MAX_BINS / 2 < len(found.keys)
    assert found.counts.max() / found.total < 1 / 100


def test_histograms_of_two_shifts_are_compared_in_the_coarser_bins() -> None:
    fine, coarse = histogram(np.array([1.0, 1.5, 2.0])), histogram(SAMPLES["normal"])
    keys, mine, theirs = aligned(fine, coarse)
    assert (mine.sum(), theirs.sum(), len(np.unique(keys))) == (3, 20_000, len(keys))
    assert mine.max() == 1


def test_keys_order_as_the_numbers_and_lead_back_to_them() -> None:
    values = np.array([-np.inf, -1e308, -1.0, -5e-324, 0.0, 5e-324, 1.0, 1e308, np.inf])
    assert (np.diff(keys_of(values)) > 0).all()
    assert values_of(keys_of(values)).tolist() == values.tolist()


@pytest.mark.parametrize(
    "values",
    [
        [-(2**63), 2**63 - 1, 0, -1],
        [2**60 + number for number in range(1000)],
        [5],
        [-128, 127, 0],
        list(range(70_000)),
    ],
)
def test_moments_of_integers_are_those_of_exact_arithmetic(values: list[int]) -> None:
    found = IntegerMoments()
    for part in np.array_split(np.array(values, np.int64), 3):
        found.merge(_moments(part))
    assert (found.count, found.sum, found.squares) == (len(values), sum(values), sum(value * value for value in values))
    assert found.mean == float(statistics.fmean(map(float, values))) or found.mean == sum(values) / len(values)
    assert found.deviation == pytest.approx(math.sqrt(max(0, found.squares * len(values) - found.sum**2)) / len(values))


def _moments(values: np.ndarray) -> IntegerMoments:
    found = IntegerMoments()
    found.add(values)
    return found


def test_moments_of_narrow_numbers_are_those_of_the_same_wide_ones() -> None:
    special = np.array([1e-45, -1e-45, 3.4e38, -3.4e38, 0.1, 1e-20], np.float32)
    values = np.concatenate([special, RNG.normal(size=20_000).astype(np.float32)])
    narrow, wide = ExactMoments(), ExactMoments()
    narrow.add(values)
    wide.add(values.astype(np.float64))
    assert (narrow.mean, narrow.deviation) == (wide.mean, wide.deviation)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("double", np.where(RNG.random(3_000) < 0.1, RNG.choice([np.inf, -np.inf, np.nan], 3_000), RNG.integers(-9, 9, 3_000) / 2)),
        ("double", np.array([np.nan, np.inf, np.inf, -np.inf])),
        ("int64", RNG.integers(-2_005, -1_990, 3_000)),
        ("int64", np.array([-(2**62), 3, 2**62 + 1])),
        ("int8", RNG.integers(-128, 128, 3_000).astype(np.int8)),
    ],
    ids=["halves", "no finite number", "years", "wide", "narrow"],
)
def test_a_column_counts_its_numbers_and_finds_their_ends(kind: str, values: np.ndarray) -> None:
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    column = NumberColumn(kind)
    for part in np.array_split(values, 3):
        column.add(pa.chunked_array([pa.array(part)]), None)
    counts = column.total.counts()
    is_nan = np.isnan(values.astype(float))
    assert (counts.num_below, counts.num_above, counts.num_missing) == ((values == -np.inf).sum(), (values == np.inf).sum(), is_nan.sum())
    assert (counts.rows, counts.histogram.total) == (len(values), len(finite))
    assert (column.minimum, column.maximum) == ((finite.min(), finite.max()) if len(finite) else (None, None))
    if len(finite) > 3:
        assert column.total.moments.mean == statistics.fmean(finite.tolist())
        assert math.isclose(column.total.moments.deviation, statistics.pstdev(finite.tolist()), rel_tol=1e-12)
