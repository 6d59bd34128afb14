"""The types and columns that the YAML names, in Arrow's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from training.contracts import canonical_json, sha256_hex
from training.errors import DataError, shown
from training.sources.table_contract import TableContract

ARROW_TYPES: Final[Mapping[str, pa.DataType]] = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
"""The YAML's type names. A timestamp is an instant: microseconds, in UTC."""

MAX_NAMES_SHOWN: Final = 10
UTC_NAMES: Final = frozenset({"UTC", "Etc/UTC", "Z", "+00:00"})


def type_name(found: pa.DataType) -> str:
    """Return the YAML's name for an Arrow type, or Arrow's own where the YAML has none; encodings make no difference."""
    if pa.types.is_dictionary(found):
        return type_name(found.value_type)
    if pa.types.is_large_string(found) or pa.types.is_string_view(found):
        return "string"
    if pa.types.is_timestamp(found) and found.unit == "us" and found.tz in UTC_NAMES:
        return "timestamp"
    for name, arrow_type in ARROW_TYPES.items():
        if found == arrow_type:
            return name
    return str(found)


def schema_of(schema: pa.Schema, *, source: str) -> dict[str, str]:
    """Return column name to type name, in the file's order.

    Raises:
        DataError: `schema.names`, a name is empty or stands twice.
    """
    check_names(schema.names, source=source)
    return {name: type_name(schema.field(name).type) for name in schema.names}


def check_names(names: list[str], *, source: str) -> None:
    """Raise DataError `schema.names` for an empty or repeated column name."""
    before: set[str] = set()
    for position, name in enumerate(names, start=1):
        if not name.strip():
            raise DataError("schema.names", f"{source}: column {position} has no name", hint="name every column")
        if name in before:
            raise DataError("schema.names", f"{source}: column {shown(name)} appears twice", hint="give each column a different name")
        before.add(name)


def declared_columns(contract: TableContract, names: list[str], *, source: str) -> list[str]:
    """Return the declared columns that are among `names`, in the contract's order.

    Raises:
        DataError: `schema.unexpected`, one of `names` is neither declared nor ignored.
    """
    unexpected = [name for name in names if name not in contract.columns and name not in contract.ignore]
    if unexpected:
        listed = ", ".join(shown(name) for name in unexpected[:MAX_NAMES_SHOWN])
        raise DataError(
            "schema.unexpected",
            f"{source}: {len(unexpected)} column(s) that table {shown(contract.name)} does not declare: {listed}",
            hint=(
                "declare them under `columns`, or name them under `ignore`"
                if contract.columns.keys() & set(names)
                else "it has none of the declared columns: correct them; a CSV file has a header line, and commas between columns"
            ),
        )
    return [name for name in contract.columns if name in names]


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
