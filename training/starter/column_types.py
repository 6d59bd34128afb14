"""Types of columns of texts and of JSON values, found by all cells: those that the sources accept."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import duckdb

from training.sql.expressions import literal, quoted

MARKERS: Final = ("NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "?", "-", ".")
"""Texts that other programs write for a missing number."""
DAY: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
CLOCK: Final = r"[0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,6})?)?"
INTEGER: Final = r"-?(0|[1-9][0-9]*)"
NUMBER: Final = r"-?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][-+]?[0-9]+)?"
INSTANT: Final = rf"{DAY}[T ]{CLOCK}(Z|[+-][0-9]{{2}}(:?[0-9]{{2}})?)"
LOCAL: Final = rf"{DAY}[T ]{CLOCK}"
SQL_TYPES: Final = {
    "int64": "BIGINT",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "date": "DATE",
    "timestamp": "TIMESTAMPTZ",
    "string": "VARCHAR",
}
_OF_JSON: Final = {"BIGINT": "int64", "UBIGINT": "int64", "DOUBLE": "double", "BOOLEAN": "boolean", "VARCHAR": "string"}


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundColumn:
    """A column that the YAML can declare."""

    name: str
    """Its identifier."""
    source_name: str = ""
    """In the file."""
    type: str
    """As the YAML names it."""
    num_missing: int
    marker: str = ""
    """The text that stands for a missing number in a column of numbers, which is then declared as text."""
    is_of_path: bool = False
    """Whether the folders of the files say it, and the files lack it."""
    is_local_time: bool = False
    """A text: a day and a time of day without an offset."""
    keys: Mapping[str, str | int] = field(default_factory=dict)
    """Of Parquet: what its values mean, as the YAML has it."""

    @property
    def is_number(self) -> bool:
        return bool(self.marker) or self.type in ("int8", "int16", "int32", "int64", "float", "double")

    @property
    def sql(self) -> str:
        """The column's value in the view of the rows."""
        if self.marker:
            return f"TRY_CAST(nullif({quoted(self.name)}, {literal(self.marker)}) AS DOUBLE)"
        return quoted(self.name)


def text_column(connection: duckdb.DuckDBPyConnection, name: str, text: str | None = None) -> FoundColumn | str:
    """Return a column of texts in the narrowest type that all of its cells have; a reason where it has no cells."""
    text = quoted(name) if text is None else text
    markers = ", ".join(literal(marker) for marker in MARKERS)
    counts = counts_of(
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


def json_column(connection: duckdb.DuckDBPyConnection, name: str) -> FoundColumn | str:
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
        found = text_column(connection, name, f"{cell}->>'$'")
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
    (count,) = counts_of(connection, [f"count(*) FILTER (({cell}->>'$') IS NOT NULL AND TRY_CAST({cell}->>'$' AS BIGINT) IS NULL)"])
    return count > 0


def path_type(values: Sequence[str | None]) -> str:
    """Return the type of values that folders name."""
    known = [value for value in values if value is not None]
    for kind, form in (("int64", INTEGER), ("date", DAY)):
        if known and all(re.fullmatch(form, value) for value in known):
            return kind
    return "string"


def typed(column: FoundColumn, *, is_json: bool) -> str:
    text = f"({quoted(column.name)}->>'$')" if is_json else quoted(column.name)
    return f"CAST({text} AS {SQL_TYPES[column.type]}) AS {quoted(column.name)}"


def counts_of(connection: duckdb.DuckDBPyConnection, expressions: Sequence[str], view: str = "raw") -> list[int]:
    """Return the values of counts over a view."""
    if not expressions:
        return []
    (row,) = connection.sql(f"SELECT {', '.join(expressions)} FROM {view}").fetchall()  # noqa: S608 - quoted
    return [int(value) for value in row]
