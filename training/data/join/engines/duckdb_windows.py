"""Columns made of a row's history, for the engine DuckDB: it sorts by key and time, `training.data.join.windows` computes block by block.

One file on local disk per table and key: the number of a row of the main table, and the columns. The join reads it like a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from training.data.join.contract import JoinedTable, MainTable
from training.data.join.windows import AT, DECIDED, MICROSECOND, ROW, Block, WindowColumn, known_name, value_name, where_name, window_values
from training.sql.expressions import columns_of, literal, quoted

ROW_NUMBER: Final = "+row"
"""Column of the view of the main table: which file of it a row is in, and which row of it."""
NUMBERED: Final = f"(CAST(file_index AS BIGINT) << 40) + file_row_number AS {quoted(ROW_NUMBER)}"
BATCH_ROWS: Final = 1 << 17
BLOCK_ROWS: Final = 1 << 20
"""A block ends with the first key that ends after so many rows; one key's rows are one block."""


@dataclass(frozen=True, slots=True)
class WindowFile:
    """Columns of windows of one table and key, by the number of the main table's row."""

    path: Path
    windows: Sequence[WindowColumn]

    def joined(self, alias: str) -> str:
        source = f"read_parquet({literal(str(self.path))}, hive_partitioning = false)"
        return f"LEFT JOIN {source} {alias} ON {alias}.{quoted(ROW)} = m.{quoted(ROW_NUMBER)}"

    def selected(self, alias: str, window: WindowColumn) -> str:
        """Return a column of the join. Rows without a key have no history."""
        value = f"{alias}.{quoted(window.name)}"
        return f"coalesce({value}, 0) AS {quoted(window.name)}" if window.is_count else f"{value} AS {quoted(window.name)}"


def write_windows(
    connection: duckdb.DuckDBPyConnection,
    folder: Path,
    main: MainTable,
    features: Sequence[JoinedTable],
    windows: Sequence[WindowColumn],
    on_rows: Callable[[int], None],
) -> list[WindowFile]:
    """Compute the windows' columns for all rows of the main table that have a key.

    Args:
        connection: has the view `main_rows`, with `ROW_NUMBER`.
        folder: for the files; the connection may read there.
        on_rows: called with the number of rows that were read.

    Raises:
        DataError: `derive.expression`, a `where` is not an expression over its table's columns.
    """
    groups: dict[tuple[str, ...], list[WindowColumn]] = {}
    for window in windows:
        groups.setdefault((window.table, *window.by, *window.by.values()), []).append(window)
    tables = {table.name: table for table in features}
    files = []
    for number, group in enumerate(groups.values()):
        path = folder / f"windows-{number}.parquet"
        table = tables.get(group[0].table)
        query = _own_rows(main, group) if table is None else _rows_of_both(connection, main, table, group)
        _write(connection, query, path, group, main=main, is_own=table is None, on_rows=on_rows)
        files.append(WindowFile(path, group))
    return files


def _write(
    connection: duckdb.DuckDBPyConnection,
    query: str,
    path: Path,
    group: Sequence[WindowColumn],
    *,
    main: MainTable,
    is_own: bool,
    on_rows: Callable[[int], None],
) -> None:
    writer: pq.ParquetWriter | None = None
    num_rows = 0
    try:
        for rows, code in _blocks(connection.sql(query).to_arrow_reader(BATCH_ROWS), len(group[0].by)):
            if is_own:
                # Sorted without it: each row is decided by its own time.
                rows = rows.append_column(DECIDED, pc.subtract(rows[AT], main.decision_lead // MICROSECOND))
            found = window_values(Block(rows=rows, code=code, lead=main.decision_lead, is_own=is_own), group)
            writer = writer or pq.ParquetWriter(path, found.schema, compression="lz4", use_dictionary=False, write_statistics=False)
            writer.write_table(found)
            num_rows += rows.num_rows
            on_rows(num_rows)
    finally:
        if writer is not None:
            writer.close()


def _blocks(reader: pa.RecordBatchReader, num_keys: int) -> Iterator[tuple[pa.Table, NDArray[np.int64]]]:
    """Yield rows of whole keys, and the number of each row's key, from 0; without rows one empty block, for its columns."""
    waiting: list[pa.Table] = []
    num_waiting, wanted, is_first = 0, BLOCK_ROWS, True
    for batch in reader:
        waiting.append(pa.Table.from_batches([batch]))
        num_waiting += batch.num_rows
        if num_waiting < wanted:
            continue
        rows = pa.concat_tables(waiting).combine_chunks()
        starts = _starts(rows, num_keys)
        cut = int(starts[-1]) if len(starts) else 0
        if cut:
            yield _block(rows.slice(0, cut), starts[:-1])
            is_first = False
        rest = rows.slice(cut)
        # A key with more rows than a block is not looked through again at every batch.
        wanted = BLOCK_ROWS if cut else 2 * rows.num_rows
        waiting, num_waiting = [rest], rest.num_rows
    rows = pa.concat_tables(waiting).combine_chunks() if waiting else reader.schema.empty_table()
    if rows.num_rows or is_first:
        yield _block(rows, _starts(rows, num_keys))


def _block(rows: pa.Table, starts: NDArray[np.int64]) -> tuple[pa.Table, NDArray[np.int64]]:
    code = np.zeros(rows.num_rows, dtype=np.int64)
    code[starts] = 1
    return rows, np.cumsum(code)


def _starts(rows: pa.Table, num_keys: int) -> NDArray[np.int64]:
    """Return the numbers of the rows whose key is not the one of the row before; the first row is not among them."""
    changed = np.zeros(max(0, rows.num_rows - 1), dtype=bool)
    for column in rows.columns[:num_keys]:
        values = column.combine_chunks()
        changed |= pc.not_equal(values[1:], values[:-1]).to_numpy(zero_copy_only=False)
    return np.flatnonzero(changed) + 1


def _own_rows(main: MainTable, group: Sequence[WindowColumn]) -> str:
    """Rows of the main table, each of which is both a decision and history."""
    keys = [quoted(name) for name in group[0].by]
    at = f"epoch_us({quoted(main.event_time)})"
    extra = _extra(group, list(main.columns.values()), lambda name: quoted(name))
    selected = [*_numbered(keys), f"{at} AS {quoted(AT)}", f"{quoted(ROW_NUMBER)} AS {quoted(ROW)}"]
    selected += [f"{sql} AS {quoted(name)}" for name, sql in extra]
    # A total order: of rows of one time the source's key decides, and where that is null, the values themselves.
    order = [f"{key} ASC NULLS LAST" for key in (*keys, at)]
    if any(window.kind == "lag" or window.rows is not None for window in group):
        order += [f"{quoted(name)} ASC NULLS FIRST" for name in (*main.key, *(name for name, _sql in extra))]
    known = " AND ".join(f"{key} IS NOT NULL" for key in (*keys, quoted(main.event_time)))
    return f"SELECT {', '.join(selected)} FROM main_rows WHERE {known} ORDER BY {', '.join(order)}"  # noqa: S608


def _rows_of_both(connection: duckdb.DuckDBPyConnection, main: MainTable, table: JoinedTable, group: Sequence[WindowColumn]) -> str:
    """Decisions of the main table, and the rows of a feature table, under the same key."""
    files = ", ".join(literal(str(path)) for path in table.paths)
    source = f"read_parquet([{files}], hive_partitioning = false)"
    present = connection.sql(f"SELECT * FROM {source}").columns  # noqa: S608
    ours, theirs = [quoted(name) for name in group[0].by], [quoted(name) for name in group[0].by.values()]
    extra = _extra(group, present, lambda name: quoted(name))
    at, lead = f"epoch_us({quoted(str(table.event_time))})", main.decision_lead // MICROSECOND
    facts = [*_numbered(theirs), f"{at} AS {quoted(AT)}", f"NULL::BIGINT AS {quoted(DECIDED)}", f"NULL::BIGINT AS {quoted(ROW)}"]
    facts += [f"{sql} AS {quoted(name)}" for name, sql in extra]
    decided = f"epoch_us({quoted(main.event_time)}) - {lead}"
    decisions = [*_numbered(ours), f"NULL::BIGINT AS {quoted(AT)}", f"{decided} AS {quoted(DECIDED)}"]
    decisions += [f"{quoted(ROW_NUMBER)} AS {quoted(ROW)}", *(f"NULL AS {quoted(name)}" for name, _sql in extra)]
    times = quoted(main.event_time), quoted(str(table.event_time))
    known, found = (" AND ".join(f"{key} IS NOT NULL" for key in (*keys, time)) for keys, time in zip((ours, theirs), times, strict=True))
    union = (
        f"SELECT {', '.join(facts)} FROM {source} WHERE {found} "  # noqa: S608
        f"UNION ALL SELECT {', '.join(decisions)} FROM main_rows WHERE {known}"
    )
    order = [quoted(f"key {number}") for number in range(len(ours))]
    time = f"coalesce({quoted(AT)}, {quoted(DECIDED)})"
    return f"SELECT * FROM ({union}) ORDER BY {', '.join(f'{column} ASC NULLS LAST' for column in (*order, time))}"  # noqa: S608


def _numbered(keys: Sequence[str]) -> list[str]:
    return [f"{key} AS {quoted(f'key {number}')}" for number, key in enumerate(keys)]


def _extra(group: Sequence[WindowColumn], available: Sequence[str], column: Callable[[str], str]) -> list[tuple[str, str]]:
    """Return (name in the block, SQL) of what the windows look at besides key and times."""
    found: dict[str, str] = {}
    for window in group:
        if window.column is not None:
            found[value_name(window.column)] = column(window.column)
        for name in window.known_at:
            found[known_name(name)] = f"epoch_us({column(name)})"
        if window.where is not None:
            columns_of(window.where, available, where=f"data.windows.{window.name}.where")
            found[where_name(window.where)] = f"CAST((\n{window.where}\n) AS BOOLEAN)"
    return list(found.items())
