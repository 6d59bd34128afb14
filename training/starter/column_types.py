"""Types of columns of texts and of JSON values, found by all cells: those that the sources accept."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import duckdb

from training.spec.rules.weights import NUMBERS
from training.sql.expressions import SQL_TYPES, literal, quoted
from training.sql.number_texts import NumberForm
from training.starter.number_forms import MARKERS, STRAY_SHARE, Texts, markers_of, numbers_of

BOOLEANS: Final = ("true", "True", "TRUE", "false", "False", "FALSE")
"""Those that the reader of CSV files takes."""
DAY: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
SECONDS: Final = "[0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,%d})?)?"
CLOCK: Final = SECONDS % 6
FINE_CLOCK: Final = SECONDS % 9
"""To the nanosecond, as .NET, Java and Go write times; a source reads microseconds."""
OFFSET: Final = "(Z|[+-][0-9]{2}(:?[0-9]{2})?)"
INTEGER: Final = r"\s*-?(0|[1-9][0-9]*)\s*"
NUMBER: Final = r"\s*-?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][-+]?[0-9]+)?\s*"
INSTANT: Final = rf"{DAY}[T ]{CLOCK}{OFFSET}"
FINE_INSTANT: Final = rf"{DAY}[T ]{FINE_CLOCK}{OFFSET}"
LOCAL: Final = rf"{DAY}[T ]{FINE_CLOCK}"
THOUSANDS: Final = r"-?[1-9][0-9]{0,2}([.][0-9]{3})+"
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
    num_values: int = 0
    """How many different ones there are, as an estimate."""
    missing: Sequence[str] = ()
    """Texts that stand for a missing value."""
    form: NumberForm | None = None
    """Of numbers that the file has as texts."""
    is_of_path: bool = False
    """Whether the folders of the files say it, and the files lack it."""
    is_local_time: bool = False
    """A text: a day and a time of day without an offset."""
    keys: Mapping[str, str | int] = field(default_factory=dict)
    """Of Parquet: what its values mean, as the YAML has it."""
    note: str = ""
    """What the reader should look at."""

    @property
    def is_number(self) -> bool:
        return self.type in NUMBERS


def text_column(connection: duckdb.DuckDBPyConnection, name: str, text: str | None = None, *, is_typed: bool = False) -> FoundColumn | str:
    """Return a column of texts in the narrowest type that all of its cells have; a reason where it has no cells.

    Args:
        text: SQL of the texts; None: the column.
        is_typed: the file could have had numbers: a text of digits alone is a name.
    """
    text = text or quoted(name)
    known, integers, numbers, booleans, days, instants, locals_, marked, thousands, zeros, digits, num_rows = counts_of(
        connection,
        [
            f"count({text})",
            f"count(*) FILTER (regexp_full_match({text}, {literal(INTEGER)}) AND TRY_CAST({text} AS BIGINT) IS NOT NULL)",
            f"count(*) FILTER (regexp_full_match({text}, {literal(NUMBER)}))",
            f"count(*) FILTER ({text} IN ({', '.join(map(literal, BOOLEANS))}))",
            f"count(*) FILTER (regexp_full_match({text}, {literal(DAY)}) AND TRY_CAST({text} AS DATE) IS NOT NULL)",
            f"count(*) FILTER (regexp_full_match({text}, {literal(INSTANT)}) AND TRY_CAST({text} AS TIMESTAMPTZ) IS NOT NULL)",
            f"count(*) FILTER (regexp_full_match({text}, {literal(LOCAL)}) AND TRY_CAST({text} AS TIMESTAMP) IS NOT NULL)",
            f"count(*) FILTER ({text} IN ({', '.join(map(literal, MARKERS))}))",
            f"count(*) FILTER (regexp_full_match({text}, {literal(THOUSANDS)}))",
            f"count(*) FILTER (regexp_full_match({text}, '-?0[0-9]+'))",
            f"count(*) FILTER (regexp_matches({text}, '[0-9]'))",
            "count(*)",
        ],
    )
    if not known:
        return "no cell has a value"
    plain = FoundColumn(name=name, type="string", num_missing=num_rows - known, is_local_time=locals_ == known)
    texts = Texts(connection, name, text, known, marked)
    # 007 is an id, not a number.
    kinds = {"int64": integers, "boolean": booleans, "date": days, "timestamp": instants, "double": 0 if zeros else numbers}
    kind = next((kind for kind, count in kinds.items() if count and count + marked == known), "")
    if is_typed and kind in ("int64", "boolean"):
        return plain
    if kind:
        other = 'number_format: {decimal: ",", thousands: "."}'
        note = f"the points in {name} are taken to be before a fraction; if they are between thousands: {other}"
        return replace(
            plain,
            type=kind,
            num_missing=plain.num_missing + marked,
            missing=markers_of(texts) if marked else (),
            form=NumberForm() if is_typed and kind == "double" else None,
            note=note if kind == "double" and thousands and thousands + integers + marked == known else "",
        )
    if zeros or digits + marked < (1 - STRAY_SHARE) * known:
        return plain
    found = numbers_of(texts)
    if found.form is None or (is_typed and found.is_integer and found.form == NumberForm()):
        return replace(plain, note=found.note)
    is_plain = found.form == NumberForm() and not is_typed and numbers + found.num_missing == known
    return replace(
        plain,
        type="int64" if found.is_integer else "double",
        num_missing=plain.num_missing + found.num_missing,
        missing=found.missing,
        form=None if is_plain else found.form,
        note=found.note,
    )


def json_column(connection: duckdb.DuckDBPyConnection, name: str) -> FoundColumn | str:
    cell = quoted(name)
    rows = connection.execute(f"SELECT json_type({cell}) AS kind, count(*) FROM raw GROUP BY 1 ORDER BY 1").fetchall()  # noqa: S608 - quoted
    kinds = {kind for kind, _ in rows if kind not in (None, "NULL")}
    missing = sum(count for kind, count in rows if kind in (None, "NULL"))
    if not kinds:
        return "no line has a value"
    if kinds - _OF_JSON.keys():
        ((fields,),) = connection.execute(f"SELECT json_group_structure({cell}) FROM raw").fetchall()  # noqa: S608 - quoted
        return f"its values are nested: {fields}"
    types = {_OF_JSON[kind] for kind in kinds}
    if types == {"string"}:
        return text_column(connection, name, _text(name, is_json=True), is_typed=True)
    if types <= {"int64", "double"}:
        return FoundColumn(
            name=name,
            type="double" if "double" in types or ("UBIGINT" in kinds and _is_large(connection, cell)) else "int64",
            num_missing=missing,
        )
    if len(types) == 1:
        return FoundColumn(name=name, type=types.pop(), num_missing=missing)
    if "string" in types:
        mixed = text_column(connection, name, _text(name, is_json=True))
        if isinstance(mixed, FoundColumn) and mixed.missing and mixed.form is None and mixed.type in (*NUMBERS, "boolean"):
            return mixed
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


def _text(name: str, *, is_json: bool) -> str:
    return f"({quoted(name)}->>'$')" if is_json else quoted(name)


def typed(column: FoundColumn, *, is_json: bool) -> str:
    """Return SQL of a column of texts in its type, with its name."""
    text = _text(column.name, is_json=is_json)
    if column.missing:
        text = f"CASE WHEN {text} NOT IN ({', '.join(map(literal, column.missing))}) THEN {text} END"
    if column.form is not None:
        text = column.form.plain(text)
    return f"CAST({text} AS {SQL_TYPES[column.type]}) AS {quoted(column.name)}"


def counts_of(connection: duckdb.DuckDBPyConnection, expressions: Sequence[str], view: str = "raw") -> list[int]:
    """Return the values of counts over a view."""
    if not expressions:
        return []
    (row,) = connection.execute(f"SELECT {', '.join(expressions)} FROM {view}").fetchall()  # noqa: S608 - quoted
    return [int(value) for value in row]
