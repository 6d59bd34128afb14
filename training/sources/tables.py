"""What the YAML promises of each table, and the types that it names, in Arrow's words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import pyarrow as pa

from training.contracts import canonical_json, sha256_hex
from training.errors import DataError, shown
from training.spec import PipelineSpec

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

UTC_NAMES: Final = frozenset({"UTC", "Etc/UTC", "Z", "+00:00"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One declared column of a source."""

    type: str
    nullable: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Derived:
    """One column that ingest computes: an SQL expression over the columns declared before it."""

    type: str
    sql: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TableContract:
    """One table as the YAML declares it."""

    name: str
    kind: str
    """`csv` or `parquet`."""
    uri: str
    columns: Mapping[str, Column]
    derived: Mapping[str, Derived] = field(default_factory=dict)
    ignore: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    """Columns that name a row; a feature table's begin with those that it is joined on."""
    event_time: str | None = None
    known_at: str | None = None
    """The column that says when a row's label is known."""
    partitioned: bool = False
    available_after: timedelta = timedelta()
    max_age: timedelta | None = None
    suite: str | None = None

    @property
    def types(self) -> dict[str, str]:
        """Type name of each declared and derived column."""
        return {name: column.type for name, column in self.columns.items()} | {name: d.type for name, d in self.derived.items()}

    @property
    def is_kept_as_is(self) -> bool:
        """Whether snapshots hold the source's files byte for byte: whole partitions, nothing to compute or leave out by row."""
        return self.kind == "parquet" and self.partitioned and not self.derived and self.known_at is None


def contracts_of(spec: PipelineSpec) -> list[TableContract]:
    """Return the contract of the main table, then those of the feature tables in the YAML's order."""
    source, label = spec.data.source, spec.data.label
    main = TableContract(
        name=source.table,
        kind=source.kind,
        uri=source.uri,
        columns={name: Column(type=c.type, nullable=c.nullable) for name, c in source.columns.items()},
        derived={name: Derived(type=d.type, sql=d.sql) for name, d in source.derive_in_order()},
        ignore=tuple(source.ignore),
        key=tuple(source.key),
        event_time=source.event_time,
        known_at=label.known_at,
        partitioned=source.partition is not None,
        suite=spec.validate_.suite,
    )
    features = [
        TableContract(
            name=feature.table,
            kind=feature.kind,
            uri=feature.uri,
            columns={name: Column(type=c.type, nullable=c.nullable) for name, c in feature.columns.items()},
            ignore=tuple(feature.ignore),
            key=tuple(feature.on.values()) + ((feature.event_time,) if feature.event_time else ()),
            event_time=feature.event_time,
            available_after=feature.available_after,
            max_age=feature.max_age,
            suite=feature.suite,
        )
        for feature in spec.data.features
    ]
    return [main, *features]


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
            raise DataError("schema.names", f"{source}: column {shown(name)} appears twice", hint="give each column a name of its own")
        before.add(name)


def schema_hash(schema: Mapping[str, Any]) -> str:
    """Return the SHA-256 over the sorted (name, type) pairs: the order of columns makes no difference."""
    return sha256_hex(canonical_json(sorted([name, kind] for name, kind in schema.items())))
