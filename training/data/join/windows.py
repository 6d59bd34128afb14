"""Columns made of a row's history (`data.windows`): what they are, and the values of one block of rows, by numpy alone.

An engine sorts rows by key and time and hands them over in blocks of whole keys; the values are computed here, so they are the same on
any engine. A row of the history is used only where it was known at the decision:

    known = max(event time + available_after, each `known_at`) <= decision = main event time - decision_lead

and a row of the main table never sees one of its own event time. Seen from the history, each of its rows is active for one contiguous
range of the decisions of its key. Every function is a reduction over these ranges, exact and independent of the order of the rows
(`training.data.join.window_sums`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from training.data.join.window_sums import Ints, Ranges, deviations, sums

Values = NDArray[Any]

MICROSECOND: Final = timedelta(microseconds=1)
ROW, AT, DECIDED = "row number", "event time", "decision time"
COUNTS: Final = frozenset({"count", "distinct"})
"""Functions that have a value, 0, where there is no history."""
FOREVER: Final = 2**62
PACKED_LIMIT: Final = 2**62


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowColumn:
    """One column of the frame, made of the rows of a table that have the row's key and were known at its decision."""

    name: str
    kind: str
    """`lag`, `rolling` or `since_last`."""
    table: str
    by: Mapping[str, str] = field(default_factory=dict)
    """Frame's column to the table's."""
    column: str | None = None
    """Of the table; None: rows are counted."""
    function: str | None = None
    """Of `rolling`: sum, mean, min, max, count, std, distinct."""
    time: timedelta | None = None
    tolerance: timedelta | None = None
    rows: int | None = None
    where: str | None = None
    """SQL over the table's columns: other rows take no part."""
    available_after: timedelta = field(default_factory=timedelta)
    known_at: Sequence[str] = ()
    """Columns of the table with the instant from which a row is known; all of them count."""

    @property
    def is_count(self) -> bool:
        return self.function in COUNTS


@dataclass(frozen=True, kw_only=True)
class Block:
    """Rows of whole keys, ordered by key, then time.

    `rows` has the columns `ROW` (the number of a row of the main table, null for a row of a feature table), `AT` (event time in
    microseconds, null where the row is not history), `DECIDED` (microseconds, null where `ROW` is), and what `value_name`, `known_name`
    and `where_name` name. None of these is a name that a column of a table can have.
    """

    rows: pa.Table
    code: Ints
    """[n] number of the key, ascending from 0."""
    lead: timedelta
    is_own: bool
    """Whether the history is of the main table itself."""


def value_name(column: str) -> str:
    return f"value of {column}"


def known_name(column: str) -> str:
    return f"instant of {column}"


def where_name(expression: str) -> str:
    return f"whether {expression}"


def window_values(block: Block, windows: Sequence[WindowColumn]) -> pa.Table:
    """Return [decisions of the block] `ROW`, and one column per window."""
    is_query = _mask(pc.is_valid(block.rows[ROW]))
    decided = _ints(block.rows[DECIDED])[is_query]
    queries = _Queries(block.code[is_query], decided)
    found = {ROW: block.rows[ROW].filter(pa.array(is_query)).combine_chunks()}
    for window in windows:
        found[window.name] = _values(block, queries, window)
    return pa.table(found)


class _Queries:
    """The decisions of a block, ordered by key and time; places are found among them by one binary search."""

    def __init__(self, code: Ints, decided: Ints) -> None:
        self.num, self._distinct = len(code), None if not len(code) else _distinct_if_wide(code, decided)
        times = self._numbers(decided)
        self._base = int(times.min()) - 1 if self.num else 0
        self._span = int(times.max()) - self._base + 2 if self.num else 2
        self.code, self.decided = code, decided
        self.packed = code * self._span + (times - self._base)

    def packed_of(self, code: Ints, time: Ints) -> Ints:
        """Return numbers that are ordered as (key, time): of times beyond the decisions the nearest number that is beyond them too."""
        return code * self._span + np.clip(self._numbers(time) - self._base, 0, self._span - 1)

    def first_not_before(self, code: Ints, time: Ints) -> Ints:
        """Return the number of the first decision of the key at or after a time, or where it would be."""
        return np.searchsorted(self.packed, self.packed_of(code, time), side="left")

    def end_of(self, code: Ints) -> Ints:
        """Return the number after the key's last decision."""
        return np.searchsorted(self.packed, (code + 1) * self._span, side="left")

    def _numbers(self, time: Ints) -> Ints:
        return time if self._distinct is None else np.searchsorted(self._distinct, time, side="left")


def _distinct_if_wide(code: Ints, decided: Ints) -> Ints | None:
    """Return the sorted different times where (key, time) would not fit one integer otherwise."""
    span = int(decided.max()) - int(decided.min()) + 3
    return np.unique(decided) if span * (int(code[-1]) + 2) >= PACKED_LIMIT else None


def _values(block: Block, queries: _Queries, window: WindowColumn) -> pa.Array:
    used = _usable(block, window)
    numbers = np.flatnonzero(used)
    code, at, known = block.code[numbers], _ints(block.rows[AT])[numbers], _known(block, window)[numbers]
    ranges, kept = _active(queries, window, block.lead // MICROSECOND, code, at, known)
    numbers, at = numbers[kept], at[kept]
    if window.kind == "since_last":
        newest = _newest(ranges, by_time=not window.known_at)
        seconds = (queries.decided - at[newest]) / 1_000_000 if len(at) else np.zeros(queries.num)
        return pa.array(seconds, mask=newest < 0)
    if window.kind == "lag":
        newest = _newest(ranges, by_time=not window.known_at and window.rows is None)
        taken = pa.array(numbers[newest] if len(numbers) else newest, mask=newest < 0)
        return block.rows[value_name(window.column or "")].take(taken).combine_chunks()
    if window.column is None:
        return pa.array(ranges.counts())
    return _reduced(window, block.rows[value_name(window.column)].take(pa.array(numbers)), ranges)


def _usable(block: Block, window: WindowColumn) -> NDArray[np.bool_]:
    """Return [n] whether a row may be in the history at all. A value that is missing counts as a row of a lag, and for no function."""
    used = _mask(pc.is_valid(block.rows[AT]))
    if window.where is not None:
        used &= _mask(pc.fill_null(block.rows[where_name(window.where)], False))
    for name in window.known_at:
        used &= _mask(pc.is_valid(block.rows[known_name(name)]))
    if window.kind == "rolling" and window.column is not None and window.rows is None:
        used &= _present(block.rows[value_name(window.column)])
    return used


def _known(block: Block, window: WindowColumn) -> Ints:
    """Return [n] the first decision, in microseconds, at which a row is known."""
    at = _ints(block.rows[AT])
    known = at + window.available_after // MICROSECOND
    for name in window.known_at:
        known = np.maximum(known, _ints(block.rows[known_name(name)]))
    # Decided at its event time, a row would see itself and its contemporaries.
    return np.maximum(known, at + 1) if block.is_own and not block.lead else known


def _active(queries: _Queries, window: WindowColumn, lead_us: int, code: Ints, at: Ints, known: Ints) -> tuple[Ranges, Ints]:
    """Return the ranges of decisions for which rows are in the window, and the numbers of these rows, in the order of (key, time)."""
    if window.rows is not None:
        first, end = _last_rows(queries, window, code, known)
    else:
        time_us = FOREVER if window.time is None else window.time // MICROSECOND
        begin, over = known, (at + time_us + 1 if window.time is not None else np.full(len(at), FOREVER))
        if window.kind == "lag":
            aged = at + time_us - lead_us
            begin = np.maximum(known, aged)
            over = np.full(len(at), FOREVER) if window.tolerance is None else aged + window.tolerance // MICROSECOND + 1
        # A time beyond the key's last decision is before the next key's first one.
        first, end = queries.first_not_before(code, begin), queries.first_not_before(code, over)
    kept = np.flatnonzero(first < end)
    return Ranges(first[kept], end[kept], queries.num), kept


def _last_rows(queries: _Queries, window: WindowColumn, code: Ints, known: Ints) -> tuple[Ints, Ints]:
    """Return the decisions of which each row is the n-th last that became known (`lag`), or one of the n last (`rolling`)."""
    count = window.rows or 0
    # Stable: rows that became known at one instant stay in the order of their event time.
    order = np.lexsort((known, code))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(1, len(order) + 1)
    num_known = np.searchsorted(queries.packed_of(code, known)[order], queries.packed, side="right")
    first = np.searchsorted(num_known, place + (count - 1 if window.kind == "lag" else 0), side="left")
    last = place + count - 1
    return first, np.minimum(np.searchsorted(num_known, last, side="right"), queries.end_of(code))


def _newest(ranges: Ranges, *, by_time: bool) -> Ints:
    """Return [decisions] the number of the last row that is active, -1 without one.

    Args:
        by_time: a later row becomes active and inactive no earlier.
    """
    numbers = np.arange(len(ranges.first), dtype=np.int64)
    if not by_time:
        return ranges.extreme(numbers, np.maximum, -1)
    newest = np.full(ranges.num, -1, dtype=np.int64)
    np.maximum.at(newest, ranges.first, numbers)
    newest = np.maximum.accumulate(newest)
    if len(numbers):
        newest[(newest >= 0) & (ranges.end[newest] <= np.arange(ranges.num))] = -1
    return newest


def _reduced(window: WindowColumn, column: pa.ChunkedArray, ranges: Ranges) -> pa.Array:
    """Return a function of the values that are active and not missing."""
    present = np.flatnonzero(_present(column))
    column, ranges = column.take(pa.array(present)), ranges.of(present)
    if window.function == "count":
        return pa.array(ranges.counts())
    if window.function == "distinct":
        return pa.array(_distinct(column, ranges))
    counts = ranges.counts()
    if window.function in ("min", "max"):
        return _extreme(window.function, column, ranges, counts)
    values = column.cast(pa.int64()) if not pa.types.is_floating(column.type) else column.cast(pa.float64())
    numbers = np.asarray(values.to_numpy())
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        found = _of_sums(str(window.function), numbers, ranges, counts)
    return pa.array(found, mask=counts < (2 if window.function == "std" else 1))


def _of_sums(function: str, numbers: Values, ranges: Ranges, counts: Ints) -> NDArray[np.float64]:
    if function == "std":
        return deviations(numbers, ranges, counts)
    total = sums(numbers, ranges)
    return total if function == "sum" else total / counts


def _extreme(function: str, column: pa.ChunkedArray, ranges: Ranges, counts: Ints) -> pa.Array:
    kind = column.type
    is_float = pa.types.is_floating(kind)
    numbers = np.asarray(column.cast(pa.float64() if is_float else pa.int64()).to_numpy())
    limit: float | int = np.inf if is_float else np.iinfo(np.int64).max
    choose: Callable[..., Values] = np.minimum if function == "min" else np.maximum
    # Plus 0.0: of two zeros none is the smaller one.
    found = ranges.extreme(numbers + 0, choose, limit if function == "min" else -limit)
    return pa.array(np.where(counts > 0, found, 0), mask=counts == 0).cast(kind)


def _distinct(column: pa.ChunkedArray, ranges: Ranges) -> Ints:
    """Return [decisions] how many different values are active: the ranges of equal values are joined, then counted."""
    if pa.types.is_floating(column.type):
        column = pc.add(column, pa.scalar(0.0, column.type))
    codes = np.asarray(pc.dictionary_encode(column.combine_chunks()).indices).astype(np.int64)
    order = np.lexsort((ranges.first, codes))
    codes, first, end = codes[order], ranges.first[order], ranges.end[order]
    if not len(codes):
        return np.zeros(ranges.num, dtype=np.int64)
    offset = codes * (ranges.num + 1)
    covered = np.maximum.accumulate(end + offset)
    before = np.concatenate([[0], covered[:-1]]) - offset
    first = np.maximum(first, before)
    kept = np.flatnonzero(first < end)
    return Ranges(first[kept], end[kept], ranges.num).counts()


def _present(column: pa.ChunkedArray) -> NDArray[np.bool_]:
    present = pc.is_valid(column)
    return _mask(pc.and_(present, pc.fill_null(pc.is_finite(column), False)) if pa.types.is_floating(column.type) else present)


def _mask(values: pa.ChunkedArray) -> NDArray[np.bool_]:
    return np.array(values.to_numpy(), dtype=bool)


def _ints(values: pa.ChunkedArray) -> Ints:
    return np.asarray(pc.fill_null(values, 0).to_numpy())
