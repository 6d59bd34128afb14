"""The types and columns that the YAML names, in Arrow's words."""

from __future__ import annotations

import difflib
import json
import re
import unicodedata
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Final

import pyarrow as pa

from training.contracts import canonical_json, sha256_hex
from training.errors import DataError, shown
from training.sources.table_contract import TableContract
from training.spec.scalar_types import COLUMN_RULE
from training.sql.arrow_types import ARROW_TYPES

MAX_NAMES_SHOWN: Final = 10
MAX_WORD_CHARS: Final = 40
"""Of a text that is taken to stand for a missing value."""


def type_name(found: pa.DataType) -> str:
    """Return the YAML's name for an Arrow type, or Arrow's own where the YAML has none.

    What is the same in Parquet makes no difference: dictionaries, large texts, the zone in which an instant is shown.
    """
    if pa.types.is_dictionary(found):
        return type_name(found.value_type)
    if pa.types.is_large_string(found) or pa.types.is_string_view(found):
        return "string"
    if pa.types.is_timestamp(found) and found.unit == "us" and found.tz is not None:
        return "timestamp"
    for name, arrow_type in ARROW_TYPES.items():
        if found == arrow_type:
            return name
    return str(found)


def type_hint(text: str | None, kind: str) -> str:
    """Return what else may help for a text that is no value of a column of type `kind`, to add to a hint; None: it is not known."""
    hint = "; timestamps need an offset, 2026-01-31T06:00:00Z" if kind == "timestamp" else ""
    return hint if text is None else hint + missing_hint(text)


def missing_hint(text: str, known: Sequence[str] = ()) -> str:
    """Return how a text becomes a missing value, to add to a hint; empty for one that cannot be shown, or has a digit: a value in
    another form.

    Args:
        known: the texts that the column's `missing` has already.
    """
    if any(map(str.isdigit, text)) or len(text) > MAX_WORD_CHARS or not text.isprintable():
        return ""
    listed = ", ".join(json.dumps(each, ensure_ascii=False) for each in (*known, text))
    return f"; if {shown(text)} says that the value is missing, write missing: [{listed}] in the column, which needs nullable: true"


def types_in_file(contract: TableContract, names: Iterable[str]) -> dict[str, pa.DataType]:
    """Return the types in which a file of texts has columns of the contract."""
    columns = {name: contract.columns[name] for name in names}
    texts = {name for name, column in columns.items() if column.is_text_in_file or column.zone is not None}
    return {name: ARROW_TYPES["string" if name in texts else column.type] for name, column in columns.items()}


def schema_of(schema: pa.Schema, *, source: str) -> dict[str, str]:
    """Return column name to type name, in the file's order.

    Raises:
        DataError: `schema.names`, a name appears twice.
    """
    check_names(schema.names, source=source)
    return {name: type_name(schema.field(name).type) for name in schema.names}


def check_names(names: list[str], *, source: str) -> None:
    """Raise DataError `schema.names` for a repeated column name."""
    before: set[str] = set()
    for name in names:
        if name in before:
            what = f"column {shown(name)} appears twice" if name.strip() else "two columns have no name"
            raise DataError("schema.names", f"{source}: {what}", hint="give each column a different name")
        before.add(name)


def check_named(names: Iterable[str], known: Container[str], *, source: str) -> None:
    """Raise DataError `schema.names` for a column without a name, unless it is one of `known`."""
    for position, name in enumerate(names, start=1):
        if not name.strip() and name not in known:
            hint = f"name every column; or declare it with source_name: {json.dumps(name)}, or ignore it: ignore: [{json.dumps(name)}]"
            raise DataError("schema.names", f"{source}: column {position} has no name", hint=hint)


def declared_columns(contract: TableContract, names: list[str], *, source: str) -> list[str]:
    """Return the declared columns that are among `names`, in the contract's order.

    Args:
        contract: in the source's names.

    Raises:
        DataError: `schema.names`, a column has no name; `schema.unexpected`, one of `names` is neither declared nor ignored;
            `schema.missing`, a column with a `source_name` is not among them.
    """
    check_named(names, {*contract.columns, *contract.ignore}, source=source)
    unexpected = [name for name in names if name not in contract.columns and name not in contract.ignore]
    missing = [name for name in contract.columns if name not in names]
    if unexpected:
        listed = ", ".join(shown(name) for name in unexpected[:MAX_NAMES_SHOWN])
        raise DataError(
            "schema.unexpected",
            f"{source}: {len(unexpected)} column(s) that table {shown(contract.name)} does not declare: {listed}",
            hint=_hint(contract, names, unexpected, missing),
        )
    # Others are left for validation to report; a snapshot does not say what a source calls its columns.
    lacking = [name for name in missing if contract.columns[name].source_name is not None]
    if lacking:
        listed = ", ".join(shown(name) for name in lacking[:MAX_NAMES_SHOWN])
        hint = f"repair the file, or source_name in the YAML: {_nearest(lacking[0], names)}"
        raise DataError("schema.missing", f"{source}: {len(lacking)} declared column(s) are missing: {listed}", hint=hint)
    return [name for name in contract.columns if name in names]


def _hint(contract: TableContract, names: list[str], unexpected: list[str], missing: list[str]) -> str:
    if not contract.columns.keys() & set(names):
        return "it has none of the declared columns: correct them; a CSV file has a header line, and commas between columns"
    for name in missing:
        if close := difflib.get_close_matches(name, unexpected, n=1):
            remark = _same_letters(name, close[0])
            return f"the declared column {shown(name)} is missing: if {shown(close[0])} is meant, set it as its source_name{remark}"
    other = next((name for name in unexpected if not re.fullmatch(COLUMN_RULE, name, re.ASCII)), None)
    how = "" if other is None else f" (any_name: {{type: …, source_name: {json.dumps(other, ensure_ascii=False)}}})"
    return f"declare them under `columns`{how}, or name them under `ignore`"


def _nearest(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    if not close:
        return f"the file has {', '.join(shown(each) for each in names[:MAX_NAMES_SHOWN])}{', …' if len(names) > MAX_NAMES_SHOWN else ''}"
    return f"did you mean {shown(close[0])}{_same_letters(name, close[0])}?"


def _same_letters(name: str, other: str) -> str:
    """Return a remark where two names look alike: ü is one character, or u with a mark."""
    is_same = unicodedata.normalize("NFC", name) == unicodedata.normalize("NFC", other)
    return " (the same letters in another Unicode form: copy it from the file)" if is_same else ""


def require(names: set[str], table: pa.Table, reason: str, *, source: str) -> None:
    """Raise DataError `schema.missing` for columns that are not there."""
    missing = sorted(names - set(table.column_names))
    if missing:
        raise DataError(
            "schema.missing",
            f"{source}: column {', '.join(shown(name) for name in missing)} is missing, and {reason}",
            hint="repair the file, or the columns in the YAML",
        )


def schema_hash(schema: Mapping[str, str]) -> str:
    """Return the SHA-256 over the sorted (name, type) pairs: the order of columns makes no difference."""
    return sha256_hex(canonical_json(sorted([name, kind] for name, kind in schema.items())))
