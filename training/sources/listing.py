"""What lies at the sources of a pipeline, and copies of it that are of one version. Light: operators look here before a stage starts."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit
from zoneinfo import ZoneInfo

import obstore
from obstore import exceptions as obstore_errors

from training.errors import DataError, DeniedError
from training.sources.interface import ListedPart, SourcePart, SourceWindow
from training.sources.lake_tables import refuse_lake_table, tables_above
from training.sources.local_folder import check_local_source, is_data
from training.sources.registry import source_of
from training.sources.table_contract import TableContract, contracts_of
from training.spec import PipelineSpec
from training.spec.descriptors.sources import SOURCES
from training.spec.schedule.instants import main_partitions, partitions, window, with_history
from training.spec.schedule.partitions import (
    NULL_FOLDER,
    above_values,
    folder_of,
    grain_of,
    names_in,
    other_paddings,
    partition_at,
    partitions_between,
)
from training.spec.uris import in_uri
from training.store import Store
from training.store.bucket import Bucket, as_uri
from training.store.work_folder import StoreUri

logger = logging.getLogger(__name__)

READ_ATTEMPTS: Final = 2


@dataclass(frozen=True, slots=True)
class SourceObject:
    """One data file of a source."""

    uri: str
    size_bytes: int
    version: str
    """ETag, or modification time and size: changes when the content does."""


class _SourceFolder(Bucket):
    """A folder that is read and never written: not even made."""

    def uri(self, key: str) -> str:
        return f"{self.root_uri}/{in_uri(key) if self.is_local else key}"

    def head(self, key: str) -> SourceObject | None:
        with self._faults("look up", key):
            try:
                meta = obstore.head(self._store, key)
            except FileNotFoundError:
                return None
        version = meta["e_tag"] or f"{meta['last_modified'].isoformat()}-{meta['size']}"
        return SourceObject(self.uri(key), meta["size"], version)

    def copy(self, key: str, version: str, path: Path) -> bool:
        """Copy `key` to the local `path`; say whether it was of this version from the first byte to the last."""
        with self._faults("read", key):
            try:
                with path.open("wb") as out:
                    # A version without quotes is a modification time, which storage compares by no header.
                    out.writelines(self._chunks(key, version if version.startswith('"') else None))
            except (FileNotFoundError, obstore_errors.PreconditionError):
                return False
            except obstore_errors.GenericError:
                # A body that broke off is requested again by its version: a change of the file since gives an unnamed error.
                if self._is_of(key, version):
                    raise
                return False
        return self._is_of(key, version)

    def _is_of(self, key: str, version: str) -> bool:
        after = self.head(key)
        return after is not None and after.version == version


def list_source(uri: str, root: str | None = None, *, passed_over: list[str] | None = None) -> list[SourceObject]:
    """List the data files at `uri`, a file or a folder, sorted by URI.

    Files and folders whose names start with `_` or `.`, and checksums, are markers and leftovers, not data.

    Args:
        root: the source's folder, which no symbolic link may leave; absent: `uri`, or the folder that this file is in.
        passed_over: gets the URIs of files that are not data.

    Raises:
        DataError: `source.not_a_file`, `source.outside`, on a local disk; `source.lake_table`.
        UnavailableError: `storage.unavailable`.
        DeniedError: `storage.denied`.
    """
    check_local_source(uri, root)
    folder, name = _open_parent(uri)
    if folder is None:
        return []
    entries = folder.list(name)
    refuse_lake_table(uri, (entry.key[len(name) + 1 :] for entry in entries))
    found = [
        SourceObject(folder.uri(entry.key), entry.size_bytes, entry.version)
        for entry in entries
        if all(is_data(part) for part in entry.key[len(name) :].split("/"))
    ]
    if not found and (alone := folder.head(name)) is not None:
        return [alone]
    if passed_over is not None:
        passed_over += sorted({folder.uri(entry.key) for entry in entries} - {source.uri for source in found})
    return sorted(found, key=lambda source: source.uri)


def check_tables_above(uri: str, partition: str | None) -> None:
    """Refuse a source in the folder of a lake table, or with a folder of missing times, as far as no listing of the source shows it.

    Raises:
        DataError: `source.lake_table`, `partition.null`.
        UnavailableError: `storage.unavailable`.
    """
    for place in tables_above(as_uri(uri), partition):
        parts = urlsplit(place)
        if parts.scheme == "file" and not Path(unquote(parts.path)).is_dir():
            continue
        folder = _SourceFolder(place)
        try:
            names = [f"{name}/" for name in folder.folders("")]
            if place == as_uri(uri) and partition is not None and not names_in(partition.split("/")[0]):
                _check_has_time(uri, partition, names)
            names += [entry.key for entry in folder.list("metadata")] if "metadata/" in names else []
        except DeniedError:
            continue  # Who may read a folder need not be allowed to see those above.
        refuse_lake_table(place, names)


def _check_has_time(uri: str, partition: str, names: Iterable[str]) -> None:
    found = next((name for name in names if NULL_FOLDER in name), None)
    if found is not None:
        message = f"{uri} has the folder {found}, whose rows are in no partition {partition}: the value that its time is made of is missing"
        hint = "move the folder out of the table, or give its rows a time and write them again"
        raise DataError("partition.null", message, hint=hint)


def source_object(uri: str, root: str) -> SourceObject | None:
    """Return the one file at `uri`; None where there is none, or a folder.

    Args:
        root: as `list_source`.

    Raises:
        DataError: `source.not_a_file`, `source.outside`, on a local disk.
    """
    check_local_source(uri, root)
    folder, name = _open_parent(uri)
    return None if folder is None else folder.head(name)


def list_partitions(
    uri: str, partition: str, names: Iterable[str], *, passed_over: list[str] | None = None
) -> dict[str, list[SourceObject]]:
    """List the data files of each partition; one without files has an empty list.

    Args:
        uri: the table's folder.
        partition: a partition's path below it, with placeholders for its time, and for values of columns, whatever they are
            (`training.spec.schedule.partitions`).
        names: of the partitions: 2026-01-31.
        passed_over: as `list_source`; where the path has values, also of files in no partition.

    Raises:
        DataError: of `list_source`; `partition.null`; `partition.padding`, as `missing_partitions`, where the path has values.
    """
    if not names_in(partition):
        return {name: list_source(partition_uri(uri, partition, name), uri, passed_over=passed_over) for name in names}
    found: dict[str, list[SourceObject]] = {name: [] for name in names}
    above = above_values(partition)
    for folder in dict.fromkeys(partition_uri(uri, above, name).rstrip("/") for name in found):
        for source in list_source(folder, uri, passed_over=passed_over):
            path = path_below(uri, source.uri)
            name = partition_at(partition, path)
            if not name:
                _check_has_time(uri, partition, [path])
                for other in other_paddings(partition):
                    if (name := partition_at(other, path)) in found:
                        raise _padding(uri, partition, other, name, path.rpartition("/")[0])
                if passed_over is not None:
                    passed_over.append(source.uri)
            elif name in found:
                found[name].append(source)
    return found


def path_below(uri: str, place: str) -> str:
    """Return the path of a file below a table's `uri`, decoded where it is a local one."""
    both = [as_uri(uri), place]
    root, path = map(unquote, both) if place.startswith("file:") else both
    return path.removeprefix(f"{root}/")


def partition_uri(uri: str, partition: str, name: str) -> str:
    return f"{uri}/{folder_of(partition, name)}"


def windows_of(spec: PipelineSpec, as_of: datetime) -> dict[str, SourceWindow]:
    """Return what a run may see of each table, by its name."""
    source, (start, end), longer = spec.data.source, window(spec, as_of), with_history(spec)
    days = tuple(partitions(longer, as_of)) if source.is_daily else ()
    names = tuple(part.name for part in main_partitions(longer, as_of)) if source.is_daily or source.grain is not None else ()
    windows = {source.table: SourceWindow(window(longer, as_of)[0], end, as_of, days, names)}
    for feature in spec.data.features:
        reach = spec.data.reach_of(feature)
        oldest = None if reach is None else start - source.decision_lead - reach
        needed: tuple[str, ...] = ()
        grain = None if feature.partition is None else grain_of(feature.partition)
        if grain is not None and oldest is not None:
            # No later row can be seen by a prediction of the window; of what could be seen, the partition may not be written yet.
            last, until = end - source.decision_lead - feature.available_after, as_of - feature.available_after
            found = partitions_between(grain, ZoneInfo(spec.timezone), oldest, last, until)
            needed = tuple(part.name for part in found)
        windows[feature.table] = SourceWindow(oldest, None, as_of, partitions=needed)
    return windows


def lookback_of(spec: PipelineSpec, as_of: datetime) -> dict[str, datetime | None]:
    """Return the earliest event time that matters of each feature table (None: all of its past), and of the main table's history."""
    source, windows = spec.data.source, windows_of(spec, as_of)
    return {name: seen.start for name, seen in windows.items() if name != source.table or source.history is not None}


def listing_for(spec: PipelineSpec, as_of: datetime) -> dict[str, list[ListedPart]]:
    """List every table of a pipeline, as the ingest stage's parameter `listing`.

    Raises:
        NightshiftError: of the sources; `source.unknown`, `source.not_a_source`, `source.lake_table`.

    Returns:
        Table name to its parts, sorted.
    """
    windows = windows_of(spec, as_of)
    return {c.name: [part.as_json() for part in _listed(c, windows[c.name])] for c in contracts_of(spec)}


def _listed(contract: TableContract, seen: SourceWindow) -> list[SourcePart]:
    """List the parts of a table; those of a union say of which of its tables they are."""
    for member in contract.members:
        # Once a run: a sensor, which looks again and again, sees the listings alone.
        if member.uri is not None and member.kind in SOURCES.built_in:
            check_tables_above(member.uri, member.partition)
    if not contract.union:
        return list(source_of(contract).list(seen))
    return [replace(part, table=member.name) for member in contract.members for part in source_of(member).list(seen)]


@dataclass(frozen=True, kw_only=True, slots=True)
class MissingPartitions:
    """Partitions of one table that are needed, and are not there yet."""

    table: str
    names: list[str]
    """Sorted."""
    expected: int
    """How many are needed."""
    places: list[str]
    """What messages call each of `names`."""


def missing_partitions(spec: PipelineSpec, as_of: datetime) -> list[MissingPartitions]:
    """Return what each table in partitions lacks; nothing for one that is complete.

    A partition of the history before the window may be missing: a new source has none.

    Raises:
        DataError: `partition.padding`, the folder is there under the name that it has with or without zeros in front of its numbers.
    """
    windows, missing = windows_of(spec, as_of), []
    for contract in contracts_of(spec):
        seen = windows[contract.name]
        is_main = contract.name == spec.data.source.table
        needed = [part.name for part in main_partitions(spec, as_of)] if seen.partitions and is_main else list(seen.partitions)
        for member in contract.members if needed else ():
            listed = {part.partition for part in source_of(member).list(seen)}
            names = [name for name in needed if name not in listed]
            if names:
                _check_padding(member, names)
                places = [_place_of(member, name) for name in names]
                missing.append(MissingPartitions(table=member.name, names=names, expected=len(needed), places=places))
    return missing


def _check_padding(contract: TableContract, names: list[str]) -> None:
    uri, partition = contract.uri, contract.partition
    if uri is None or partition is None:
        return
    for other in other_paddings(partition):
        both = ((folder_of(other, name), folder_of(partition, name), name) for name in names)
        has, _, name = next((each for each in both if each[0] != each[1]), ("", "", ""))
        if name and list_partitions(uri, other, [name])[name]:
            raise _padding(uri, partition, other, name, has)


def _padding(uri: str, partition: str, other: str, name: str, has: str) -> DataError:
    lacks = folder_of(partition, name)
    zeros = "zeros" if len(folder_of(other, name)) > len(lacks) else "no zeros"
    message = f"{uri} has the folder {has}, with {zeros} in front of its numbers, and not {lacks}"
    return DataError("partition.padding", message, hint=f'write partition: "{other}", or rename the folder where others are right')


def _place_of(contract: TableContract, name: str) -> str:
    return name if contract.uri is None or contract.partition is None else partition_uri(contract.uri, contract.partition, name)


def read_source(uri: str, version: str | None, path: Path, *, root: str | None = None) -> Path:
    """Copy one source file to the local `path`, all of it of one version.

    Args:
        version: as listed; None takes the version that is there now.
        root: as `list_source`.

    Raises:
        DataError: `source.not_a_file`, `source.outside`, on a local disk.
        DataError: `source.missing`; `source.changed`, it is no longer what was listed, or it changed during both of two reads.
    """
    check_local_source(uri, root)
    folder, name = _open_parent(uri)
    for attempt in range(1, READ_ATTEMPTS + 1):
        found = folder.head(name) if folder is not None else None
        if folder is None or found is None:
            raise DataError("source.missing", f"{uri} does not exist", hint="put the file back, then trigger the run again")
        if version is not None and found.version != version:
            raise DataError(
                "source.changed",
                f"{uri} changed after it was listed: version {version} then, {found.version} now",
                hint="trigger the run again: it lists the sources again",
            )
        if folder.copy(name, found.version, path):
            return path
        logger.warning("%s changed while it was read (attempt %d of %d)", uri, attempt, READ_ATTEMPTS)
    raise DataError(
        "source.changed",
        f"{uri} changed during each of {READ_ATTEMPTS} reads",
        hint="trigger the run again once no process writes to the file",
    )


def snapshot_ref_name(pipeline: str, as_of: datetime) -> str:
    """Return the name of the ref of a run's validated snapshot; names sort by time."""
    return f"snapshots/{pipeline}/{_instant(as_of)}"


def profile_ref_name(pipeline: str, snapshot_digest: str) -> str:
    """Return the name of the ref of the column profiles of a validated snapshot."""
    return f"profiles/{pipeline}/{snapshot_digest}"


def previous_snapshot(store: Store, pipeline: str, as_of: datetime, *, deprecated: tuple[str, ...] = ()) -> str | None:
    """Return the URI of the newest validated snapshot of a pipeline with an earlier `as_of`, or None.

    Args:
        deprecated: versions (the beginning of the digest) that are passed over: what a person found wrong is no reference.
    """
    prefix = f"refs/snapshots/{pipeline}"
    for name in reversed([name for name in store.bucket.folders(prefix) if name < _instant(as_of)]):
        head = store.ref(f"snapshots/{pipeline}/{name}").read()
        uri = None if head is None else str(head.value)
        if uri is None or not StoreUri(uri).digest.startswith(deprecated):
            return uri
    return None


def _instant(as_of: datetime) -> str:
    # Without colons, which are awkward in local paths and escaped in some URIs.
    return as_of.astimezone(UTC).strftime("%Y-%m-%dT%H%M%SZ")


def _open_parent(uri: str) -> tuple[_SourceFolder | None, str]:
    """Return the folder that `uri` lies in (None where a local one does not exist), and its name there."""
    parent, name = as_uri(uri).rsplit("/", 1)
    parts = urlsplit(parent)
    if parts.scheme != "file":
        return _SourceFolder(parent), name
    return _SourceFolder(parent) if Path(unquote(parts.path)).is_dir() else None, unquote(name)
