"""Columns that a YAML derives from others of the same row (`prepare.derive`), computed by DuckDB in training and in serving."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from training.data.dataset.frames import FIRST_INEXACT
from training.errors import DataError, first_line, shown
from training.sql.arrow_types import ARROW_TYPES
from training.sql.expressions import SQL_TYPES, columns_of, quoted

if TYPE_CHECKING:
    # A registered model carries this file, and no spec.
    from training.spec import PipelineSpec

HIDDEN: Final = ARROW_TYPES.keys() - {"string", "timestamp"}
"""The YAML's types that a pandas column of missing values alone does not show."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DerivedColumn:
    """A column computed from others of its row; it may use derived columns that stand before it."""

    name: str
    type: str
    sql: str


def check_derived(derived: Sequence[DerivedColumn], columns: Collection[str]) -> set[str]:
    """Return the raw columns that the expressions use.

    Raises:
        DataError: `derive.expression`, `derive.name` (a column has it already), `derive.type` or `derive.constant` (no column).
    """
    made: list[str] = []
    used: set[str] = set()
    for column in derived:
        if column.name.lower() in {name.lower() for name in (*columns, *made)}:
            raise DataError("derive.name", f"the data has a column {shown(column.name)} already", hint="give the derived one another name")
        if column.type not in SQL_TYPES:
            message = f"column {shown(column.name)}: there is no type {shown(column.type)}"
            raise DataError("derive.type", message, hint=f"one of {', '.join(SQL_TYPES)}")
        mentioned = columns_of(column.sql, [*columns, *made], where=f"prepare.derive.{column.name}")
        if not mentioned:
            message = f"prepare.derive.{column.name}: {shown(column.sql)} mentions no column, so it has the same value in every row"
            raise DataError("derive.constant", message, hint="write an expression over the row's columns, or remove it")
        used |= mentioned
        made.append(column.name)
    return used - set(made)


def raw_types(schema: pa.Schema) -> dict[str, str]:
    """Return the columns of a type of `HIDDEN` and their types, by the YAML's names."""
    names = {ARROW_TYPES[name]: name for name in HIDDEN}
    return {field.name: names[field.type] for field in schema if field.type in names}


def as_declared(values: pa.Array | pa.ChunkedArray, type_: str | None, name: str) -> pa.Array | pa.ChunkedArray:
    """Return a raw column as expressions see it: of the declared type, whether or not a value is missing in these rows, or all are.

    Args:
        values: as pandas has them.
        type_: the YAML's; None: it is none of `HIDDEN`.

    Raises:
        DataError: `schema.type`, a number is not of the type; `transform.precision`, an integer from 2**53 came as float64.
    """
    if type_ is None or type_ not in HIDDEN or values.type == ARROW_TYPES[type_]:
        return values
    if pa.types.is_null(values.type):
        return values.cast(ARROW_TYPES[type_])
    # Pandas has integers as float64 where one is missing, and a caller may give 5 for 5.0.
    if type_ in ("boolean", "date") or not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        return values
    if type_ == "int64" and pa.types.is_float64(values.type):
        _check_exact(values, name)
    try:
        return values.cast(ARROW_TYPES[type_], safe=not type_.startswith(("float", "double")))
    except pa.ArrowInvalid as err:
        message = f"column {shown(name)} is declared as {type_}: {first_line(err)}"
        raise DataError("schema.type", message, hint="give values of the declared type") from err


def _check_exact(values: pa.Array | pa.ChunkedArray, name: str) -> None:
    large = pc.filter(values, pc.greater_equal(pc.abs(values), float(FIRST_INEXACT)))
    if len(large):
        message = f"column {shown(name)}: {len(large)} values from 2**53, such as {large[0].as_py():.0f}: float64 lacks some integers there"
        raise DataError("transform.precision", message, hint="give integers as int64, or as pandas' Int64 where one is missing")


def check_baseline(spec: PipelineSpec) -> None:
    """Refuse an SQL baseline (`evaluate.baseline.sql`) that is not a scalar expression over the columns of the joined frame.

    Raises:
        DataError: `derive.expression`.
    """
    if spec.evaluate.baseline.sql is not None:
        columns_of(spec.evaluate.baseline.sql, list(spec.data.frame_types()), where="evaluate.baseline.sql")


def derive(connection: duckdb.DuckDBPyConnection, table: pa.Table, derived: Sequence[DerivedColumn]) -> pa.Table:
    """Return [n rows, one column per derived], in the order of `table`'s rows.

    Args:
        connection: hardened, shared by calls of any thread.
        table: the raw columns that `check_derived` named.
        derived: checked.

    Raises:
        DataError: `derive.failed`, an expression does not fit its columns' types, or has no value for some row.
    """
    # The line breaks end a comment at an expression's end; a column defined further left is visible further right.
    selected = ", ".join(f"CAST((\n{column.sql}\n) AS {SQL_TYPES[column.type]}) AS {quoted(column.name)}" for column in derived)
    cursor = connection.cursor()
    try:
        cursor.register("raw_rows", table)
        return cursor.sql(f"SELECT {selected} FROM raw_rows").to_arrow_table()  # noqa: S608 - expressions that were checked
    except duckdb.Error as err:
        names = ", ".join(column.name for column in derived)
        raise DataError("derive.failed", f"could not derive {names}: {first_line(err)}") from err
    finally:
        cursor.close()
