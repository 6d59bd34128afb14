"""A file's columns and their types, found by all of its rows, and the rows as a DuckDB view.

Types are those that the sources accept: a column is `int64` if each of its cells is one for them. DuckDB reads in streams, so a file
larger than the memory takes time and no memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import duckdb

from training.errors import DataError, shown
from training.runtime.stage_memory import engine_memory_bytes
from training.sources.compression import CODECS, plain_file
from training.sources.csv_reader import read_header
from training.sources.jsonl_reader import first_keys
from training.sources.limits import table_limit_bytes
from training.sources.tables import ARROW_TYPES, schema_of
from training.spec.types import COLUMN_RULE
from training.sql.expressions import hardened, literal, quoted

SUFFIXES: Final = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet"}
MAX_COLUMNS: Final = 2_000
MARKERS: Final = ("NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "?", "-", ".")
"""Texts that other programs write for a missing number."""
DAY: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
CLOCK: Final = r"[0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,6})?)?"
FORBIDDEN: Final = re.compile(r"[\\#?@%$\s]")
"""In the name of a file, as `training.spec.uris` has it; and what would be decoded."""
INTEGER: Final = r"-?(0|[1-9][0-9]*)"
NUMBER: Final = r"-?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][-+]?[0-9]+)?"
INSTANT: Final = rf"{DAY}[T ]{CLOCK}(Z|[+-][0-9]{{2}}(:?[0-9]{{2}})?)"
LOCAL: Final = rf"{DAY}[T ]{CLOCK}"
_OF_JSON: Final = {"BIGINT": "int64", "UBIGINT": "int64", "DOUBLE": "double", "BOOLEAN": "boolean", "VARCHAR": "string"}


Report = Callable[[str, int, int], None]
"""What is looked for, the number of the column, and of how many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundColumn:
    """A column that the YAML can declare."""

    name: str
    type: str
    """As the YAML names it."""
    num_missing: int
    marker: str = ""
    """The text that stands for a missing number in a column of numbers, which is then declared as text."""
    is_local_time: bool = False
    """A text: a day and a time of day without an offset."""

    @property
    def is_number(self) -> bool:
        return bool(self.marker) or self.type in ("int8", "int16", "int32", "int64", "float", "double")

    @property
    def sql(self) -> str:
        """The column's value in the view of the rows."""
        if self.marker:
            return f"TRY_CAST(nullif({quoted(self.name)}, {literal(self.marker)}) AS DOUBLE)"
        return quoted(self.name)


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundTable:
    """A file with rows; `rows` is a view of the connection, with the columns in their types."""

    path: Path
    kind: str
    """Of the source that reads it: csv, jsonl, parquet."""
    columns: Mapping[str, FoundColumn]
    left_out: Mapping[str, str]
    """Name to the reason."""
    num_rows: int
    connection: duckdb.DuckDBPyConnection

    def value(self, sql: str) -> object:
        """Return the first value of a query's first row."""
        rows = self.connection.sql(sql).limit(1).fetchall()
        return rows[0][0] if rows else None


def kind_of(path: Path) -> str:
    """Return the kind of source that reads a file, by its suffixes.

    Raises:
        DataError: `init.file`, there is none for it.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in CODECS:
        suffixes.pop()
    kind = SUFFIXES.get(suffixes[-1] if suffixes else "")
    if kind is None:
        message = f"{shown(path.name)} has none of the suffixes {', '.join(SUFFIXES)}"
        raise DataError("init.file", message, hint="name the file after its format; text files may be compressed, .gz or .zst")
    return kind


@contextmanager
def opened(path: Path, folder: Path, report: Report) -> Iterator[FoundTable]:
    """Open a file.

    Args:
        folder: for scratch files.
        report: is told which column of how many is looked at.

    Raises:
        DataError: `init.file`, it is no regular file, or none of a known format; `init.columns`, it has too many columns, or none that
            can be declared; `data.empty`, `format.csv`, `format.jsonl`, `format.compression`, `data.format`, `schema.names`.
    """
    kind = kind_of(path)
    strange = FORBIDDEN.search(path.name)
    if strange or not path.name.isprintable():
        found = shown(strange[0]) if strange else "characters that cannot be printed"
        raise DataError("init.file", f"the name {shown(path.name)} has {found}: no uri of a source may have it", hint="rename the file")
    if not path.is_file():
        raise DataError("init.file", f"{path} is not a file", hint="name a CSV, JSON lines or Parquet file")
    plain = path if kind == "parquet" else plain_file(path, folder, source=str(path), limit_bytes=table_limit_bytes())
    with hardened([folder, plain.resolve().parent], memory_limit=f"{engine_memory_bytes()}B") as connection:
        try:
            yield _found(connection, path, plain.resolve(), kind, folder, report)
        except (duckdb.InvalidInputException, duckdb.ConversionException, duckdb.IOException) as err:
            raise DataError("data.format", f"{path} cannot be read: {_first_line(err)}", hint="repair the file, or write it again") from err


def _found(connection: duckdb.DuckDBPyConnection, path: Path, plain: Path, kind: str, folder: Path, report: Report) -> FoundTable:
    if kind == "parquet":
        columns, left_out = _of_parquet(connection, path, plain)
    else:
        columns, left_out = _of_texts(connection, path, plain, kind, folder, report)
    if not columns:
        raise DataError("init.columns", f"{path}: no column can be declared: {_listed(left_out)}", hint="rename columns, or change types")
    num_rows = int(connection.sql("SELECT count(*) FROM rows").fetchall()[0][0])
    if not num_rows:
        raise _empty(path)
    return FoundTable(path=path, kind=kind, columns=columns, left_out=left_out, num_rows=num_rows, connection=connection)


def _of_parquet(connection: duckdb.DuckDBPyConnection, path: Path, plain: Path) -> tuple[dict[str, FoundColumn], dict[str, str]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        types = schema_of(pq.read_schema(plain), source=str(path))
    except (pa.ArrowInvalid, OSError) as err:
        raise DataError("data.format", f"{path} is not a Parquet file: {_first_line(err)}", hint="write the file again") from err
    _check_width(types, path)
    names, left_out = _declarable(types)
    for name in list(names):
        if types[name] not in ARROW_TYPES:
            left_out[name] = f"type {types[name]} has no name in the YAML"
            names.remove(name)
    connection.execute(f"CREATE VIEW rows AS SELECT * FROM read_parquet({literal(str(plain))})")  # noqa: S608 - quoted
    missing = _counts(connection, [f"count(*) FILTER ({quoted(name)} IS NULL)" for name in names])
    return {name: FoundColumn(name=name, type=types[name], num_missing=count) for name, count in zip(names, missing, strict=True)}, left_out


def _of_texts(
    connection: duckdb.DuckDBPyConnection, path: Path, plain: Path, kind: str, folder: Path, report: Report
) -> tuple[dict[str, FoundColumn], dict[str, str]]:
    """Find the types of texts, each by all rows."""
    if kind == "csv":
        every = read_header(plain, source=str(path))
    elif (every := first_keys(plain, source=str(path)) or []) == []:
        raise _empty(path)
    _check_width(every, path)
    names, left_out = _declarable(every)
    copy = folder / "cells.parquet"
    # Once: the columns are then read one by one, and not the whole file for each.
    connection.execute(f"COPY ({_raw(plain, kind, every, names)}) TO {literal(str(copy))} (FORMAT parquet)")
    cells = ", ".join(quoted(name) if kind == "csv" else f"CAST({quoted(name)} AS JSON) AS {quoted(name)}" for name in names) or "*"
    connection.execute(f"CREATE VIEW raw AS SELECT {cells} FROM read_parquet({literal(str(copy))})")  # noqa: S608 - quoted
    if not _counts(connection, ["count(*)"])[0]:
        raise _empty(path)
    found: dict[str, FoundColumn] = {}
    for number, name in enumerate(names, start=1):
        report("types", number, len(names))
        column = _text_column(connection, name) if kind == "csv" else _json_column(connection, name)
        if isinstance(column, str):
            left_out[name] = column
        else:
            found[name] = column
    selected = [_typed(column, is_json=kind == "jsonl") for column in found.values()]
    if selected:
        connection.execute(f"CREATE VIEW rows AS SELECT {', '.join(selected)} FROM raw")  # noqa: S608 - quoted
    return found, left_out


def _raw(plain: Path, kind: str, every: Sequence[str], names: Sequence[str]) -> str:
    """Return the query of the declarable columns' cells: texts, or values of JSON."""
    if kind == "csv":
        # By number: names that differ in capital letters alone are one for DuckDB.
        options = """header = false, skip = 1, auto_detect = false, delim = ',', quote = '"', escape = '"', allow_quoted_nulls = false"""
        typed = ", ".join(f"c{number}: 'VARCHAR'" for number in range(len(every)))
        renamed = ", ".join(f"c{every.index(name)} AS {quoted(name)}" for name in names) or "1"
        return f"SELECT {renamed} FROM read_csv({literal(str(plain))}, {options}, nullstr = '', columns = {{{typed}}})"  # noqa: S608 - quoted
    typed = ", ".join(f"{literal(name)}: 'JSON'" for name in names or every[:1])
    return f"SELECT * FROM read_json({literal(str(plain))}, format = 'newline_delimited', columns = {{{typed}}})"  # noqa: S608 - quoted


def _empty(path: Path) -> DataError:
    return DataError("data.empty", f"{path} has no rows", hint="name a file with rows")


def _text_column(connection: duckdb.DuckDBPyConnection, name: str, text: str | None = None) -> FoundColumn | str:
    """Return a column of texts in the narrowest type that all of its cells have; a reason where it has no cells."""
    text = quoted(name) if text is None else text
    markers = ", ".join(literal(marker) for marker in MARKERS)
    counts = _counts(
        connection,
        [
            f"count({text})",
            f"count(*) FILTER (regexp_full_match({text}, {literal(INTEGER)}) AND TRY_CAST({text} AS BIGINT) IS NOT NULL)",
            f"count(*) FILTER (regexp_full_match({text}, {literal(NUMBER)}))",
            f"count(*) FILTER (lower({text}) IN ('true', 'false'))",
            f"count(*) FILTER (regexp_full_match({text}, {literal(DAY)}) AND TRY_CAST({text} AS DATE) IS NOT NULL)",
            f"count(*) FILTER (regexp_full_match({text}, {literal(INSTANT)}) AND TRY_CAST({text} AS TIMESTAMPTZ) IS NOT NULL)",
            f"count(*) FILTER (regexp_full_match({text}, {literal(LOCAL)}) AND TRY_CAST({text} AS TIMESTAMP) IS NOT NULL)",
            f"count(*) FILTER ({text} IN ({markers}))",
            f"count(DISTINCT {text}) FILTER ({text} IN ({markers}))",
            f"count(*) FILTER (regexp_full_match({text}, '-?0[0-9]+'))",
            "count(*)",
        ],
    )
    known, integers, numbers, booleans, days, instants, locals_, marked, num_markers, zeros, num_rows = counts
    missing = num_rows - known
    if not known:
        return "no cell has a value"
    for kind, count in (("int64", integers), ("boolean", booleans), ("date", days), ("timestamp", instants)):
        if count == known:
            return FoundColumn(name=name, type=kind, num_missing=missing)
    # 007 is an id, not a number.
    if numbers == known and not zeros:
        return FoundColumn(name=name, type="double", num_missing=missing)
    if marked and num_markers == 1 and numbers and numbers + marked == known and not zeros:
        ((marker,),) = connection.sql(f"SELECT {text} FROM raw WHERE {text} IN ({markers}) LIMIT 1").fetchall()  # noqa: S608 - quoted
        return FoundColumn(name=name, type="string", num_missing=missing, marker=str(marker))
    return FoundColumn(name=name, type="string", num_missing=missing, is_local_time=locals_ == known)


def _json_column(connection: duckdb.DuckDBPyConnection, name: str) -> FoundColumn | str:
    cell = quoted(name)
    rows = connection.sql(f"SELECT json_type({cell}) AS kind, count(*) FROM raw GROUP BY 1 ORDER BY 1").fetchall()  # noqa: S608 - quoted
    kinds = {kind for kind, _ in rows if kind not in (None, "NULL")}
    missing = sum(count for kind, count in rows if kind in (None, "NULL"))
    if not kinds:
        return "no line has a value"
    if kinds - _OF_JSON.keys():
        return "its values are nested"
    types = {_OF_JSON[kind] for kind in kinds}
    if types == {"string"}:
        found = _text_column(connection, name, f"{cell}->>'$'")
        if isinstance(found, str) or found.type in ("string", "date", "timestamp"):
            return (
                found
                if isinstance(found, str)
                else FoundColumn(name=name, type=found.type, num_missing=missing, is_local_time=found.is_local_time)
            )
        # "1" is not a number in JSON lines.
        return FoundColumn(name=name, type="string", num_missing=missing)
    if types <= {"int64", "double"}:
        return FoundColumn(
            name=name,
            type="double" if "double" in types or ("UBIGINT" in kinds and _is_large(connection, cell)) else "int64",
            num_missing=missing,
        )
    if len(types) == 1:
        return FoundColumn(name=name, type=types.pop(), num_missing=missing)
    return f"its values are of several types: {', '.join(sorted(types))}"


def _is_large(connection: duckdb.DuckDBPyConnection, cell: str) -> bool:
    (count,) = _counts(connection, [f"count(*) FILTER (({cell}->>'$') IS NOT NULL AND TRY_CAST({cell}->>'$' AS BIGINT) IS NULL)"])
    return count > 0


def _typed(column: FoundColumn, *, is_json: bool) -> str:
    text = f"({quoted(column.name)}->>'$')" if is_json else quoted(column.name)
    kinds = {"int64": "BIGINT", "double": "DOUBLE", "boolean": "BOOLEAN", "date": "DATE", "timestamp": "TIMESTAMPTZ", "string": "VARCHAR"}
    return f"CAST({text} AS {kinds[column.type]}) AS {quoted(column.name)}"


def _counts(connection: duckdb.DuckDBPyConnection, expressions: list[str]) -> list[int]:
    if not expressions:
        return []
    view = "raw" if connection.sql("SELECT count(*) FROM duckdb_views() WHERE view_name = 'raw'").fetchall()[0][0] else "rows"
    (row,) = connection.sql(f"SELECT {', '.join(expressions)} FROM {view}").fetchall()  # noqa: S608 - quoted
    return [int(value) for value in row]


def _declarable(names: Mapping[str, str] | Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the names that the YAML can have, and the others; SQL takes capital letters for small ones, so of two such names one."""
    found: list[str] = []
    left_out: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        if not re.fullmatch(COLUMN_RULE, name, re.ASCII):
            left_out[name] = "its name has other characters than letters, digits and '_', or begins with a digit: rename it in the file"
        elif name.lower() in taken:
            left_out[name] = "another column has this name but for capital letters: rename one"
        else:
            taken.add(name.lower())
            found.append(name)
    return found, left_out


def _check_width(names: Mapping[str, str] | Sequence[str], path: Path) -> None:
    if len(names) > MAX_COLUMNS:
        message = f"{path} has {len(names):,} columns, at most {MAX_COLUMNS:,} are possible"
        raise DataError("init.columns", message, hint="write a file with fewer columns")


def _listed(left_out: Mapping[str, str]) -> str:
    return "; ".join(f"{shown(name)}: {reason}" for name, reason in list(left_out.items())[:5])


def _first_line(err: Exception) -> str:
    return (str(err).splitlines() or [type(err).__name__])[0][:300]
