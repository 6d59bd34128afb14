"""Snapshots: what a run may see of its sources, immutable, its files named by their content."""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path

import numpy as np

from training.contracts import JsonObject, microseconds_of
from training.data.snapshot.label_delay import SplitRule, UnknownLabels, unknown_labels
from training.data.snapshot.meta import PartFacts, SnapshotMeta, TableFacts
from training.errors import DataError, shown
from training.sources.arrow_schema import schema_hash
from training.sources.derived_columns import derive
from training.sources.interface import ListedPart, Source, SourcePart, SourceWindow
from training.sources.registry import source_of
from training.sources.row_versions import RowVersions
from training.sources.rows_outside import RowsOutside
from training.sources.size_limits import check_size, table_limit_bytes
from training.sources.snapshot_files import LabelTimes, TablePart, part_as_is, part_of_rows, read_rows
from training.sources.stored_types import EncodingCounts
from training.sources.table_contract import TableContract
from training.store import Manifest, Store
from training.store.manifests import FileEntry
from training.store.objects import file_digest

logger = logging.getLogger(__name__)

KIND = "snapshot"

Listing = Mapping[str, Sequence[ListedPart]]
"""Table name to its parts, as the operator saw the sources."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotPlan:
    """What to take a snapshot of."""

    contracts: Sequence[TableContract]
    """The main table's first."""
    listing: Listing
    as_of: datetime
    start: datetime
    """Begin of the window."""
    end: datetime
    """End of the window, exclusive; not after `as_of`."""
    split: JsonObject
    """How the rows will be divided, as JSON: recorded, not applied here."""
    lookback: Mapping[str, datetime | None]
    """Earliest event time that matters, by feature table; None: all of its past. Of the main table: where its history begins, if
    that is before the window."""
    split_rule: SplitRule | None = None
    """By which rows without a known label are counted; None: they are not."""

    def window_of(self, contract: TableContract) -> SourceWindow:
        """Return which rows of a table the run may see."""
        if contract.name == self.contracts[0].name:
            return SourceWindow(self.lookback.get(contract.name, self.start), self.end, self.as_of)
        return SourceWindow(self.lookback.get(contract.name), None, self.as_of)


@dataclass(slots=True)
class _PartCounts:
    """What is counted while the files of a table are read."""

    outside: RowsOutside | None
    versions: RowVersions | None = None
    encodings: EncodingCounts = field(default_factory=EncodingCounts)


def take_snapshot(
    store: Store, plan: SnapshotPlan, folder: Path, *, on_file: Callable[[int, int], None], outside: RowsOutside | None = None
) -> tuple[str, Manifest]:
    """Store the files of all tables and the manifest that names them. Equal sources and an equal plan give an equal manifest.

    Args:
        folder: scratch space for one file at a time.
        on_file: called with (files done, files in all).
        outside: is given the times of the main table's rows, of files that are not kept as they are.

    Raises:
        DataError: `data.empty`, a table has no files; `source.changed`, `source.missing`; `source.too_large`, a file or a table;
            of `part_as_is` and `part_of_rows`.

    Returns:
        URI of the manifest, and it.
    """
    files: dict[str, FileEntry] = {}
    tables: dict[str, TableFacts] = {}
    total = sum(len(plan.listing.get(contract.name, ())) for contract in plan.contracts)
    times: list[LabelTimes] = []
    done, limit_bytes = 0, table_limit_bytes()
    for contract in plan.contracts:
        table_bytes = num_rows = 0
        parts: dict[str, PartFacts] = {}
        schemas: dict[str, dict[str, str]] = {}
        left_out: Counter[str] = Counter()
        members = {member.name: (member, source_of(member)) for member in contract.members}
        window, counts = plan.window_of(contract), _PartCounts(outside if contract is plan.contracts[0] else None)
        named = _named(contract, plan.listing.get(contract.name, ()))
        if contract.newest_by is not None:
            parts_of_key = [(listed, *members[listed.table or contract.name]) for _, listed in named]
            counts.versions = _versions(contract, plan.as_of, parts_of_key, folder)
            if outside is not None:
                outside.versions = counts.versions.counts
        for name, listed in named:
            check_size(listed.size_bytes, limit_bytes, what=listed.uri)
            member, source = members[listed.table or contract.name]
            files[name], part, parts[name] = _take_part(store, member, source, listed, window, folder, limit_bytes, counts)
            schemas[name] = part.schema
            left_out.update(part.left_out)
            times += [part.label_times] if part.label_times is not None else []
            table_bytes += part.decoded_bytes
            num_rows += part.rows
            check_size(table_bytes, limit_bytes, what=f"table {shown(contract.name)}, {len(parts)} files", rows=num_rows)
            done += 1
            on_file(done, total)
        for line in counts.encodings.lines():
            logger.info("%s: %s", contract.name, line)
        tables[contract.name] = _table_facts(parts, schemas)
        if left_out:
            tables[contract.name]["left_out"] = dict(left_out)
    manifest = Manifest(kind=KIND, files=files, meta=_meta(plan, tables, times))
    return store.manifests.put(manifest), manifest


def _meta(plan: SnapshotPlan, tables: Mapping[str, TableFacts], times: Sequence[LabelTimes]) -> SnapshotMeta:
    meta: SnapshotMeta = {
        "as_of": plan.as_of.isoformat(),
        "window": {"start": plan.start.isoformat(), "end": plan.end.isoformat()},
        "main": plan.contracts[0].name,
        "split": dict(plan.split),
        "tables": tables,
    }
    unknown = _unknown_labels(plan, times)
    if unknown is not None:
        meta["unknown_labels"] = unknown
    return meta


def _versions(
    contract: TableContract, as_of: datetime, parts: Sequence[tuple[SourcePart, TableContract, Source]], folder: Path
) -> RowVersions:
    """Return which rows of each part count. Parts are read here for their keys, and later for their rows: one at a time is in memory."""
    versions, limit_bytes = RowVersions(contract, as_of), table_limit_bytes()
    for part, member, source in parts:
        check_size(part.size_bytes, limit_bytes, what=part.uri)
        scratch = folder / "part"
        scratch.mkdir()
        try:
            content = source.read(part, scratch, limit_bytes=limit_bytes)
            rows = read_rows(member, content, source=part.uri, limit_bytes=limit_bytes, partition=part.partition)
            versions.add(part, derive(member, rows, source=part.uri))
        finally:
            shutil.rmtree(scratch)
    versions.settle()
    return versions


def _named(contract: TableContract, entries: Sequence[ListedPart]) -> list[tuple[str, SourcePart]]:
    """Give each part its name in the snapshot, independent of the order of the listing."""
    if not entries:
        raise DataError(
            "data.empty", f"table {shown(contract.name)} has no data files at {contract.place}", hint="see whether the source was written"
        )
    parts = [SourcePart.of(entry) for entry in entries]
    for member in contract.union and contract.members:
        if not any(part.table == member.name for part in parts):
            message = f"table {shown(member.name)} of data.source.union has no data files at {member.place}"
            raise DataError("data.empty", message, hint="see whether the source was written")
    numbers: Counter[str] = Counter()
    named = []
    for part in sorted(parts, key=lambda part: (part.partition or "", part.table or "", part.uri)):
        partition = part.partition or "all"
        named.append((f"{contract.name}/{partition}-{numbers[partition]:05d}.parquet", part))
        numbers[partition] += 1
    return named


def _take_part(
    store: Store,
    contract: TableContract,
    source: Source,
    listed: SourcePart,
    window: SourceWindow,
    folder: Path,
    limit_bytes: int,
    counts: _PartCounts,
) -> tuple[FileEntry, TablePart, PartFacts]:
    scratch = folder / "part"
    scratch.mkdir()
    try:
        content = source.read(listed, scratch, limit_bytes=limit_bytes)
        part: TablePart | None = None
        if contract.is_kept_as_is and isinstance(content.rows, Path):
            part = part_as_is(contract, content.rows, source=listed.uri, limit_bytes=limit_bytes, counts=counts.encodings)
        if part is None:
            rows = read_rows(
                contract, content, source=listed.uri, limit_bytes=limit_bytes, partition=listed.partition, counts=counts.encodings
            )
            kept = None if counts.versions is None else partial(counts.versions.rows_of, listed)
            written = folder / "part" / "rows.parquet"
            part = part_of_rows(contract, rows, window, written, source=listed.uri, outside=counts.outside, kept=kept)
        digest = store.objects.put_file(part.path)
        # The content's digest, not the storage's version: equal data on two machines make one snapshot.
        stored = content.rows if isinstance(content.rows, Path) else part.path
        version = content.digest or f"sha256:{digest if stored == part.path else file_digest(stored)}"
        size_bytes = part.path.stat().st_size
    finally:
        shutil.rmtree(scratch)
    facts: PartFacts = {
        "rows": part.rows,
        "partition": listed.partition,
        "source_key": listed.uri if contract.uri is None else listed.uri.removeprefix(contract.uri.rsplit("/", 1)[0] + "/"),
        "source_version": version,
    }
    if listed.table is not None:
        facts["table"] = listed.table
    return FileEntry(digest=digest, size_bytes=size_bytes), part, facts


def _unknown_labels(plan: SnapshotPlan, times: Sequence[LabelTimes]) -> UnknownLabels | None:
    """Return the manifest's entry about rows whose label is not known yet, None where labels have no `known_at`."""
    if plan.split_rule is None or not times:
        return None
    # Without the history before the window.
    begins_us = microseconds_of(plan.start)
    every = (np.concatenate(us) for us in zip(*((t.known_us, t.unknown_us) for t in times), strict=True))
    both = LabelTimes(*(us[us >= begins_us] for us in every))
    return unknown_labels(both, plan.split_rule, plan.start, plan.end)


def _table_facts(parts: dict[str, PartFacts], schemas: dict[str, dict[str, str]]) -> TableFacts:
    """Return the table's part of the manifest: the schema that most of its rows have, and at each part that differs its own."""
    weight: Counter[str] = Counter()
    for name, schema in schemas.items():
        weight[schema_hash(schema)] += parts[name]["rows"] + 1
    common = max(sorted(weight), key=weight.__getitem__)
    chosen = next(schema for schema in schemas.values() if schema_hash(schema) == common)
    for name, schema in schemas.items():
        if schema_hash(schema) != common:
            parts[name]["schema"] = dict(sorted(schema.items()))
    return {
        "rows": sum(part["rows"] for part in parts.values()),
        "schema": dict(sorted(chosen.items())),
        "schema_hash": common,
        "parts": parts,
    }
