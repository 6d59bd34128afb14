"""The numbers of a number column, added up chunk by chunk: the same for any order and division of the rows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from training.data.exact.integer_moments import IntegerMoments
from training.data.exact.moments import ExactMoments
from training.validation.columns.histogram import MAX_SPAN, KeyHistogram
from training.validation.snapshot_view import numpy_of, valid_of

OLDER: Final = 0
NEWER: Final = 1
NEITHER: Final = -1
SIDES: Final = (OLDER, NEWER, NEITHER)
COUNTED_SPAN: Final = 4
"""Integers are counted in a table with a place for each where it has up to so many places per row."""
LARGEST_EXACT: Final = 2**53
"""Integers up to this are numbers of float64."""

Sides = npt.NDArray[np.int8]
Values = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class NumberCounts:
    """How many numbers are where."""

    histogram: KeyHistogram
    """Of the finite ones."""
    num_missing: int
    """NaN, and nulls where they count."""
    num_below: int
    """Minus infinity."""
    num_above: int

    @property
    def rows(self) -> int:
        return self.histogram.total + self.num_missing + self.num_below + self.num_above


class NumberSide:
    """The rows of a column that are older, newer or neither."""

    def __init__(self, *, is_integer: bool) -> None:
        self.histogram = KeyHistogram()
        """Of the finite numbers, as `moments`."""
        self.moments: ExactMoments | IntegerMoments = IntegerMoments() if is_integer else ExactMoments()
        self.num_nan = 0
        self.num_below = 0
        """Minus infinity."""
        self.num_above = 0

    @property
    def num_values(self) -> int:
        """Rows with a value, NaN included."""
        return self.moments.count + self.num_nan + self.num_below + self.num_above

    def counts(self, num_null: int = 0) -> NumberCounts:
        """Return the counts; nulls count as missing like NaN."""
        return NumberCounts(
            histogram=self.histogram, num_missing=self.num_nan + num_null, num_below=self.num_below, num_above=self.num_above
        )

    def add(self, finite: Values, least: float, largest: float) -> None:
        """Add finite numbers, [n], at least one, none of them -0.0; the least and the largest of them."""
        if isinstance(self.moments, IntegerMoments) and int(largest) - int(least) < min(MAX_SPAN, COUNTED_SPAN * len(finite)):
            counts = np.bincount(finite.astype(np.int64, copy=False) - int(least))
            self.moments.add_counted(int(least), counts)
            found = np.flatnonzero(counts)
            self.histogram.add_sorted((found + int(least)).astype(np.float64), counts[found])
            return
        self.moments.add(finite)
        self.histogram.add(finite.astype(np.float64, copy=False))

    def merge(self, other: NumberSide) -> None:
        """Add what another has."""
        self.histogram.merge(other.histogram)
        self.moments.merge(other.moments)  # type: ignore[arg-type]  # of one column, so of one class
        self.num_nan += other.num_nan
        self.num_below += other.num_below
        self.num_above += other.num_above


class NumberColumn:
    """A number column.

    Args:
        kind: the type that the YAML names.
    """

    def __init__(self, kind: str) -> None:
        self.is_integer = kind.startswith("int")
        self.num_rows = 0
        self.num_null = 0
        self.minimum: int | float | None = None
        """Of the finite numbers, as `maximum`; an integer of 64 bits may be no float64."""
        self.maximum: int | float | None = None
        self.sides = {side: NumberSide(is_integer=self.is_integer) for side in SIDES}

    def add(self, values: pa.ChunkedArray, sides: Sides | None) -> None:
        """Add a chunk.

        Args:
            sides: [n] of its rows; None: all are neither.
        """
        self.num_rows += len(values)
        self.num_null += values.null_count
        if sides is not None and values.null_count:
            sides = sides[valid_of(values)]
        numbers = numpy_of(values.drop_null() if values.null_count else values)
        for side, rows in _by_side(numbers, sides):
            self._add_side(side, rows)

    @cached_property
    def total(self) -> NumberSide:
        """All rows' numbers, once all are added; the sides stay as they are."""
        whole = NumberSide(is_integer=self.is_integer)
        for side in self.sides.values():
            whole.merge(side)
        return whole

    @property
    def is_exact(self) -> bool:
        """Whether float64 holds every value."""
        if not self.is_integer or self.minimum is None or self.maximum is None:
            return True
        return -LARGEST_EXACT <= self.minimum and self.maximum <= LARGEST_EXACT

    @property
    def has_few_values(self) -> bool:
        """Whether a histogram holds each value."""
        return self.is_exact and not self.total.histogram.shift

    def _add_side(self, side: int, rows: Values) -> None:
        if not len(rows):
            return
        found = self.sides[side]
        # A copy without -0.0, which equals 0.0 and has other bits.
        numbers = rows if self.is_integer else rows + rows.dtype.type(0)
        if not self.is_integer and np.isnan(numbers.min()):
            numbers = numbers[~np.isnan(numbers)]
            found.num_nan += len(rows) - len(numbers)
        if not len(numbers):
            return
        low, high = numbers.min().item(), numbers.max().item()
        if not (math.isfinite(low) and math.isfinite(high)):
            found.num_below += int(np.count_nonzero(numbers == -np.inf))
            found.num_above += int(np.count_nonzero(numbers == np.inf))
            numbers = numbers[np.isfinite(numbers)]
            if not len(numbers):
                return
            low, high = numbers.min().item(), numbers.max().item()
        found.add(numbers, low, high)
        self.minimum = low if self.minimum is None else min(self.minimum, low)
        self.maximum = high if self.maximum is None else max(self.maximum, high)


def _by_side(values: Values, sides: Sides | None) -> Iterable[tuple[int, Values]]:
    if not len(values):
        return []
    if sides is None:
        return [(NEITHER, values)]
    if (sides == sides[0]).all():
        return [(int(sides[0]), values)]
    return [(side, values[sides == side]) for side in SIDES]
