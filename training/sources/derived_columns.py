"""Columns that the YAML derives when a table is read: by SQL, and instants of the times of a clock."""

from __future__ import annotations

import logging
import struct
from typing import Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from training.errors import DataError, first_line, shown
from training.sources.arrow_schema import require
from training.sources.local_times import ClockRules, instants_of, on_clock
from training.sources.table_contract import TableContract
from training.spec.sections.derived import SourceDerived
from training.sql.arrow_types import ARROW_TYPES
from training.sql.expressions import SQL_TYPES, columns_of, hardened, literal, quoted

INTEGERS: Final = frozenset({"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"})
RESULT_TYPES: Final = {
    **dict.fromkeys(("int8", "int16", "int32", "int64"), INTEGERS),
    **dict.fromkeys(("float", "double"), INTEGERS | {"FLOAT", "DOUBLE", "DECIMAL"}),
    "string": frozenset({"VARCHAR"}),
    "boolean": frozenset({"BOOLEAN"}),
    "date": frozenset({"DATE"}),
    "timestamp": frozenset({"TIMESTAMP WITH TIME ZONE"}),
}
"""What an expression may give for each declared type. No text becomes a number here, and no time without zone an instant."""
LOCAL_TYPES: Final = frozenset({"TIMESTAMP", "DATE"})
LOCAL: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,9})?)?)?"
"""A day, or a time without an offset."""
EPOCH: Final = pa.Array.from_buffers(pa.timestamp("us"), 1, [None, pa.py_buffer(struct.pack("<q", 0))])[0]

logger = logging.getLogger(__name__)


def derive(contract: TableContract, table: pa.Table, *, source: str) -> pa.Table:
    """Return the table with the contract's derived columns after its own; each may use those before it.

    Raises:
        DataError: `derive.expression`; `derive.type`, the result is not of the declared type; `derive.failed`, it cannot be computed
            for some row; `schema.missing`, it needs a declared column that the file lacks; `schema.type`, a text has an offset and is
            said to be a time of a clock; of `instants_of`.
    """
    if not contract.derived:
        return table
    declared = [*contract.columns, *contract.derived]
    with hardened() as connection:
        for name, derived in contract.derived.items():
            where = f"column {shown(name)} of table {shown(contract.name)}"
            needed = columns_of(derived.sql, [column for column in declared if column != name], where=where)
            require(needed, table, f"{where} is computed from it", source=source)
            connection.register("source_rows", table)
            if derived.local is not None:
                _check_texts(connection, table, derived.local, where=f"{source}: {where}")
            computed = f"({derived.sql}\n)"
            try:
                found = connection.sql(f"SELECT {computed} AS result FROM source_rows").types[0]  # noqa: S608 - checked by columns_of
                _check_result(str(found), derived, where=where)
                kind = SQL_TYPES[derived.type] if derived.zone is None else "TIMESTAMP"
                cast = f"CAST({computed} AS {kind}) AS {quoted(name)}"
                made = connection.sql(f"SELECT *, {cast} FROM source_rows").to_arrow_table()  # noqa: S608 - checked by columns_of
            except duckdb.Error as err:
                raise DataError(
                    "derive.failed",
                    f"{source}: {where} cannot be computed: {first_line(err)}",
                    hint=f"its expression is {shown(derived.sql)}",
                ) from err
            connection.unregister("source_rows")
            table = made if derived.zone is None else _with_instants(table, made[name], name, derived, where=f"{source}: {where}")
    return table


def _check_result(found: str, derived: SourceDerived, *, where: str) -> None:
    wanted = RESULT_TYPES[derived.type] if derived.zone is None else LOCAL_TYPES
    if found.split("(")[0] not in wanted:
        hint = "cast it, or correct its type"
        if derived.type == "timestamp":
            is_instant = derived.zone is not None and found in RESULT_TYPES["timestamp"]
            hint = "it is an instant already: remove zone" if is_instant else "state where its clock is: zone: America/New_York"
        declared = derived.type if derived.zone is None else "a time without a zone"
        raise DataError("derive.type", f"{where}: {shown(derived.sql)} gives {found}, declared is {declared}", hint=hint)


def _check_texts(connection: duckdb.DuckDBPyConnection, table: pa.Table, name: str, *, where: str) -> None:
    """Refuse texts that are no times of a clock: DuckDB would drop an offset."""
    if not pa.types.is_string(table.schema.field(name).type):
        return
    query = f"SELECT {quoted(name)} AS text, row_number() OVER () AS n FROM source_rows"  # noqa: S608 - quoted
    wrong = f"SELECT n, text FROM ({query}) WHERE NOT regexp_full_match(text, {literal(LOCAL)}) ORDER BY n LIMIT 1"  # noqa: S608 - quoted
    for row, text in connection.sql(wrong).fetchall():
        message = f"{where}: {shown(text)} in row {row:,} of {shown(name)} is no time without an offset"
        hint = "write 2026-10-25 02:30, or a day; a column of instants is declared as timestamp; another form is read by sql and zone"
        raise DataError("schema.type", message, hint=hint)


def _with_instants(table: pa.Table, local: pa.ChunkedArray, name: str, derived: SourceDerived, *, where: str) -> pa.Table:
    """Return the table with the instants of the times of a clock, and log those that the YAML settles."""
    known = np.from_dlpack(pc.is_valid(local).cast(pa.uint8()).combine_chunks()).astype(bool)
    filled = pc.if_else(pc.is_valid(local), local, EPOCH).cast(pa.int64()).combine_chunks()
    times = on_clock(np.array(np.from_dlpack(filled), dtype=np.int64), known, derived.zone or "")
    rules = ClockRules(derived.twice, derived.by, is_shifted=derived.missing == "shift")
    instants = instants_of(times, rules, table, where=where)
    for change, rows in times.rows:
        how = f"twice: {derived.twice}" if change.is_twice else "missing: shift"
        logger.info("%s: %s times read by %s: %s", where, f"{len(rows):,}", how, change.words)
    found = pa.Array.from_buffers(ARROW_TYPES["timestamp"], len(instants), [None, pa.py_buffer(instants)])
    return table.append_column(name, pc.if_else(pc.is_valid(local), found, pa.nulls(1, found.type)[0]))
