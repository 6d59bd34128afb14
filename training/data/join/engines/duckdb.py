"""DuckDB: joins on one machine in SQL, streams the result to local disk, and spills what does not fit its memory limit."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from training.data.features.transforms import FeaturePlan, FittedTransforms
from training.data.join.contract import LABEL, MAX_ROWS_SHOWN, JoinedTable, MainTable, RowChecks
from training.data.join.derived import DerivedColumn
from training.data.join.engines.duckdb_windows import NUMBERED, WindowFile, write_windows
from training.data.join.engines.interface import BATCH_ROWS, Frame, Progress
from training.data.join.engines.scratch_frame import ScratchFrame, fit_by_batch
from training.data.join.engines.spill import SpilledBytes
from training.data.join.windows import WindowColumn
from training.errors import DataError, NightshiftError, first_line, shown
from training.runtime.exhausted_resources import machine_limit
from training.runtime.stage_memory import ENGINE_SHARE, STAGE_MEMORY, engine_memory_bytes
from training.sql.expressions import SPILL_FOLDER, columns_of, hardened, literal, quoted

PROGRESS_SECONDS: Final = 1.0
FRAME_FILE: Final = "joined.arrow"
OUT_OF_MEMORY: Final = "Out of Memory Error"
"""Begins DuckDB's message, also where Arrow passes it on."""


class DuckDBEngine:
    """An `Engine`: see there."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        """Nothing is open between the calls.

        Args:
            folder: holds the files of the tables, and takes what the engine spills; it is on local disk, and removed afterwards.
            progress: called while a query runs.
        """
        self._folder, self._progress = folder, progress

    def join(
        self, main: MainTable, features: Sequence[JoinedTable], windows: Sequence[WindowColumn] = (), *, as_of: datetime
    ) -> ScratchFrame:
        path = self._folder / FRAME_FILE
        checks = RowChecks(main, features)
        try:
            # Closed when the rows are there: DuckDB keeps what it has allocated.
            with hardened([self._folder], memory_limit=f"{engine_memory_bytes()}B") as connection:
                frame = self._joined(connection, path, checks, main, features, windows, as_of)
        except (duckdb.Error, pa.ArrowException) as err:
            raise _join_failed([main.name, *(table.name for table in features)], err) from err
        checks.finish()
        return frame

    def fit(
        self, frame: Frame, training: NDArray[np.bool_], *, derived: Sequence[DerivedColumn], features: Sequence[FeaturePlan]
    ) -> FittedTransforms:
        return fit_by_batch(frame, training, self._folder, derived=derived, features=features)

    def _joined(
        self,
        connection: duckdb.DuckDBPyConnection,
        path: Path,
        checks: RowChecks,
        main: MainTable,
        features: Sequence[JoinedTable],
        windows: Sequence[WindowColumn],
        as_of: datetime,
    ) -> ScratchFrame:
        _create_views(connection, main, features, windows)
        _check_label(connection, main, as_of)
        for table in features:
            _check_unique(connection, table)
        num_rows = sum(pq.read_metadata(file).num_rows for file in main.paths)
        spill = SpilledBytes(self._folder / SPILL_FOLDER)

        def on_rows(done: int) -> None:
            spill.look()
            self._progress(min(done, num_rows), num_rows, "rows of windows")

        found = write_windows(connection, self._folder, main, features, windows, on_rows)
        with self._watched(connection, num_rows, spill):
            reader = connection.sql(_query(main, features, found, windows, as_of)).to_arrow_reader(BATCH_ROWS)
            facts = [table.fact_time for table in features if table.event_time]
            schema = pa.schema([field for field in reader.schema if field.name not in facts])
            batches = (checks.checked(pa.Table.from_batches([batch])) for batch in spill.watched(reader))
            frame = ScratchFrame.of_batches(path, schema, batches)
        spill.log(engine_memory_bytes())
        return frame

    @contextmanager
    def _watched(self, connection: duckdb.DuckDBPyConnection, num_rows: int, spill: SpilledBytes) -> Iterator[None]:
        """Report progress while one query runs: DuckDB says how far it is, nothing else does."""
        done = threading.Event()

        def report() -> None:
            while not done.wait(PROGRESS_SECONDS):
                spill.look()
                percent = max(0.0, connection.query_progress())
                self._progress(int(num_rows * percent / 100), num_rows, "rows joined")

        watcher = threading.Thread(target=report, name="join-progress", daemon=True)
        self._progress(0, num_rows, "rows joined")
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()
        self._progress(num_rows, num_rows, "rows joined")


def _join_failed(tables: list[str], err: Exception) -> NightshiftError:
    reason = first_line(err)
    names = ", ".join(tables)
    if OUT_OF_MEMORY in reason:
        limit = f"{engine_memory_bytes() / 2**20:.0f} MiB"
        message = f"the join of {names} needs more than its memory limit of {limit}, although it spills: {reason}"
        return DataError("engine.memory", message, hint=f"raise {STAGE_MEMORY.name}; the join gets {ENGINE_SHARE:.0%} of it")
    return machine_limit(err) or DataError("data.format", f"could not join {names}: {reason}")


def _create_views(
    connection: duckdb.DuckDBPyConnection, main: MainTable, features: Sequence[JoinedTable], windows: Sequence[WindowColumn]
) -> None:
    names = [LABEL] if main.label_column != LABEL else []
    names += [window.name for window in windows]
    _create_view(connection, "main_rows", main.name, main.paths, main.columns, numbered=bool(windows))
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
    *,
    numbered: bool = False,
) -> None:
    """Name a table's files, its columns renamed; `added` ones (new name to old) begin with a + so that they clash with no key."""
    files = ", ".join(literal(str(path)) for path in paths)
    source = f"read_parquet([{files}], hive_partitioning = false)"
    present = set(connection.sql(f"SELECT * FROM {source}").columns)  # noqa: S608 - quoted names and literals
    wanted = [(old, new) for old, new in columns.items()] + [(old, new) for new, old in (added or {}).items()]
    missing = sorted({old for old, _new in wanted} - present)
    if missing:
        raise DataError("schema.missing", f"table {shown(table)} lacks {', '.join(shown(name) for name in missing)}")
    selected = ", ".join([f"{quoted(old)} AS {quoted(new)}" for old, new in wanted] + ([NUMBERED] if numbered else []))
    connection.execute(f"CREATE VIEW {quoted(view)} AS SELECT {selected} FROM {source}")  # noqa: S608


def _check_unique(connection: duckdb.DuckDBPyConnection, table: JoinedTable) -> None:
    """Refuse keys that occur twice: which of the rows would be joined is undefined."""
    key = [*table.on.values(), *([table.event_time] if table.event_time else [])]
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


def _check_label(connection: duckdb.DuckDBPyConnection, main: MainTable, as_of: datetime) -> None:
    """Refuse numbers that a label of 32 bits cannot hold; the cast would say which one, but not where."""
    column = f"m.{quoted(main.label_column)}"
    if main.label_is_text or main.label_rule is not None:
        return
    kind = str(connection.sql(f"SELECT {column} FROM main_rows m").types[0])  # noqa: S608 - quoted names
    if kind != "DOUBLE":
        return
    keys = ", ".join(f"CAST(m.{quoted(name)} AS VARCHAR)" for name in main.key)
    wrong = f"{_known(main, as_of)} AND isfinite({column}) AND TRY_CAST({column} AS FLOAT) IS NULL"
    order = ", ".join(f"m.{quoted(name)} ASC NULLS LAST" for name in (main.event_time, *main.key))
    query = f"SELECT {keys}, {column}, count(*) OVER () FROM main_rows m WHERE {wrong} ORDER BY {order} LIMIT 1"  # noqa: S608
    for *key, value, count in connection.sql(query).fetchall():
        first = ", ".join(f"{name}={shown(text)}" for name, text in zip(main.key, key, strict=True))
        message = f"label {shown(main.label_column)}: {count:,} rows are beyond the numbers of 32 bits, the first is {value:g} of {first}"
        hint = "derive a smaller label in data.source.derive, such as its logarithm, or leave such rows out (data.source.where)"
        raise DataError("label.range", message, hint=hint)


def _query(
    main: MainTable, features: Sequence[JoinedTable], files: Sequence[WindowFile], windows: Sequence[WindowColumn], as_of: datetime
) -> str:
    kept = [name for name in main.columns.values() if name != LABEL]
    selected = [f"m.{quoted(name)}" for name in kept]
    joins = []
    for number, table in enumerate(features):
        alias = f"f{number}"
        joins.append(_join(main, table, alias))
        selected += [f"{_seen(main, table, alias, '+' + name)} AS {quoted(name)}" for name in table.columns.values()]
        if table.event_time:
            selected.append(f"{_seen(main, table, alias, table.event_time)} AS {quoted(table.fact_time)}")
    selected_of = {window.name: file.selected(f"w{number}", window) for number, file in enumerate(files) for window in file.windows}
    selected += [selected_of[window.name] for window in windows]
    joins += [file.joined(f"w{number}") for number, file in enumerate(files)]
    selected.append(f"CAST({_label(main)} AS {'VARCHAR' if main.label_is_text else 'DOUBLE'}) AS {quoted(LABEL)}")
    order = ", ".join(f"m.{quoted(name)} ASC NULLS LAST" for name in (main.event_time, *main.key))
    return f"SELECT {', '.join(selected)} FROM main_rows m {' '.join(joins)} WHERE {_known(main, as_of)} ORDER BY {order}"  # noqa: S608


def _known(main: MainTable, as_of: datetime) -> str:
    """Return the condition of the rows that the frame has."""
    known = "true"
    if main.label_known_at is not None:
        known = f"m.{quoted(main.label_known_at)} <= {literal(as_of.isoformat())}::TIMESTAMPTZ"
    if main.start is not None:
        known += f" AND m.{quoted(main.event_time)} >= {literal(main.start.isoformat())}::TIMESTAMPTZ"
    return known


def _join(main: MainTable, table: JoinedTable, alias: str) -> str:
    keys = " AND ".join(f"m.{quoted(ours)} = {alias}.{quoted(theirs)}" for ours, theirs in table.on.items())
    view = quoted(f"facts of {table.name}")
    if table.event_time is None:
        return f"LEFT JOIN {view} {alias} ON {keys}"
    newest, delay = f"m.{quoted(main.event_time)}", main.decision_lead + table.available_after
    if delay:
        # Not for nothing: it takes DuckDB a third of the time of the join.
        newest += f" - {_interval(delay)}"
    return f"ASOF LEFT JOIN {view} {alias} ON {keys} AND {newest} >= {alias}.{quoted(table.event_time)}"


def _seen(main: MainTable, table: JoinedTable, alias: str, column: str) -> str:
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
