"""The meta of a snapshot's manifest, as types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NotRequired, TypedDict, cast

from training.contracts import JsonObject
from training.data.snapshot.label_delay import UnknownLabels
from training.store import Manifest


class PartFacts(TypedDict):
    """A file of a table."""

    rows: int
    partition: str | None
    source_key: str
    source_version: str
    schema: NotRequired[dict[str, str]]
    """Column to type, where it is not the table's."""
    table: NotRequired[str]
    """Of which table of `data.source.union` it is."""


class TableFacts(TypedDict):
    """A table."""

    rows: int
    schema: dict[str, str]
    """Column to type, as most rows have it."""
    schema_hash: str
    parts: dict[str, PartFacts]
    """By name in the manifest."""
    left_out: NotRequired[dict[str, int]]
    """Rows of the window that are not in it, by the key of the YAML that left them out: `where`, `sample`."""


class SnapshotWindow(TypedDict):
    """ISO 8601; the end is exclusive."""

    start: str
    end: str


class SnapshotMeta(TypedDict):
    """The manifest's meta."""

    as_of: str
    window: SnapshotWindow
    main: str
    """Name of the main table."""
    split: JsonObject
    tables: Mapping[str, TableFacts]
    unknown_labels: NotRequired[UnknownLabels]


def snapshot_meta(snapshot: Manifest) -> SnapshotMeta:
    """Return the meta of a snapshot; ingest wrote it, and the digest of the manifest was checked."""
    return cast("SnapshotMeta", snapshot.meta)


def rows_per_table(facts: TableFacts) -> dict[str, int]:
    """Return the rows of each table of a union, by name; empty where there is none."""
    counts: dict[str, int] = {}
    for part in facts["parts"].values():
        if "table" in part:
            counts[part["table"]] = counts.get(part["table"], 0) + part["rows"]
    return dict(sorted(counts.items()))
