"""The numbers of a number column, added up chunk by chunk: the same for any order and division of the rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from training.data.exact_sums import ExactMoments
from training.data.validation.integer_moments import IntegerMoments
from training.data.validation.key_histogram import KeyHistogram
from training.data.validation.snapshot_view import numpy_of, valid_of

OLDER: Final = 0
NEWER: Final = 1
NEITHER: Final = -1
SIDES: Final = (OLDER, NEWER, NEITHER)
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
    num_below: int = 0
    """Minus infinity."""
    num_above: int = 0

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

    def add(self, values: Values) -> None:
        """Add values, [n], rising, NaN last, none of them -0.0."""
        first, last = 0, len(values)
        if values.dtype.kind == "f":
            first, last, stop = (
                int(np.searchsorted(values, bound, side=side))  # type: ignore[call-overload]
                for bound, side in ((-np.inf, "right"), (np.inf, "left"), (np.nan, "left"))
            )
            self.num_below += first
            self.num_above += stop - last
            self.num_nan += len(values) - stop
        finite = values[first:last]
        self.moments.add(finite)
        self.histogram.add_sorted(finite.astype(np.float64, copy=False))

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
        cuts: numbers that the values are compared with.
    """

    def __init__(self, kind: str, cuts: Sequence[float] = ()) -> None:
        self.is_integer = kind.startswith("int")
        self.num_rows = 0
        self.num_null = 0
        self.minimum: int | float | None = None
        """Of the finite numbers, as `maximum`; an integer of 64 bits may be no float64."""
        self.maximum: int | float | None = None
        self.sides = {side: NumberSide(is_integer=self.is_integer) for side in SIDES}
        self._cuts = sorted(set(cuts))
        self._less = np.zeros(len(self._cuts), np.int64)
        self._up_to = np.zeros(len(self._cuts), np.int64)

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

    def num_less(self, cut: float, *, or_equal: bool) -> int:
        """Return the number of values below one of `cuts`, NaN not among them."""
        counts = self._up_to if or_equal else self._less
        return int(counts[self._cuts.index(cut)])

    @property
    def is_exact(self) -> bool:
        """Whether float64 holds every value."""
        if not self.is_integer or self.minimum is None or self.maximum is None:
            return True
        return -LARGEST_EXACT <= self.minimum and self.maximum <= LARGEST_EXACT

    def _add_side(self, side: int, rows: Values) -> None:
        # A copy that may be sorted, and without -0.0, which equals 0.0 and has other bits.
        ordered = rows + rows.dtype.type(0)
        ordered.sort()
        found = self.sides[side]
        num_nan, num_below = found.num_nan, found.num_below
        found.add(ordered)
        ordered = ordered[: len(ordered) - (found.num_nan - num_nan)]
        self._count(ordered)
        finite = ordered[found.num_below - num_below :]
        finite = finite[: np.searchsorted(finite, np.inf, side="left")] if finite.dtype.kind == "f" else finite
        if len(finite):
            low, high = finite[0].item(), finite[-1].item()
            self.minimum = low if self.minimum is None else min(self.minimum, low)
            self.maximum = high if self.maximum is None else max(self.maximum, high)

    def _count(self, ordered: Values) -> None:
        """Count the values, rising and without NaN, below each cut."""
        if not self._cuts or not len(ordered):
            return
        if ordered.dtype.kind == "i" and max(-int(ordered[0]), int(ordered[-1])) <= LARGEST_EXACT:
            self._less += [np.searchsorted(ordered, _whole(np.ceil(cut)), side="left") for cut in self._cuts]
            self._up_to += [np.searchsorted(ordered, _whole(np.floor(cut)), side="right") for cut in self._cuts]
            return
        # As Great Expectations compares: with the nearest float64.
        numbers = ordered.astype(np.float64, copy=False)
        self._less += np.searchsorted(numbers, self._cuts, side="left")
        self._up_to += np.searchsorted(numbers, self._cuts, side="right")


def _whole(cut: float) -> int:
    """Return a whole number as an integer that any integer up to `LARGEST_EXACT` can be compared with."""
    return int(min(max(cut, -2.0 * LARGEST_EXACT), 2.0 * LARGEST_EXACT))


def _by_side(values: Values, sides: Sides | None) -> Iterable[tuple[int, Values]]:
    if not len(values):
        return []
    if sides is None:
        return [(NEITHER, values)]
    if (sides == sides[0]).all():
        return [(int(sides[0]), values)]
    return [(side, values[sides == side]) for side in SIDES]
