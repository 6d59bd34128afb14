"""The joined raw frame: for every row of the main table what was known of the others when its prediction was made.

A feature table with an event time is joined point in time: the newest row of the same key whose
`event_time + available_after <= main event time - decision_lead`, and not older than `max_age` at that instant. One
without is a dimension: a plain left join, each key once. The frame is in the order of (event time, key).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from training.errors import DataError, shown
from training.sql.expressions import columns_of, literal, quoted

logger = logging.getLogger(__name__)

LABEL: Final = "label"
MAX_ROWS_SHOWN: Final = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class MainTable:
    """One row per prediction. Names are those of the frame, but for the sources of `columns`."""

    name: str
    paths: Sequence[Path]
    """Parquet files, together the table."""
    columns: Mapping[str, str]
    """Name in the files to name in the frame."""
    event_time: str
    key: Sequence[str]
    decision_lead: timedelta
    label_column: str
    label_rule: str | None = None
    """`> 15`: label 1 where the column is so; None: the column's own value."""
    label_is_text: bool = False
    """Whether the label is the name of a class."""
    label_known_at: str | None = None
    """Column with the instant from which the label is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FeatureTable:
    """A table whose columns are added to the main one's."""

    name: str
    paths: Sequence[Path]
    on: Mapping[str, str]
    """Frame's column to this table's."""
    columns: Mapping[str, str]
    """What is added: name in the files to name in the frame."""
    event_time: str | None = None
    available_after: timedelta = field(default_factory=timedelta)
    max_age: timedelta | None = None


def join_frame(connection: duckdb.DuckDBPyConnection, main: MainTable, features: Sequence[FeatureTable], *, as_of: datetime) -> pa.Table:
    """Return the joined frame with a `label` (float32, or text: the name of a class), one chunk per column.

    Its rows are ordered by (event time, key).

    Args:
        connection: hardened, able to read the tables' files.
        main: its rows whose label is not known at `as_of` are left out.
        features: in the order of their columns in the frame.
        as_of: the instant whose past may be seen.

    Raises:
        DataError: `schema.missing`, `schema.clash`, `join.duplicate_key`, `leakage.time`, `data.nulls` (a label),
            `data.duplicate_key`, `data.format` (DuckDB cannot read or join what is there).
    """
    try:
        _create_views(connection, main, features)
        for table in features:
            _check_unique(connection, table)
        joined = connection.sql(_query(main, features, as_of)).to_arrow_table()
    except duckdb.Error as err:
        message = f"could not join {', '.join([main.name, *(table.name for table in features)])}: {str(err).splitlines()[0]}"
        raise DataError("data.format", message) from err
    _check_times(joined, main, features)
    frame = joined.drop_columns([_fact_time(table) for table in features if table.event_time]).combine_chunks()
    _check_label(frame, main)
    _check_key(frame, main)
    return frame


def _create_views(connection: duckdb.DuckDBPyConnection, main: MainTable, features: Sequence[FeatureTable]) -> None:
    names = [LABEL] if main.label_column != LABEL else []
    _create_view(connection, "main_rows", main.name, main.paths, main.columns)
    names += main.columns.values()
    for table in features:
        needed = {name: name for name in (*table.on.values(), *([table.event_time] if table.event_time else []))}
        _create_view(
            connection, f"facts of {table.name}", table.name, table.paths, needed, {f"+{new}": old for old, new in table.columns.items()}
        )
        names += table.columns.values()
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError("schema.clash", f"the joined frame would have {shown(twice[0])} twice", hint="rename one of them by `as`")


def _create_view(
    connection: duckdb.DuckDBPyConnection,
    view: str,
    table: str,
    paths: Sequence[Path],
    columns: Mapping[str, str],
    added: Mapping[str, str] | None = None,
) -> None:
    """Name a table's files, its columns renamed; `added` ones (new name to old) begin with a + so that they clash with no key."""
    files = ", ".join(literal(str(path)) for path in paths)
    source = f"read_parquet([{files}], hive_partitioning = false)"
    present = set(connection.sql(f"SELECT * FROM {source}").columns)  # noqa: S608 - quoted names and literals
    wanted = [(old, new) for old, new in columns.items()] + [(old, new) for new, old in (added or {}).items()]
    missing = sorted({old for old, _new in wanted} - present)
    if missing:
        raise DataError("schema.missing", f"table {shown(table)} lacks {', '.join(shown(name) for name in missing)}")
    selected = ", ".join(f"{quoted(old)} AS {quoted(new)}" for old, new in wanted)
    connection.execute(f"CREATE VIEW {quoted(view)} AS SELECT {selected} FROM {source}")  # noqa: S608


def _check_unique(connection: duckdb.DuckDBPyConnection, table: FeatureTable) -> None:
    """Refuse keys that stand twice: which of the rows would be joined is anybody's guess."""
    key = _key(table)
    names = ", ".join(quoted(name) for name in key)
    nonnull = " AND ".join(f"{quoted(name)} IS NOT NULL" for name in key)
    view = quoted(f"facts of {table.name}")
    # As text: the client turns instants into objects of a library that need not be there.
    texts = ", ".join(f"CAST({quoted(name)} AS VARCHAR)" for name in key)
    query = f"SELECT {texts}, count(*) FROM {view} WHERE {nonnull} GROUP BY {names} HAVING count(*) > 1"  # noqa: S608
    doubled = connection.sql(f"SELECT *, count(*) OVER () FROM ({query}) ORDER BY ALL LIMIT {MAX_ROWS_SHOWN}").fetchall()  # noqa: S608
    if doubled:
        rows = "; ".join(", ".join(f"{name}={shown(value)}" for name, value in zip(key, row, strict=False)) for row in doubled)
        message = f"table {shown(table.name)}: {doubled[0][-1]} keys stand more than once: {rows}"
        raise DataError("join.duplicate_key", message, hint="one row per key, or per key and event time")


def _key(table: FeatureTable) -> list[str]:
    return [*table.on.values(), *([table.event_time] if table.event_time else [])]


def _query(main: MainTable, features: Sequence[FeatureTable], as_of: datetime) -> str:
    kept = [name for name in main.columns.values() if name != LABEL]
    selected = [f"m.{quoted(name)}" for name in kept]
    joins = []
    for number, table in enumerate(features):
        alias = f"f{number}"
        joins.append(_join(main, table, alias))
        selected += [f"{_seen(main, table, alias, '+' + name)} AS {quoted(name)}" for name in table.columns.values()]
        if table.event_time:
            selected.append(f"{_seen(main, table, alias, table.event_time)} AS {quoted(_fact_time(table))}")
    selected.append(f"CAST({_label(main)} AS {'VARCHAR' if main.label_is_text else 'FLOAT'}) AS {quoted(LABEL)}")
    known = "true"
    if main.label_known_at is not None:
        known = f"m.{quoted(main.label_known_at)} <= {literal(as_of.isoformat())}::TIMESTAMPTZ"
    order = ", ".join(f"m.{quoted(name)}" for name in (main.event_time, *main.key))
    return f"SELECT {', '.join(selected)} FROM main_rows m {' '.join(joins)} WHERE {known} ORDER BY {order}"  # noqa: S608


def _join(main: MainTable, table: FeatureTable, alias: str) -> str:
    keys = " AND ".join(f"m.{quoted(ours)} = {alias}.{quoted(theirs)}" for ours, theirs in table.on.items())
    view = quoted(f"facts of {table.name}")
    if table.event_time is None:
        return f"LEFT JOIN {view} {alias} ON {keys}"
    newest = f"m.{quoted(main.event_time)} - {_interval(main.decision_lead + table.available_after)}"
    return f"ASOF LEFT JOIN {view} {alias} ON {keys} AND {newest} >= {alias}.{quoted(table.event_time)}"


def _seen(main: MainTable, table: FeatureTable, alias: str, column: str) -> str:
    """Return a fact's column, null where the fact is older than it may be."""
    value = f"{alias}.{quoted(column)}"
    if table.event_time is None or table.max_age is None:
        return value
    oldest = f"m.{quoted(main.event_time)} - {_interval(main.decision_lead + table.max_age)}"
    return f"CASE WHEN {alias}.{quoted(table.event_time)} >= {oldest} THEN {value} END"


def _label(main: MainTable) -> str:
    column = quoted(main.label_column)
    if main.label_rule is None:
        return f"m.{column}"
    rule = f"{column} {main.label_rule}"
    columns_of(rule, [main.label_column], where="data.label.rule")
    return f"CASE WHEN m.{column} IS NOT NULL THEN CASE WHEN m.{rule} THEN 1 ELSE 0 END END"


def _interval(duration: timedelta) -> str:
    return f"to_microseconds({duration // timedelta(microseconds=1)})"


def _fact_time(table: FeatureTable) -> str:
    return f"time of {table.name}"


def _check_times(joined: pa.Table, main: MainTable, features: Sequence[FeatureTable]) -> None:
    """Look at what was joined, whatever the join was meant to do: no fact may be later than its row's decision."""
    event_time = _microseconds(joined, main.event_time)
    lead = main.decision_lead // timedelta(microseconds=1)
    for table in features:
        if table.event_time is None:
            continue
        facts = joined[_fact_time(table)]
        known_at = _microseconds(joined, _fact_time(table)) + table.available_after // timedelta(microseconds=1)
        late = np.flatnonzero(np.asarray(pc.is_valid(facts)) & (known_at > event_time - lead))
        if len(late):
            count = f"{len(late)} of {joined.num_rows} rows"
            message = f"{count} have facts of {shown(table.name)} from after the decision: {_rows(joined, main, late)}"
            hint = "check event_time, available_after and decision_lead"
            raise DataError("leakage.time", message, hint=hint, details={"rows": len(late)})


def _check_label(frame: pa.Table, main: MainTable) -> None:
    if main.label_is_text:
        wrong = np.flatnonzero(np.asarray(pc.equal(pc.fill_null(frame[LABEL], ""), "")))
    else:
        # A null becomes NaN here; both mean unknown.
        wrong = np.flatnonzero(~np.isfinite(frame[LABEL].to_numpy(zero_copy_only=False)))
    if len(wrong):
        raise DataError(
            "data.nulls",
            f"label {shown(main.label_column)}: {len(wrong)} of {frame.num_rows} rows have none, limit 0: {_rows(frame, main, wrong)}",
            hint="leave such rows out at the source, or name the label's known_at",
        )


def _check_key(frame: pa.Table, main: MainTable) -> None:
    """Refuse rows with equal event time and key: their order would not be defined."""
    if frame.num_rows < 2:
        return
    same = np.ones(frame.num_rows - 1, dtype=bool)
    for name in (main.event_time, *main.key):
        column = frame[name].combine_chunks()
        same &= np.asarray(pc.fill_null(pc.equal(column[1:], column[:-1]), False))
    twice = np.flatnonzero(same) + 1
    if len(twice):
        message = f"{len(twice)} of {frame.num_rows} rows repeat the key of another: {_rows(frame, main, twice)}"
        raise DataError("data.duplicate_key", message, hint="one row per key; see the source for a day that was written twice")


def _rows(table: pa.Table, main: MainTable, numbers: NDArray[np.int64]) -> str:
    """Name up to five rows by their keys."""
    chosen = table.select(list(main.key)).take(pa.array(numbers[:MAX_ROWS_SHOWN])).to_pylist()
    return "; ".join(", ".join(f"{name}={shown(value)}" for name, value in row.items()) for row in chosen)


def _microseconds(table: pa.Table, name: str) -> NDArray[np.int64]:
    column = table[name].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    return np.asarray(pc.fill_null(column, 0))
