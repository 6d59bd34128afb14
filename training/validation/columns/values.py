"""The different values of a column of texts or truth values, counted by DuckDB, which spills what does not fit its memory limit."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from training.sql.expressions import quoted
from training.validation.snapshot_view import TableView

COUNTED: Final = "nightshift_values"
MAX_FREQUENT: Final = 512
"""Values that a distribution names; the others are counted together."""
MAX_TEXT: Final = 200
"""Characters of a value that are kept."""
MAX_HELD: Final = 100_000
"""Different values of a column that a suite has in memory at a time."""
MAX_HELD_BYTES: Final = 32 * 2**20


@dataclass(frozen=True, kw_only=True)
class Counted:
    """A value of a column, null being one, and its rows."""

    value: str | None
    rows: int
    older: int
    newer: int


@dataclass(frozen=True, kw_only=True)
class ValueColumn:
    """A column of texts or truth values."""

    num_rows: int
    num_null: int
    num_older: int
    """Rows, also those without a value."""
    num_newer: int
    num_distinct: int
    """Of values that are not null."""
    minimum: str | None
    maximum: str | None
    by_older: list[Counted]
    """The most frequent values of the older rows, in that order, then by value."""
    frequent: list[Counted]
    """Up to `MAX_FREQUENT` values, the most frequent first, then by value; null is none of them."""
    has_few_values: bool
    """Whether the different values fit into memory."""
    named: Mapping[str, int]
    """Rows of the values that were asked for, 0 for one that is not there."""


def count_values(view: TableView, column: str, *, cut_us: int | None, num_by_older: int, named: Collection[str]) -> ValueColumn:
    """Count the values of a sound column.

    Args:
        cut_us: event times from this on, in microseconds since 1970, are newer; None: no row is older or newer.
        num_by_older: length of `by_older`.
        named: values whose rows are wanted, however few they are.
    """
    event_time = view.sound_event_time
    moment = None if cut_us is None or event_time is None else f"epoch_us({quoted(event_time)})"
    with _counted(view, column, moment, cut_us):
        return _summary(view, num_by_older, named)


@contextmanager
def _counted(view: TableView, column: str, moment: str | None, cut_us: int | None) -> Iterator[None]:
    """Have the counts in a table of DuckDB."""
    older, newer = ("0", "0") if moment is None else (f"count(*) FILTER ({moment} {sign} {cut_us})" for sign in ("<", ">="))
    selected = f"SELECT {quoted(column)} AS value, count(*) AS n, {older} AS older, {newer} AS newer FROM {{table}} GROUP BY 1"  # noqa: S608
    view.connection.execute(view.sql(f"CREATE TEMP TABLE {COUNTED} AS {selected}"))
    try:
        yield
    finally:
        view.connection.execute(f"DROP TABLE {COUNTED}")


def _summary(view: TableView, num_by_older: int, named: Collection[str]) -> ValueColumn:
    connection = view.connection
    sums = """
        SELECT coalesce(sum(n), 0), coalesce(sum(n) FILTER (value IS NULL), 0), coalesce(sum(older), 0), coalesce(sum(newer), 0),
        count(value), CAST(min(value) AS VARCHAR), CAST(max(value) AS VARCHAR), coalesce(sum(strlen(CAST(value AS VARCHAR))), 0)
    """
    found = connection.execute(f"{sums} FROM {COUNTED}").fetchall()[0]
    *counts, minimum, maximum, size_bytes = found
    rows, nulls, older, newer, distinct = (int(count) for count in counts)

    def listed(condition: str, order: str, limit: int) -> list[Counted]:
        query = f"SELECT CAST(value AS VARCHAR), n, older, newer FROM {COUNTED} {condition} ORDER BY {order} LIMIT {limit}"  # noqa: S608
        return [Counted(value=v, rows=n, older=o, newer=w) for v, n, o, w in connection.execute(query).fetchall()]

    return ValueColumn(
        num_rows=rows,
        num_null=nulls,
        num_older=older,
        num_newer=newer,
        num_distinct=distinct,
        minimum=minimum,
        maximum=maximum,
        by_older=listed("", "older DESC, value NULLS LAST", num_by_older),
        frequent=listed("WHERE value IS NOT NULL", "n DESC, value", MAX_FREQUENT),
        has_few_values=distinct <= MAX_HELD and size_bytes <= MAX_HELD_BYTES,
        named=_rows_of(connection, named) if named else {},
    )


def _rows_of(connection: Any, values: Collection[str]) -> dict[str, int]:
    query = f"SELECT CAST(value AS VARCHAR) AS name, n FROM {COUNTED} WHERE name IN (SELECT unnest(?::VARCHAR[]))"  # noqa: S608
    return dict.fromkeys(values, 0) | dict(connection.execute(query, [list(values)]).fetchall())
