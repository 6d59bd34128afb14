"""The columns and types of a table's files, found by all of their rows, and the rows as a DuckDB view.

Types are those that the sources accept: a column is `int64` if each of its cells is one for them. DuckDB reads in streams, so files
larger than the memory take time and no memory.
"""

from __future__ import annotations

import difflib
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import duckdb
from pydantic import TypeAdapter, ValidationError

from training.errors import DataError, first_line, shown
from training.runtime.stage_memory import engine_memory_bytes
from training.sources.compression import plain_file
from training.sources.csv_reader import read_header, scan, unequal_row
from training.sources.jsonl_reader import BYTE_ORDER_MARK, first_keys, read_jsonl
from training.sources.size_limits import table_limit_bytes
from training.spec.reader.yaml import CONTROL
from training.spec.scalar_types import SourceName
from training.spec.sections.data import Column
from training.sql.expressions import SQL_TYPES, hardened, literal, quoted
from training.starter.column_names import free, identifiers
from training.starter.column_types import FoundColumn, counts_of, json_column, path_type, text_column, typed
from training.starter.parquet_files import PlainParquet, plain_parquet
from training.starter.table_files import TableFiles, kind_of

MAX_COLUMNS: Final = 2_000
MAX_NAME: Final = 500
NAME: Final[TypeAdapter[str]] = TypeAdapter(SourceName)
UNEQUAL_ROW: Final = re.compile(
    r"CSV Error on Line: (?P<line>\d+)\n"
    r".*^Expected Number of Columns: (?P<expected>\d+) Found: (?P<cells>\d+)$.*^ +file = (?P<file>[^\n]+)$",
    re.DOTALL | re.MULTILINE,
)
FILE: Final = "nightshift_file"
"""Column with the file of a row, while it is read."""

Report = Callable[[str, int, int], None]
"""What is looked for, the number of the column, and of how many."""
Header = tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundTable:
    """Files with rows; `rows` is a view of the connection, with the columns in their types and by their identifiers."""

    files: TableFiles
    columns: Mapping[str, FoundColumn]
    left_out: Mapping[str, str]
    """Name in the file to the reason."""
    partition_start: str
    """Column of the view with the begin of a row's partition; empty: there are no partitions."""
    num_rows: int
    connection: duckdb.DuckDBPyConnection

    @property
    def path(self) -> Path:
        return self.files.root

    @property
    def taken(self) -> set[str]:
        """Names that no further column can have, in small letters."""
        return {name.lower() for name in (*self.columns, *self.left_out, self.partition_start, "label")}

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return self.connection.execute(sql).fetchall()

    def value(self, sql: str) -> Any:
        """Return the value of a query's one row, None where it has none."""
        rows = self.rows(sql)
        return rows[0][0] if rows else None

    def find(self, name: str) -> FoundColumn | None:
        """Return the column that the file calls so, else the one with this identifier."""
        by_file = {column.source_name: column for column in self.columns.values()}
        return by_file.get(name) or self.columns.get(name)

    def listed(self, name: str = "") -> str:
        """Return the column that was probably meant by `name`, else the first ones, as the file has them."""
        names = [column.source_name or "''" for column in self.columns.values()]
        close = difflib.get_close_matches(name.casefold(), [each.casefold() for each in names], n=1)
        meant = next((each for each in names if [each.casefold()] == close), None)
        return f"columns: {', '.join(names[:20])}" if meant is None else f"did you mean {meant}?"


@contextmanager
def opened(files: TableFiles, folder: Path, report: Report, *, label: str, zone: str) -> Iterator[FoundTable]:
    """Open a table's files.

    Args:
        folder: for scratch files.
        report: called with the number of the column at hand, and of all.
        label: the column's name in the file.
        zone: time zone by whose clock partitions are named.

    Raises:
        DataError: `init.columns`, there are too many columns, none that can be declared, or files with different ones; `data.empty`,
            `format.csv`, `format.jsonl`, `format.compression`, `data.format`, `schema.names`.
    """
    parquet = plain_parquet(files.paths, folder, zone=zone) if files.kind == "parquet" else None
    plain = dict(parquet.originals) if parquet is not None else {}
    if parquet is None:
        plain = {_plain(path, folder / str(number)).resolve(): path for number, path in enumerate(files.paths)}
    folders = sorted({path.parent for path in plain})
    with hardened([folder, *folders], memory_limit=f"{engine_memory_bytes()}B") as connection:
        try:
            yield _Opening(files, plain, parquet, connection, folder, report, label).found(zone)
        except (DataError, duckdb.InvalidInputException, duckdb.ConversionException, duckdb.IOException) as err:
            if files.kind == "jsonl":
                _check_lines(plain)
            if isinstance(err, DataError):
                raise
            if (row := UNEQUAL_ROW.search(str(err))) is not None:
                line, cells, expected = (int(row[key]) for key in ("line", "cells", "expected"))
                raise unequal_row(str(plain.get(Path(row["file"]), files.root)), line, cells, expected) from err
            message = f"{files.root} cannot be read: {first_line(err)}"
            raise DataError("data.format", message, hint="repair the file, or write it again") from err


def _check_lines(plain: Mapping[Path, Path]) -> None:
    """Raise what ingest would: DuckDB's error names no line, and a line without an object is a row without values for it."""
    for path, named in plain.items():
        keys = first_keys(path, source=str(named)) or []
        for _ in read_jsonl(path, keys, {}, source=str(named)):
            pass


def _plain(path: Path, folder: Path) -> Path:
    folder.mkdir()
    plain = plain_file(path, folder, source=str(path), limit_bytes=table_limit_bytes())
    with plain.open("rb") as stream:
        if kind_of(path) != "jsonl" or stream.read(len(BYTE_ORDER_MARK)) != BYTE_ORDER_MARK:
            return plain
        # DuckDB takes the mark for JSON.
        with (folder / "unmarked").open("wb") as copy:
            shutil.copyfileobj(stream, copy)
        return folder / "unmarked"


@dataclass(frozen=True, slots=True)
class _Opening:
    """Reads the columns of files."""

    files: TableFiles
    plain: Mapping[Path, Path]
    """Path of a file that is not compressed to that of the table's file."""
    parquet: PlainParquet | None
    connection: duckdb.DuckDBPyConnection
    folder: Path
    report: Report
    label: str

    def found(self, zone: str) -> FoundTable:
        groups = self._groups(self._headers() if self.parquet is None else self.parquet.headers)
        every = next(iter(groups))
        if len(every) > MAX_COLUMNS:
            message = f"{self.files.root} has {len(every):,} columns, at most {MAX_COLUMNS:,} are possible"
            raise DataError("init.columns", message, hint="write a file with fewer columns")
        _check_characters(every, self.files.root)
        left_out = {name: reason for name in every if (reason := _undeclarable(name))}
        left_out |= {} if self.parquet is None else self.parquet.left_out
        kept = [name for name in every if name not in left_out]
        values = self.files.values()
        said = [name for name in values[self.files.paths[0]] if name not in every]
        found = identifiers([*kept, *said], label=self.label)
        names = dict(zip(kept, found, strict=False))
        of_path = {
            name: FoundColumn(
                name=name, source_name=folder, type=path_type([each[folder] for each in values.values()]), num_missing=0, is_of_path=True
            )
            for folder, name in zip(said, found[len(kept) :], strict=True)
        }
        start = free("partition_start", {name.lower() for name in found}) if self.files.partition else ""
        by_file = {start: {path: f"TIMESTAMPTZ {literal(str(at))}" for path, at in self.files.starts(zone).items()}} if start else {}
        by_file |= {name: {path: _cast(each[c.source_name], c.type) for path, each in values.items()} for name, c in of_path.items()}
        query = self._query(groups, names, by_file)
        if self.parquet is not None:
            columns = self._of_parquet(query, names, list(by_file), self.parquet.columns)
        else:
            columns = self._of_texts(query, names, list(by_file), left_out)
        if not columns:
            message = f"{self.files.root}: no column can be declared: {_listed(left_out)}"
            raise DataError("init.columns", message, hint="change the columns' types or names")
        columns |= of_path
        counted = [f"count(*) FILTER ({quoted(name)} IS NULL)" for name in of_path]
        counted += [f"approx_count_distinct({quoted(name)})" for name in columns]
        num_rows, *counts = counts_of(self.connection, ["count(*)", *counted], "rows")
        columns |= {name: replace(of_path[name], num_missing=count) for name, count in zip(of_path, counts, strict=False)}
        columns = {name: replace(columns[name], num_values=n) for name, n in zip(columns, counts[len(of_path) :], strict=True)}
        return FoundTable(
            files=self.files,
            columns=columns,
            left_out=left_out,
            partition_start=start,
            num_rows=num_rows,
            connection=self.connection,
        )

    def _headers(self) -> dict[Path, Header]:
        """Return the columns of text files; a file of JSON lines without rows has none."""
        if self.files.kind == "csv":
            for plain, path in self.plain.items():
                scan(plain, source=str(path))
            return {plain: tuple(read_header(plain, source=str(path))) for plain, path in self.plain.items()}
        keys = {plain: first_keys(plain, source=str(path)) for plain, path in self.plain.items()}
        return {plain: tuple(found) for plain, found in keys.items() if found}

    def _groups(self, headers: Mapping[Path, Header]) -> dict[Header, list[Path]]:
        """Return the files by their columns' order."""
        if not headers:
            raise _empty(self.files.root)
        found: dict[Header, list[Path]] = {}
        first, expected = next(iter(headers.items()))
        for plain, header in headers.items():
            if set(header) != set(expected):
                name = sorted(set(header) ^ set(expected))[0]
                has, lacks = (plain, first) if name in header else (first, plain)
                message = f"{self.plain[has]} has the column {shown(name)}, and {self.plain[lacks]} has not"
                raise DataError("init.columns", message, hint="files of one table have the same columns")
            found.setdefault(header, []).append(plain)
        return found

    def _query(self, groups: Mapping[Header, Sequence[Path]], names: Mapping[str, str], by_file: Mapping[str, Mapping[Path, str]]) -> str:
        """Return the query of the columns, by their identifiers, and of those that have one value in each file, in SQL."""
        if by_file:
            rows = [", ".join([literal(str(plain)), *(each[path] for each in by_file.values())]) for plain, path in self.plain.items()]
            listed = ", ".join(map(quoted, (FILE, *by_file)))
            self.connection.execute(f"CREATE TABLE by_file AS SELECT * FROM (VALUES ({'), ('.join(rows)})) AS s({listed})")  # noqa: S608
        queries = []
        for header, paths in groups.items():
            selected = [f"{self._cell(name, header)} AS {quoted(found)}" for name, found in names.items()]
            selected += [f"s.{quoted(name)}" for name in by_file]
            join = f" JOIN by_file s ON s.{FILE} = t.{FILE}" if by_file else ""
            # Without any column that can be declared, the rows are counted all the same.
            queries.append(f"SELECT {', '.join(selected) or '1'} FROM {self._read(header, paths, bool(by_file))}{join}")  # noqa: S608 - quoted
        return " UNION ALL ".join(queries)

    def _cell(self, name: str, header: Header) -> str:
        if self.files.kind == "jsonl":
            pointer = "/" + name.replace("~", "~0").replace("/", "~1")
            return f"json_extract(t.c0, {literal(pointer)})"
        # By number: names that differ in capital letters alone are one for DuckDB.
        return f"t.c{header.index(name)}"

    def _read(self, header: Header, paths: Sequence[Path], has_file: bool) -> str:
        listed = f"[{', '.join(literal(str(path)) for path in paths)}]"
        more = ", hive_partitioning = false" + (f", filename = {literal(FILE)}" if has_file else "")
        if self.files.kind == "csv":
            cells = ", ".join(f"c{number}: 'VARCHAR'" for number in range(len(header)))
            options = (
                """header = false, skip = 1, auto_detect = false, delim = ',', quote = '"', escape = '"', allow_quoted_nulls = false"""
            )
            return f"read_csv({listed}, {options}, nullstr = '', columns = {{{cells}}}{more}) AS t"
        if self.files.kind == "jsonl":
            return f"read_ndjson_objects({listed}{more}) AS t(c0)"
        return f"read_parquet({listed}{more}) AS t({', '.join(f'c{number}' for number in range(len(header)))})"

    def _of_parquet(
        self, query: str, names: Mapping[str, str], more: Sequence[str], declared: Mapping[str, Column]
    ) -> dict[str, FoundColumn]:
        """Find which texts are numbers; all other columns have their types."""
        self.connection.execute(f"CREATE VIEW raw AS {query}")
        counted = [f"count(*) FILTER ({quoted(name)} IS NULL)" for name in names.values()]
        num_rows, *missing = counts_of(self.connection, ["count(*)", *counted])
        if not num_rows:
            raise _empty(self.files.root)
        found = {}
        for (source, name), count in zip(names.items(), missing, strict=True):
            column = FoundColumn(name=name, type=declared[source].type, num_missing=count, keys=declared[source].stored_keys)
            text = text_column(self.connection, name, is_typed=True) if column.type == "string" else ""
            if isinstance(text, FoundColumn):
                column = text if text.form is not None else replace(column, note=text.note)
            found[name] = replace(column, source_name=source)
        selected = [quoted(name) if column.form is None else typed(column, is_json=False) for name, column in found.items()]
        selected += map(quoted, more)
        if found:
            self.connection.execute(f"CREATE VIEW rows AS SELECT {', '.join(selected)} FROM raw")  # noqa: S608 - quoted
        return found

    def _of_texts(self, query: str, names: Mapping[str, str], more: Sequence[str], left_out: dict[str, str]) -> dict[str, FoundColumn]:
        """Find the types of texts, each by all rows."""
        copy, is_json = self.folder / "cells.parquet", self.files.kind == "jsonl"
        # Once: the columns are then read one by one, and not the whole files for each.
        self.connection.execute(f"COPY ({query}) TO {literal(str(copy))} (FORMAT parquet)")
        cells = [f"CAST({quoted(name)} AS JSON) AS {quoted(name)}" if is_json else quoted(name) for name in names.values()]
        cells += map(quoted, more)
        self.connection.execute(f"CREATE VIEW raw AS SELECT {', '.join(cells) or '*'} FROM read_parquet({literal(str(copy))})")  # noqa: S608
        if not counts_of(self.connection, ["count(*)"])[0]:
            raise _empty(self.files.root)
        found: dict[str, FoundColumn] = {}
        for number, (source, name) in enumerate(names.items(), start=1):
            self.report("types", number, len(names))
            column = json_column(self.connection, name) if is_json else text_column(self.connection, name)
            if isinstance(column, str):
                left_out[source] = column
            else:
                found[name] = replace(column, source_name=source)
        selected = [typed(column, is_json=is_json) for column in found.values()] + [quoted(name) for name in more]
        if found:
            self.connection.execute(f"CREATE VIEW rows AS SELECT {', '.join(selected)} FROM raw")  # noqa: S608 - quoted
        return found


def _check_characters(names: Sequence[str], place: Path) -> None:
    """Refuse names that a YAML can neither declare nor ignore."""
    for position, name in enumerate(names, start=1):
        if CONTROL.search(name):
            message = f"{place}: the name of column {position}, {shown(name)}, has a control character, which no YAML can have"
            raise DataError("schema.names", message, hint="rename the column in the file")


def _undeclarable(name: str) -> str:
    """Return why the YAML cannot have a name, or nothing."""
    try:
        NAME.validate_python(name)
    except ValidationError as err:
        return "its name is too long" if len(name) > MAX_NAME else f"its name {err.errors()[0]['msg']}"
    return ""


def _cast(text: str | None, kind: str) -> str:
    return f"CAST({'NULL' if text is None else literal(text)} AS {SQL_TYPES[kind]})"


def _empty(path: Path) -> DataError:
    return DataError("data.empty", f"{path} has no rows", hint="name a file with rows")


def _listed(left_out: Mapping[str, str]) -> str:
    return "; ".join(f"{shown(name)}: {reason}" for name, reason in list(left_out.items())[:5])
