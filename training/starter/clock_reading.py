"""The hour that a clock shows twice in the rows of a table, and the one that it never shows: how the YAML is to read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final

import numpy as np
import pyarrow as pa

from training.sources.local_times import AROUND_US, DAY_US, ClockChange, changes_of, second_in_order
from training.sql.expressions import literal, quoted
from training.starter.column_names import free
from training.starter.tables import FoundTable

BY_TYPES: Final = ("string", "int8", "int16", "int32", "int64")
ROWS_OF_A_SERIES: Final = 10
"""On average; values with fewer rows name no series."""
DAYS_AHEAD: Final = 366


@dataclass(frozen=True, slots=True)
class ClockReading:
    """Keys of the derived column, and what the reader should know of them."""

    twice: str = ""
    by: Sequence[str] = ()
    is_shifted: bool = False
    notes: Sequence[str] = ()
    instant: str = ""
    """Column of the view with the instants; empty: none is shown twice."""


def clock_reading(table: FoundTable, sql: str, zone: str, now: datetime) -> ClockReading:
    """Return how times of a clock are read; the view of the rows then has their instants.

    Args:
        sql: the time of the clock, over the view of the rows.
    """
    days = [day for (day,) in table.rows(f"SELECT DISTINCT CAST({sql} AS DATE) FROM rows")]  # noqa: S608 - quoted
    changes = changes_of(np.array([(day - date(1970, 1, 1)).days * DAY_US for day in days], dtype=np.int64), zone)
    counts = {change: table.value(f"SELECT count(*) FROM rows WHERE {_within(sql, change)}") for change in changes}  # noqa: S608 - quoted
    notes = [
        f"{count:,} times are never shown by the clock, and moved forward by its change (missing: shift): {change.words}"
        for change, count in counts.items()
        if count and not change.is_twice
    ]
    twice = [change for change, count in counts.items() if count and change.is_twice]
    if not twice:
        return ClockReading(is_shifted=bool(notes), notes=[*notes, *_coming(zone, now)])
    found = ((by, _second(table, sql, twice, by)) for by in _series(table))
    by, second = next(((by, rows) for by, rows in found if rows is not None), ([], None))
    count = sum(counts[change] for change in twice)
    is_in_order = second is not None
    how = "rows are in order (twice: in_order)" if is_in_order else "the order of rows does not say which they are (twice: first)"
    more = f"{count:,} times are shown twice, and {how}: {twice[0].words}"
    instant = free("nightshift_at", table.taken)
    _add_instants(table, sql, zone, twice, second or [], instant)
    return ClockReading("in_order" if is_in_order else "first", by, bool(notes), [*notes, more], instant)


def _within(sql: str, change: ClockChange) -> str:
    return f"epoch_us({sql}) >= {change.start_us} AND epoch_us({sql}) < {change.end_us}"


def _series(table: FoundTable) -> Iterator[list[str]]:
    """Yield no column, then each that may name the series of a row."""
    yield []
    for column in table.columns.values():
        if column.type in BY_TYPES and not column.num_missing and column.num_values <= table.num_rows / ROWS_OF_A_SERIES:
            yield [column.name]


def _second(table: FoundTable, sql: str, twice: Sequence[ClockChange], by: Sequence[str]) -> list[int] | None:
    """Return the numbers of the rows, from 1, in the second of the two hours; None where their order does not say."""
    found: list[int] = []
    names = "".join(f", {quoted(name)} AS by{number}" for number, name in enumerate(by))
    for change in twice:
        query = f"""
            SELECT * FROM (SELECT row_number() OVER () AS n, epoch_us({sql}) AS local_us{names} FROM rows)
            WHERE local_us >= {change.start_us - AROUND_US} AND local_us < {change.end_us + AROUND_US} ORDER BY n
        """  # noqa: S608 - quoted
        rows = table.rows(query)
        second = second_in_order(np.array([row[1] for row in rows], dtype=np.int64), [row[2:] for row in rows], change)
        if second is None:
            return None
        found += [row[0] for row, is_second in zip(rows, second, strict=True) if is_second]
    return found


def _add_instants(table: FoundTable, sql: str, zone: str, twice: Sequence[ClockChange], second: Sequence[int], name: str) -> None:
    table.connection.register("second_hours", pa.table({"nightshift_row": pa.array(second, pa.int64())}))
    cases = " ".join(
        f"WHEN {_within('nightshift_local', change)} THEN timezone('UTC', nightshift_local - to_microseconds("
        f"CASE WHEN s.nightshift_row IS NULL THEN {change.before_us} ELSE {change.after_us} END))"
        for change in twice
    )
    numbered = f"SELECT *, row_number() OVER () AS nightshift_row, {sql} AS nightshift_local FROM rows_as_read"  # noqa: S608 - quoted
    instant = f"CASE {cases} ELSE timezone({literal(zone)}, nightshift_local) END AS {quoted(name)}"
    table.connection.execute("ALTER VIEW rows RENAME TO rows_as_read")
    kept = f"r.* EXCLUDE (nightshift_row, nightshift_local), {instant}"
    table.connection.execute(f"CREATE VIEW rows AS SELECT {kept} FROM ({numbered}) r LEFT JOIN second_hours s USING (nightshift_row)")  # noqa: S608


def _coming(zone: str, now: datetime) -> Iterator[str]:
    """Yield a note on the next change after which rows would be refused."""
    days = (now.date() - date(1970, 1, 1)).days + np.arange(DAYS_AHEAD, dtype=np.int64)
    change = next((each for each in changes_of(days * DAY_US, zone) if each.is_twice), None)
    if change is not None:
        yield f"{change.words}: rows of that hour are refused until data.source.derive has twice: first, second or in_order"
