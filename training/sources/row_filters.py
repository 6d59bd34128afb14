"""Which rows of the main table a pipeline uses: those that `where` selects, and of these a sample by the hash of their key.

Both depend on a row alone: neither the order of rows, nor how they are divided into files, makes a difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import duckdb
import pyarrow as pa

from training.errors import DataError, first_line, shown
from training.sources.arrow_schema import require
from training.sources.table_contract import RowSample, TableContract
from training.sql.expressions import columns_of, hardened, literal, quoted

HASH_DIGITS: Final = 15
"""Hexadecimal digits of a key's MD5 that decide: 60 bits."""
TEXT_OF: Final = {
    "string": "CAST({0} AS VARCHAR)",
    "boolean": "CAST({0} AS VARCHAR)",
    "date": "strftime({0}, '%Y-%m-%d')",
    "timestamp": "CAST(epoch_us({0}) AS VARCHAR)",
    **dict.fromkeys(("int8", "int16", "int32", "int64"), "CAST({0} AS VARCHAR)"),
}
"""One text for each value, by the type of its column; a number with a fraction has several. Any engine can compute it."""


def selected(contract: TableContract, table: pa.Table, *, source: str) -> tuple[pa.Table, dict[str, int]]:
    """Return the rows that the contract's `where` and `sample` keep, and how many each of the two left out.

    A row for which `where` is null is left out. Rows with equal keys are kept together, or left out together.

    Args:
        table: with the derived columns.
        source: what to call the part in messages.

    Raises:
        DataError: `schema.missing`, a column that is needed is not there; `derive.expression`, `where` is no expression over
            one row; `where.type`, `where.failed`.
    """
    left_out: dict[str, int] = {}
    if contract.where is not None:
        kept = _where(contract, contract.where, table, source=source)
        left_out["where"], table = table.num_rows - kept.num_rows, kept
    if contract.sample is not None:
        kept = _sampled(contract, contract.sample, table, source=source)
        left_out["sample"], table = table.num_rows - kept.num_rows, kept
    return table, left_out


def _where(contract: TableContract, sql: str, table: pa.Table, *, source: str) -> pa.Table:
    where = f"data.source.where of table {shown(contract.name)}"
    require(columns_of(sql, [*contract.columns, *contract.derived], where=where), table, f"{where} needs it", source=source)
    with hardened() as connection:
        connection.register("source_rows", table)
        try:
            found = str(connection.sql(f"SELECT ({sql}\n) AS result FROM source_rows").types[0])  # noqa: S608 - checked by columns_of
            if found != "BOOLEAN":
                hint = "compare: origin = 'JFK', delay IS NOT NULL"
                raise DataError("where.type", f"{where}: {shown(sql)} gives {found}, it must give true or false", hint=hint)
            return connection.sql(f"SELECT * FROM source_rows WHERE ({sql}\n)").to_arrow_table()  # noqa: S608 - checked by columns_of
        except duckdb.Error as err:
            message = f"{source}: {where} cannot be computed: {first_line(err)}"
            raise DataError("where.failed", message, hint=f"its expression is {shown(sql)}") from err


def _sampled(contract: TableContract, sample: RowSample, table: pa.Table, *, source: str) -> pa.Table:
    require(set(sample.by), table, "rows are sampled by it", source=source)
    text = key_text(sample.by, [contract.types[name] for name in sample.by])
    limit = f"{round(sample.share * 16**HASH_DIGITS):0{HASH_DIGITS}x}"
    digits = f"left(md5({literal(f'{sample.seed}|')} || {text}), {HASH_DIGITS})"
    with hardened() as connection:
        connection.register("source_rows", table)
        # Hexadecimal texts of one length are in the order of their numbers.
        return connection.sql(f"SELECT * FROM source_rows WHERE {digits} < {literal(limit)}").to_arrow_table()  # noqa: S608 - quoted names


def key_text(names: Sequence[str], types: Sequence[str]) -> str:
    """Return an SQL expression of a text that differs for different values of the columns: each with its length before it."""
    parts = []
    for name, kind in zip(names, types, strict=True):
        value = TEXT_OF[kind].format(quoted(name))
        parts.append(f"coalesce(CAST(strlen({value}) AS VARCHAR) || ':' || {value}, 'null')")
    return " || '|' || ".join(parts)
