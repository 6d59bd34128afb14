"""Numbers that a file has as texts: decimal commas, thousands, units, words for missing ones, and a stray text among them."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import duckdb

from training.errors import shown
from training.sql.expressions import literal
from training.sql.number_texts import NumberForm

MARKERS: Final = (
    *("NA", "N/A", "n/a", "n.a.", "#N/A", "<NA>", "NaN", "nan", "null", "NULL", "Null", "(null)", "None", "none", "nil", r"\N"),
    *("?", "-", "--", ".", "missing", "unknown"),
)
"""Texts that programs and people write for a missing value."""
SEPARATORS: Final = (("", "."), ("", ","), (",", "."), (".", ","), (" ", "."), (" ", ","), ("'", "."))
"""Between thousands, and before the fraction; the simplest ones first."""
CURRENCIES: Final = frozenset({"EUR", "USD", "GBP", "CHF", "JPY", "CNY", "INR", "SEK", "NOK", "DKK", "PLN", "CZK", "kr", "zł", "%", "‰"})
NO_UNIT: Final = re.compile(r"[\d\s.,'+\-\N{MINUS SIGN}]+")
MAX_STRAYS: Final = 3
"""Different texts among numbers that may be slips; more are values."""
STRAY_SHARE: Final = 0.05
SAMPLE_ROWS: Final = 200


@dataclass(frozen=True, slots=True)
class Texts:
    """The cells of a column that are no numbers as a computer writes them."""

    connection: duckdb.DuckDBPyConnection
    name: str
    sql: str
    """Of a text in the view `raw`."""
    known: int
    marked: int
    """Of the known ones those that are MARKERS."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundNumbers:
    """How the texts are read; `form` is None where they are no numbers."""

    form: NumberForm | None = None
    is_integer: bool = False
    missing: Sequence[str] = ()
    num_missing: int = 0
    note: str = ""


def markers_of(texts: Texts) -> Sequence[str]:
    """Return those of MARKERS that the column has."""
    marked = f"{texts.sql} IN ({', '.join(map(literal, MARKERS))})"
    query = f"SELECT DISTINCT {texts.sql} AS text FROM raw WHERE {marked} ORDER BY 1"  # noqa: S608 - quoted
    return [str(text) for (text,) in texts.connection.execute(query).fetchall()]


def numbers_of(texts: Texts) -> FoundNumbers:
    """Return the form in which all texts but missing ones are numbers, or all but a few strays, which are named and count as missing."""
    unit = _unit(texts)
    forms = [NumberForm(decimal, thousands, unit) for thousands, decimal in SEPARATORS]
    patterns = [form.pattern(is_integer=is_integer) for form in forms for is_integer in (False, True)]
    found = [f"count(*) FILTER (regexp_full_match({texts.sql}, {literal(pattern)}))" for pattern in patterns]
    found.append(f"count(*) FILTER (contains({texts.sql}, ','))")
    *counts, commas = texts.connection.execute(f"SELECT {', '.join(found)} FROM raw").fetchall()[0]  # noqa: S608 - quoted
    numbers = dict(zip(forms, zip(counts[::2], counts[1::2], strict=True), strict=True))
    form = max(forms, key=lambda each: numbers[each][0])
    count, integers = numbers[form]
    if form.decimal == "," and numbers[grouped := NumberForm(".", ",", unit)][0] == count:
        if commas == count:
            either = 'number_format: {decimal: ","}, or number_format: {thousands: ","}'
            return FoundNumbers(note=f"{texts.name} is text: its commas are before a fraction or between thousands; say which: {either}")
        form, integers = grouped, numbers[grouped][1]
    strays = texts.known - texts.marked - count
    if strays > STRAY_SHARE * texts.known or not count:
        return FoundNumbers()
    missing, note = markers_of(texts) if texts.marked else (), ""
    if strays:
        named, note = _strays(texts, form)
        if len(named) > MAX_STRAYS:
            return FoundNumbers(note=f"{texts.name} is text: {strays:,} of {texts.known:,} cells are no numbers, such as {note}")
        missing = [*missing, *named]
        note = f"in {texts.name} {note} is no number, and counts as missing: {strays:,} of {texts.known:,} cells"
    is_integer = integers == count and _fits(texts, form)
    return FoundNumbers(form=form, is_integer=is_integer, missing=missing, num_missing=texts.marked + strays, note=note)


def _unit(texts: Texts) -> str:
    query = f"SELECT {texts.sql} AS text FROM raw WHERE regexp_matches({texts.sql}, '[0-9]') LIMIT {SAMPLE_ROWS}"  # noqa: S608 - quoted
    units = Counter(NO_UNIT.sub("", str(text)) for (text,) in texts.connection.execute(query).fetchall())
    unit = max(units, key=units.__getitem__, default="")
    return unit if unit in CURRENCIES or (len(unit) == 1 and unicodedata.category(unit) == "Sc") else ""


def _strays(texts: Texts, form: NumberForm) -> tuple[list[str], str]:
    """Return the first texts that are neither numbers nor markers, and the words for them, with their rows."""
    known = f"{texts.sql} IN ({', '.join(map(literal, MARKERS))}) OR regexp_full_match({texts.sql}, {literal(form.pattern())})"
    query = f"""
        SELECT text, min(n) FROM (SELECT {texts.sql} AS text, row_number() OVER () AS n, {known} AS is_known FROM raw)
        WHERE NOT is_known GROUP BY text ORDER BY 2 LIMIT {MAX_STRAYS + 1}
    """  # noqa: S608 - quoted
    rows = texts.connection.execute(query).fetchall()
    return [str(text) for text, _row in rows], ", ".join(f"{shown(text)} (row {row:,})" for text, row in rows[:MAX_STRAYS])


def _fits(texts: Texts, form: NumberForm) -> bool:
    pattern = literal(form.pattern(is_integer=True))
    large = f"regexp_full_match({texts.sql}, {pattern}) AND TRY_CAST({form.plain(texts.sql)} AS BIGINT) IS NULL"
    return not texts.connection.execute(f"SELECT 1 FROM raw WHERE {large} LIMIT 1").fetchall()  # noqa: S608 - quoted
