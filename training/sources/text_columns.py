"""Columns of texts that the YAML reads as another type: numbers of a form (`number_format`), times of a clock, words for missing values."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from training.errors import DataError, shown
from training.sources.arrow_schema import missing_hint, type_name
from training.sources.stored_types import first_refused
from training.sources.table_contract import TableContract
from training.spec.rules.weights import NUMBERS
from training.spec.sections.data import Column
from training.sql.arrow_types import ARROW_TYPES
from training.sql.expressions import hardened, literal, quoted
from training.sql.number_texts import NumberForm


def with_typed_texts(contract: TableContract, table: pa.Table, *, source: str) -> pa.Table:
    """Return the table with each such column in its declared type; a column that is none of texts stays as it is.

    Raises:
        DataError: `schema.type`, a text is neither a value of the type, in the form that the YAML says, nor a word for missing.
    """
    texts = [
        name
        for name, column in contract.columns.items()
        if (column.is_text_in_file or column.zone is not None)
        and name in table.column_names
        and type_name(table.schema.field(name).type) == "string"
    ]
    if not texts:
        return table
    with hardened() as connection:
        connection.register("source_rows", table)
        for name in texts:
            column = contract.columns[name]
            missing = ", ".join(map(literal, column.missing))
            plain = f"CASE WHEN {quoted(name)} IN ({missing}) THEN NULL ELSE {quoted(name)} END" if missing else quoted(name)
            if column.number_format is not None:
                form = NumberForm(column.number_format.decimal, column.number_format.thousands, column.number_format.unit)
                is_form = f"regexp_full_match({plain}, {literal(form.pattern(is_integer=column.type.startswith('int')))})"
                query = f"SELECT row_number() OVER () AS n, {plain} AS text, {is_form} AS fits FROM source_rows"  # noqa: S608 - quoted
                wrong = connection.sql(f"SELECT n, text FROM ({query}) WHERE NOT fits ORDER BY n LIMIT 1").fetchall()  # noqa: S608 - quoted
                if wrong:
                    raise _refused(name, column, *wrong[0], source=source)
                plain = form.plain(plain)
            elif column.type in NUMBERS:
                # As Arrow's CSV reader takes numbers.
                plain = f"trim({plain})"
            found = connection.sql(f"SELECT {plain} AS text FROM source_rows").to_arrow_table()["text"]  # noqa: S608 - quoted
            table = table.set_column(table.column_names.index(name), name, _typed(found, name, column, source=source))
    return table


def _typed(texts: pa.ChunkedArray, name: str, column: Column, *, source: str) -> pa.ChunkedArray:
    found = texts.combine_chunks()

    def convert(values: pa.Array) -> pa.Array:
        if column.zone is None:
            return values.cast(ARROW_TYPES[column.type])
        return pc.assume_timezone(values.cast(pa.timestamp("us")), column.zone).cast(ARROW_TYPES["timestamp"])

    try:
        return pa.chunked_array([convert(found)])
    except pa.ArrowInvalid:
        row = first_refused(found, convert)
        raise _refused(name, column, row + 1, found[row].as_py(), source=source) from None


def _refused(name: str, column: Column, row: int, text: str, *, source: str) -> DataError:
    how = "" if column.number_format is None else " in the form of its number_format"
    hint = "correct the value, or the column's number_format"
    if column.zone is not None:
        hint = "correct the value, or settle such times by data.source.derive"
        how = f" without an offset that the clock of {column.zone} shows once"
    hint += missing_hint(text, column.missing)
    return DataError(
        "schema.type",
        f"{source}, row {row:,}, column {shown(name)}: {shown(text)} is not of type {column.type}{how}",
        hint=hint,
    )
