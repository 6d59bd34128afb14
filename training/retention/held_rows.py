"""Which artifacts of a store hold given rows: those of a snapshot, or those with a key. Reads only.

A snapshot's parts hold them, and so does what is made of these parts. A dataset's manifest names its snapshot by digest, a validation
likewise, an evaluation its dataset, a model its dataset: no record of a run is needed, and an artifact whose run has expired is found too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from training.data.snapshot.meta import snapshot_meta
from training.errors import DataError, DeniedError, shown
from training.evaluation.record import FILE
from training.stage_table import TRAININGS
from training.store import Store, records
from training.store.bucket import Listed
from training.store.condemned import GONE
from training.store.leases import COMMIT
from training.store.reachability import Unit, content_keys, heads, texts_of, units
from training.store.work_folder import StoreUri

CONSEQUENCES: Final = {
    "snapshot": "its runs cannot be repeated, nor their weights made again",
    "validation": "its page is gone",
    "dataset": "no training begins from it; with a split that is not by time, its models are compared no more",
    "evaluation": "its decision stays in the ledger, its page is gone",
}
"""Kinds of artifacts that hold rows or values of them, to what is lost with one."""
LEADING: Final = ("snapshot", "dataset")
"""Kinds of which others are made."""
LIVE: Final = timedelta(minutes=15)
"""Without a change for that long, unfinished work is not under way."""
HINT: Final = "repair or delete it, then search again: it may hold rows"
_DIGEST: Final = re.compile("[0-9a-f]{64}")

Key = Mapping[str, str]
"""Column to value, as text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowHolder:
    """One artifact."""

    key: str
    """Of its manifest."""
    kind: str
    size_bytes: int
    """Of its files."""
    model_key: str = ""
    """Of a checkpoint: the model that its training made; empty where it made none yet."""


@dataclass(kw_only=True, slots=True)
class HeldRows:
    """Everything in a store that holds the rows."""

    num_rows: int | None = None
    """Of a key, over distinct parts; None: all rows of a snapshot."""
    num_scanned: int = 0
    """Snapshots that were looked at."""
    parts: set[str] = field(default_factory=set)
    """Digests of the snapshots' files with such rows."""
    holders: dict[str, RowHolder] = field(default_factory=dict)
    """By digest of the manifest."""
    weights: dict[str, RowHolder] = field(default_factory=dict)
    """Models that were trained on them, and checkpoints of these trainings, by digest of the manifest."""
    objects: set[str] = field(default_factory=set)
    """Keys of objects that only holders name."""
    pages: set[str] = field(default_factory=set)
    logs: set[str] = field(default_factory=set)
    refs: set[str] = field(default_factory=set)
    """Folders of refs that name a holder, or a profile of its columns."""
    runs: set[tuple[str, str]] = field(default_factory=set)
    """(pipeline, id of the run) of runs that used one."""
    mlflow_runs: set[str] = field(default_factory=set)
    """With a copy of an evaluation's page."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What is kept of a manifest."""

    kind: str
    files: Mapping[str, int]
    """Digest to bytes."""
    names: frozenset[str]
    """Digests in its meta, and of an evaluation that of its dataset."""
    packed: frozenset[str]
    """Digests of files that are no objects."""


class RowSearch:
    """One search of a store."""

    def __init__(self, store: Store, scratch: Path, *, erased: Collection[str] = ()) -> None:
        """Read every manifest.

        Args:
            scratch: folder for one file at a time.
            erased: digests of snapshots and datasets that were erased: what work under way has made of one since is found, too.

        Raises:
            StoreError: a manifest cannot be read: it may hold rows.
        """
        self._store, self._bucket, self._scratch, self._erased = store, store.bucket, scratch, set(erased)
        self._known = dict(self._manifests())
        self._units = units(self._bucket.list("stages"), 4)

    def left(self) -> HeldRows:
        """Return what was made of erased snapshots and is still there."""
        return self._with_all(HeldRows())

    def of_snapshot(self, uri: str) -> HeldRows:
        """Return what holds the rows of a snapshot: those of its main table, and of the files of other tables that it alone has.

        Raises:
            DeniedError: `erase.target`, no snapshot is there.
        """
        digest = StoreUri(uri).digest
        known = self._known.get(digest)
        if digest in self._erased:
            return self.left()
        if known is None or known.kind != "snapshot":
            raise DeniedError("erase.target", f"{shown(uri)} is not a snapshot of this store", hint="`nightshift datasets list` shows them")
        snapshot = self._store.manifests.get(self._store.manifests.uri(digest))
        meta = snapshot_meta(snapshot)
        others = {file for other, of_other in self._known.items() if other != digest for file in of_other.files}
        parts = {
            snapshot.files[name].digest
            for table, facts in meta["tables"].items()
            for name, part in facts["parts"].items()
            # A file without rows has the same bytes in every snapshot.
            if part["rows"] and (table == meta["main"] or snapshot.files[name].digest not in others)
        }
        return self._with_all(HeldRows(parts=parts, num_scanned=1, holders={digest: self._holder(digest)}))

    def of_key(self, uris: Collection[str], key: Key) -> HeldRows:
        """Return what holds rows with a key.

        Args:
            uris: of the pipeline's snapshots; those that are gone are passed over. Those of its stages are looked at, too.

        Raises:
            DeniedError: `erase.key`, no table has the columns, or a value is not of its column's type.
        """
        found, counts, columns = HeldRows(), dict[str, int](), set[str]()
        refused: DeniedError | None = None
        for digest in sorted({StoreUri(uri).digest for uri in uris}):
            known = self._known.get(digest)
            if known is None or known.kind != "snapshot":
                continue
            found.num_scanned += 1
            snapshot = self._store.manifests.get(self._store.manifests.uri(digest))
            for facts in snapshot_meta(snapshot)["tables"].values():
                for name, of_part in facts["parts"].items():
                    schema, part = of_part.get("schema", facts["schema"]), snapshot.files[name].digest
                    columns |= set(schema)
                    if part in counts or not set(key) <= set(schema):
                        continue
                    try:
                        counts[part] = self._count(part, key)
                    except DeniedError as err:
                        # A column may have had another type once; then no row of that time has the value.
                        refused = err
        if found.num_scanned and not set(key) <= columns:
            missing = ", ".join(sorted(set(key) - columns))
            raise DeniedError("erase.key", f"no snapshot has a column {missing}", hint=f"columns: {', '.join(sorted(columns))}")
        if refused is not None and not counts:
            raise refused
        found.parts = {part for part, count in counts.items() if count}
        found.num_rows = sum(counts.values())
        return self._with_all(found)

    def results_of(self, pipeline: str) -> Iterator[str]:
        """Yield the URIs of the artifacts that the pipeline's ingests made."""
        for unit in self._units:
            if unit.key.startswith(f"stages/{pipeline}/ingest/") and (result := self._result(unit)):
                yield str(result["artifact_uri"])

    def _manifests(self) -> Iterator[tuple[str, _Known]]:
        for entry in self._bucket.list("manifests"):
            try:
                manifest = self._store.manifests.get(self._bucket.uri(entry.key))
                named = list(texts_of(manifest.meta))
                if manifest.kind == "evaluation" and FILE in manifest.files:
                    named.append(str(json.loads(self._store.manifests.read(manifest, FILE)).get("dataset")))
            except DataError as err:
                if err.code in GONE:
                    continue
                raise
            packed = {manifest.files[name].digest for name in self._store.manifests.packed_names(manifest)}
            files = {file.digest: file.size_bytes for file in manifest.files.values()}
            names = frozenset(text for text in named if _DIGEST.fullmatch(text))
            yield StoreUri(entry.key).digest, _Known(manifest.kind, files, names, frozenset(packed))

    def _count(self, part: str, key: Key) -> int:
        """Return the rows of a part with the key; one that was erased a moment ago, by a process that was killed, counts as one row."""
        path = self._scratch / part
        try:
            self._store.objects.fetch(part, path)
            with pq.ParquetFile(path) as file:
                masks = [
                    pc.fill_null(pc.equal(column, _value(text, column.type, name)), False)
                    for name, text in key.items()
                    for column in [file.read([name]).column(name)]
                ]
        except DataError as err:
            if err.code in GONE:
                return 1
            raise
        finally:
            path.unlink(missing_ok=True)
        mask = masks[0]
        for more in masks[1:]:
            mask = pc.and_(mask, more)
        return int(pc.sum(mask).as_py() or 0)

    def _with_all(self, found: HeldRows) -> HeldRows:
        """Add what is made of the parts."""
        for digest, known in self._known.items():
            if known.kind == "snapshot" and not found.parts.isdisjoint(known.files):
                found.holders[digest] = self._holder(digest)
        # Those of an order that was interrupted.
        found.holders |= {digest: self._holder(digest) for digest in self._erased & set(self._known)}
        leading = {*found.holders, *self._erased}
        while leading:
            made = {digest for digest, known in self._known.items() if digest not in found.holders and not leading.isdisjoint(known.names)}
            found.weights |= {digest: self._holder(digest) for digest in made if self._known[digest].kind == "model"}
            added = {digest for digest in made if self._known[digest].kind in CONSEQUENCES}
            found.holders |= {digest: self._holder(digest) for digest in added}
            leading = {digest for digest in added if self._known[digest].kind in LEADING}
        # A snapshot's other parts stay where a later one has them.
        found.objects = self.objects_of(found.holders) | {self._store.objects.key(part) for part in found.parts}
        self._add_work(found)
        self._add_refs(found)
        return found

    def _holder(self, digest: str) -> RowHolder:
        known = self._known[digest]
        return RowHolder(key=self._store.manifests.key(digest), kind=known.kind, size_bytes=sum(known.files.values()))

    def objects_of(self, digests: Collection[str]) -> set[str]:
        """Return the keys of objects that no other manifest than these names."""
        other = {file for digest, known in self._known.items() if digest not in digests for file in known.files}
        named = {file for digest in digests for file in set(self._known[digest].files) - self._known[digest].packed}
        return {self._store.objects.key(file) for file in named - other}

    def _add_work(self, found: HeldRows) -> None:
        """Add pages and logs of the stages that read or made a holder."""
        keys, pipelines = {holder.key for holder in found.holders.values()}, set[str]()
        unfinished = []
        for unit in self._units:
            result = self._result(unit)
            requests = [self._record(entry.key) for entry in unit.entries if entry.key.endswith("/_REQUEST.json")]
            made = set(content_keys(result.get("artifact_uri")))
            read = {key for request in requests for key in content_keys(request.get("inputs"))}
            if not result:
                unfinished.append(unit)
            if not made.isdisjoint(keys):
                found.pages |= set(content_keys(list(result.get("reports", {}).values())))
                found.mlflow_runs |= {str(run) for request in requests if (run := request["parameters"].get("mlflow_run_id"))}
            if not read.isdisjoint(keys) and unit.key.split("/")[2] in TRAININGS:
                self._add_checkpoints(found, unit, next(iter(made), ""))
            if not (made | read).isdisjoint(keys):
                pipelines.add(unit.key.split("/")[1])
                found.logs |= _logs(unit)
        for unit in unfinished:
            # An ingest that failed may have quoted the rows.
            found.logs |= _logs(unit) if unit.key.split("/")[1] in pipelines else set()

    def _add_checkpoints(self, found: HeldRows, unit: Unit, model_key: str) -> None:
        for digest in {StoreUri(key).digest for key in content_keys(self._journal(unit))} & set(self._known):
            if self._known[digest].kind == "checkpoint":
                found.weights[digest] = replace(self._holder(digest), model_key=model_key)

    def _add_refs(self, found: HeldRows) -> None:
        keys = {holder.key for holder in found.holders.values()}
        for key in heads(self._bucket.list("refs")):
            folder = key.rsplit("/", 1)[0]
            value = self._record(key)
            if StoreUri(folder).digest in found.holders and folder.startswith("refs/profiles/"):
                found.refs.add(folder)
                found.objects |= set(content_keys(value))
            elif folder.startswith(("refs/snapshots/", "refs/kept/")) and not keys.isdisjoint(content_keys(value)):
                found.refs.add(folder)
        for unit in units(self._bucket.list("runs"), 3):
            values = {head.split("/", 3)[3].rsplit("/", 1)[0]: self._record(head) for head in heads(unit.entries)}
            if any(not keys.isdisjoint(content_keys(value)) for value in values.values()):
                _, pipeline, run = unit.key.split("/")
                found.runs.add((pipeline, run))
                # That of a validation that failed is in no result.
                found.pages |= {key for name, value in values.items() if name == "reports/validation" for key in content_keys(value)}

    def _result(self, unit: Unit) -> Any:
        """Return the result of a work; that of its last commit where the file could not be written; empty where there is none."""
        if unit.has("_RESULT.json"):
            return self._record(f"{unit.key}/_RESULT.json")
        return next((record["payload"] for record in reversed(self._journal(unit)) if record.get("kind") == COMMIT), {})

    def _journal(self, unit: Unit) -> list[Any]:
        return [self._record(entry.key) for entry in unit.entries if entry.key.startswith(f"{unit.key}/journal/")]

    def _record(self, key: str) -> Any:
        data = self._bucket.find(key)
        return {} if data is None else records.decode(key, data, uri=self._bucket.uri(key), hint=HINT)


def live_work(found: Sequence[Listed], pipelines: Collection[str]) -> list[str]:
    """Return the work folders of these pipelines that are unfinished and were changed a moment ago."""
    since = datetime.now(UTC) - LIVE
    return [
        unit.key
        for unit in units(found, 4)
        if unit.key.split("/")[1] in pipelines and not unit.has("_RESULT.json") and unit.newest >= since and not _has_ended(unit)
    ]


def _has_ended(unit: Unit) -> bool:
    """Return whether the newest attempt has failed."""
    attempts = sorted({entry.key.split("/")[5] for entry in unit.entries if entry.key.startswith(f"{unit.key}/attempts/")})
    return bool(attempts) and unit.has(f"attempts/{attempts[-1]}/_ERROR.json")


def _logs(unit: Unit) -> set[str]:
    return {entry.key for entry in unit.entries if entry.key.endswith(("/log.txt", "/_ERROR.json"))}


def _value(text: str, kind: pa.DataType, column: str) -> pa.Scalar:
    try:
        return pa.scalar(text).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as err:
        hint = f"write it as {kind} values are written"
        raise DeniedError("erase.key", f"{column}={shown(text)}: the column is of type {kind}", hint=hint) from err
