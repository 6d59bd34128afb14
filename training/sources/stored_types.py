"""Values of a file as the YAML declares them: encodings that lose nothing are read, those that could be misread need a key.

Each value is checked: one that would not stay the same is refused with its row.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from training.errors import DataError, counted, shown
from training.sources.arrow_schema import MAX_NAMES_SHOWN, type_name
from training.spec.sections.data import Column
from training.sql.arrow_types import ARROW_TYPES
from training.sql.expressions import quoted

EXACT_INTEGER_DIGITS: Final = 18
"""Of a decimal without a fraction: all of them are int64."""
EXACT_DOUBLE_DIGITS: Final = 15
"""Of a decimal: the nearest double gives all of them back."""
INDEX: Final = re.compile(r"__index_level_\d+__")
"""The column in which pandas stores an index without a name."""
MAX_INSTANT_SECONDS: Final = (2**63 - 1) // 10**6
"""Of microseconds in 64 bits."""
PANDAS: Final = b"pandas"
NESTED: Final = ("struct<", "list<", "large_list<", "fixed_size_list<", "map<")
STRUCT: Final = re.compile(r"struct<([^:<>]+): ")

Convert = Callable[[pa.Array], pa.Array]


class EncodingCounts:
    """How many rows and files of a table were read from another encoding than the declared type's."""

    def __init__(self) -> None:
        self._rows: Counter[tuple[str, str, str]] = Counter()
        self._files: Counter[tuple[str, str, str]] = Counter()

    def add(self, name: str, found: str, kind: str, num_rows: int) -> None:
        """Count a file.

        Args:
            name: of the column in the file.
            found: the type that the file has.
            kind: the type that it is read as.
        """
        self._rows[name, found, kind] += num_rows
        self._files[name, found, kind] += 1

    def lines(self) -> list[str]:
        """Return a line for each two types, sorted, with the columns."""
        columns: dict[tuple[str, str, int, int], list[str]] = {}
        for (name, found, kind), files in sorted(self._files.items()):
            columns.setdefault((found, kind, self._rows[name, found, kind], files), []).append(name)
        return [
            f"{found} read as {kind}: {', '.join(names[:MAX_NAMES_SHOWN])}{' …' if len(names) > MAX_NAMES_SHOWN else ''}"
            f" ({counted(rows, 'row')} in {counted(files, 'file')})"
            for (found, kind, rows, files), names in columns.items()
        ]


def conversion(found: pa.DataType, column: Column, *, is_int96: bool = False) -> Convert | None:
    """Return what makes the declared type of values of another one; None: nothing does.

    It raises `pa.ArrowInvalid` where a value would not stay the same.

    Args:
        is_int96: whether the file stores instants as Spark's INT96 does.
    """
    wanted, kinds = ARROW_TYPES[column.type], pa.types
    if kinds.is_dictionary(found):
        inner = conversion(found.value_type, column)
        return None if inner is None else lambda values: inner(values.dictionary_decode())
    if kinds.is_decimal(found) or (column.scale is not None and kinds.is_integer(found)):
        return _of_decimal(found, column)
    if kinds.is_timestamp(found) and column.type == "timestamp":
        return _of_time(found, column, is_int96=is_int96)
    if kinds.is_floating(found) and kinds.is_integer(wanted):
        # An integer that the float cannot tell from its neighbour is refused on the way back.
        return None if kinds.is_float16(found) else lambda values: _checked(values.cast(wanted), found)
    is_text = kinds.is_large_string(found) or kinds.is_string_view(found) or kinds.is_binary(found) or kinds.is_large_binary(found)
    is_read = (
        found == wanted
        or kinds.is_null(found)
        or (kinds.is_integer(found) and (kinds.is_integer(wanted) or kinds.is_floating(wanted)))
        or (kinds.is_floating(found) and kinds.is_floating(wanted) and found.bit_width < wanted.bit_width)
        or (is_text and column.type == "string")
    )
    return (lambda values: values.cast(wanted)) if is_read else None


def _of_decimal(found: pa.DataType, column: Column) -> Convert | None:
    if column.scale is not None:
        whole, scaled = pa.decimal128(38, 0), pa.decimal128(38, column.scale)
        return lambda values: values.cast(scaled).view(whole).cast(ARROW_TYPES[column.type])
    if column.type == "double" and (found.precision <= EXACT_DOUBLE_DIGITS or column.stored_as == "decimal"):
        # By their text: Arrow's own cast multiplies by a power of ten, and is not the nearest double.
        return lambda values: values.cast(pa.string()).cast(pa.float64())
    if pa.types.is_integer(ARROW_TYPES[column.type]) and found.scale == 0 and found.precision <= EXACT_INTEGER_DIGITS:
        return lambda values: values.cast(ARROW_TYPES[column.type])
    return None


def _of_time(found: pa.DataType, column: Column, *, is_int96: bool) -> Convert | None:
    local, utc = pa.timestamp("us"), ARROW_TYPES["timestamp"]
    if found.tz is not None or (is_int96 and column.stored_as == "int96_utc"):
        return lambda values: values.cast(pa.timestamp("us", found.tz)).cast(utc)
    if column.zone is not None:
        return lambda values: pc.assume_timezone(values.cast(local), column.zone).cast(utc)
    return None


def _checked(values: pa.Array, found: pa.DataType) -> pa.Array:
    values.cast(found)
    return values


def is_changed(schema: pa.Schema, num_rows: int, columns: Mapping[str, Column], int96: Container[str]) -> bool:
    """Return whether a Parquet file has a declared column that is stored otherwise, and can be read.

    Another zone of an instant, dictionaries, and large texts are the same in Parquet. A file without rows may have no columns.
    """
    if not schema.names and not num_rows:
        return True
    for name in columns.keys() & set(schema.names):
        found, column = schema.field(name).type, columns[name]
        if (column.scale is not None or type_name(found) != column.type) and (
            not num_rows or conversion(found, column, is_int96=name in int96) is not None
        ):
            return True
    return False


def conformed(
    rows: pa.Table, columns: Mapping[str, Column], *, source: str, counts: EncodingCounts, int96: Container[str] = ()
) -> pa.Table:
    """Return rows with each column in its declared type where it can be read as that; others are as they were.

    Without rows, any type is read.

    Args:
        columns: the declaration of each column of `rows`.
        source: what to call the part in messages.
        int96: names of columns that the file stores as INT96.

    Raises:
        DataError: `schema.type`, a value would not stay the same.
    """
    for position, name in enumerate(rows.column_names):
        column, values = columns[name], rows.column(name)
        wanted, convert = ARROW_TYPES[column.type], conversion(values.type, column, is_int96=name in int96)
        if (values.type == wanted and column.scale is None) or (convert is None and rows.num_rows):
            continue
        counts.add(name, str(values.type), column.type, rows.num_rows)
        read = _read(values, convert, wanted, name, column, source=source) if convert is not None else pa.chunked_array([], wanted)
        rows = rows.set_column(position, pa.field(name, wanted), read)
    return rows


def _read(values: pa.ChunkedArray, convert: Convert, wanted: pa.DataType, name: str, column: Column, *, source: str) -> pa.ChunkedArray:
    done, read = 0, []
    for chunk in values.chunks:
        try:
            read.append(convert(chunk))
        except pa.ArrowInvalid as err:
            row = first_refused(chunk, convert)
            how = f"as a time in {column.zone}: the clock shows it twice or never" if column.zone else f"as {column.type} without a loss"
            where = f"{source}, row {done + row + 1:,}, column {shown(name)}"
            message = f"{where}: {shown(str(chunk[row]))}, {values.type}, cannot be read {how}"
            hint = remedy(str(values.type), name) or "correct the value, or declare the type that the file has"
            raise DataError("schema.type", message, hint=hint) from err
        done += len(chunk)
    return pa.chunked_array(read, wanted)


def first_refused(values: pa.Array, convert: Convert) -> int:
    """Return the place of the first value that cannot be converted."""
    begin, end = 0, len(values)
    while end - begin > 1:
        middle = (begin + end) // 2
        try:
            convert(values.slice(begin, middle - begin))
            begin = middle
        except pa.ArrowInvalid:
            end = middle
    return begin


def check_int96(path: Path, names: Iterable[str], *, source: str) -> None:
    """Return if microseconds hold each instant of these columns in Spark's INT96. Arrow wraps the others, and as seconds it reads all.

    Raises:
        DataError: `schema.type`, with the number of rows.
    """
    with pq.ParquetFile(path, coerce_int96_timestamp_unit="s") as file:
        for name in names:
            seconds = (batch.column(0).cast(pa.int64()) for batch in file.iter_batches(columns=[name]))
            is_outside = pa.chunked_array([pc.greater_equal(pc.abs(each), MAX_INSTANT_SECONDS) for each in seconds], pa.bool_())
            if count := pc.sum(is_outside).as_py():
                row = pc.index(is_outside, pa.scalar(value=True)).as_py()
                rows = f"{counted(count, 'row')} of {len(is_outside):,}, the first is row {row + 1:,}"
                message = f"{source}, column {shown(name)}: INT96 has instants more than 292,000 years from 1970 ({rows})"
                raise DataError("schema.type", message, hint="correct the values: they are no instants")


def remedy(found: str, name: str) -> str:
    """Return what to write for a column whose type needs a key; empty where none helps.

    Args:
        found: the type that the file has, in Arrow's words.
        name: of the column.
    """
    if found.startswith("decimal"):
        nearest, exact = "{type: double, stored_as: decimal}", f"{{type: int64, scale: {found.rstrip(')').rsplit(' ', 1)[-1]}}}"
        return f"declare {nearest}, the nearest double, or {exact}, the value times 10 to this power"
    if found.startswith("timestamp[") and "tz=" not in found:
        return "state where its clock is: {type: timestamp, zone: Europe/Berlin}, or zone: UTC; of Spark's INT96, stored_as: int96_utc"
    return nested_remedy(found, name)


def nested_remedy(found: str, name: str) -> str:
    """Return how a field of a nested column becomes a column, by the first one; empty for a type that is not nested."""
    if not found.startswith(NESTED):
        return ""
    path = [name]
    while inner := STRUCT.match(found):
        path.append(inner[1])
        found = found[inner.end() :]
    element = "['key']" if found.startswith("map<") else "[1]" if found.startswith(NESTED) else ""
    expression = ".".join(each if each.isidentifier() else quoted(each) for each in path) + element
    new = re.sub(r"\W+", "_", "_".join(path))
    return f"write a field as a column of its own where the file is made (SELECT {expression} AS {new}), and ignore: [{json.dumps(name)}]"


def index_columns(schema: pa.Schema, known: Container[str]) -> set[str]:
    """Return the columns of pandas' index, unless they are among `known`."""
    if PANDAS not in (schema.metadata or {}):
        return set()
    return {name for name in schema.names if INDEX.fullmatch(name) and name not in known}
