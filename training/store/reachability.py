"""What of a store has to stay: from roots, over records and manifests, to objects. Reads only.

Roots are the URIs that the caller names (the ledger's), the refs of young runs, the refs of the store, marks of users (`refs/kept/…`), and
every work folder that is there: a result can be reused for as long as its work folder exists, so these folders are deleted first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from training.contracts import JsonObject, json_object
from training.errors import DataError, NightshiftError, StoreError
from training.store import Store, metric_journal, records
from training.store.bucket import Listed
from training.store.checkpoint_records import standing
from training.store.condemned import GONE
from training.store.work_folder import StoreUri

HINT: Final = "restore it from a backup, or delete it if it is not needed; until then nothing is deleted"
NO_RECORD: Final = ("heartbeat.json", "tracking.json")
"""JSON files of a work folder that reference nothing."""
UNDELIVERED: Final = "tracking"
"""Prefix of notes of metrics that MLflow does not have yet: `<key of the training>/<attempt>-<journal>.json`."""
TOPS: Final = ("runs", metric_journal.PREFIX, "studies", "refs")
"""Folders of a store whose files go by their age, without a mark before: no process takes them up by name."""
_NUMBERED: Final = re.compile(r"(?P<ref>.+)/\d{10}\.json")


@dataclass(frozen=True, kw_only=True, slots=True)
class KeepRules:
    """How long things stay."""

    runs: timedelta
    """After its last change: a run's refs, and a piece of work."""
    attempts: timedelta
    """Attempts of finished work other than the one that finished it."""
    grace: timedelta
    """Between the mark and the deletion. Longer than a stage takes from its first write to its commit."""


@dataclass(slots=True)
class Unit:
    """Files that stay or go together: a run, a work folder, a ref, a study."""

    key: str
    entries: list[Listed] = field(default_factory=list)

    @property
    def newest(self) -> datetime:
        return max(entry.modified for entry in self.entries)

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.entries)

    @property
    def kind(self) -> str:
        """The row of `RULES`: `runs`, `refs/snapshots`."""
        return "/".join(self.key.split("/")[: 2 if self.key.startswith("refs/") else 1])

    def has(self, name: str) -> bool:
        return any(entry.key == f"{self.key}/{name}" for entry in self.entries)


@dataclass(slots=True)
class Marked:
    """What a look at the store found."""

    reached: set[str]
    """Keys of objects and manifests that have to stay."""
    kind_of: dict[str, str] = field(default_factory=dict)
    """Key of an object to the kind of a manifest that lists it."""
    expired_work_folders: list[Unit] = field(default_factory=list)
    kept_work_folders: list[Unit] = field(default_factory=list)
    expired: list[Unit] = field(default_factory=list)
    """Runs, refs and studies."""
    expired_attempts: list[Unit] = field(default_factory=list)
    kept: list[Unit] = field(default_factory=list)
    problems: list[NightshiftError] = field(default_factory=list)
    """What could not be read: it might reach anything, so nothing may be deleted."""


class Marking:
    """One look at a store."""

    def __init__(
        self, store: Store, rules: KeepRules, *, now: datetime, roots: Collection[str], seen: Callable[[list[Listed]], object] = len
    ) -> None:
        """Prepare the look.

        Args:
            now: by the storage's clock.
            roots: URIs of objects and manifests that are kept regardless of the rules.
            seen: called with each page of a listing, and with an empty one after each record.
        """
        self._store = store
        self._seen = seen
        self._bucket = store.bucket
        self._oldest = now - rules.runs
        self._oldest_attempt = now - rules.attempts
        self._found = Marked(reached=set(content_keys(list(roots))))
        self._in_use: set[str] = set()
        """Runs, studies, journals and work folders that unfinished work uses, or that MLflow lacks metrics of."""
        self._newest_snapshots: set[str] = set()

    def look(self) -> Marked:
        """Look at everything; what cannot be read is in `problems`."""
        # Work folders first: an attempt that is alive keeps its run and its study.
        for parts in (entry.key.split("/") for entry in self._list(UNDELIVERED)):
            journal = parts[-1].removesuffix(".json").partition("-")[2]
            self._in_use |= {"/".join(parts[1:5]), f"{metric_journal.PREFIX}/{parts[2]}/{journal}"}
        for unit in units(self._list("stages"), 4):
            self._work_folder(unit)
        found = grouped(entry for prefix in TOPS for entry in self._list(prefix))
        snapshots = sorted(unit.key for unit in found if unit.kind == "refs/snapshots")
        self._newest_snapshots = set({key.rsplit("/", 1)[0]: key for key in snapshots}.values())
        # Profiles last: the others say which snapshots stay.
        for unit in sorted(found, key=lambda unit: unit.kind == "refs/profiles"):
            is_kept = unit.kind not in RULES or unit.newest >= self._oldest or RULES[unit.kind](self, unit)
            (self._found.kept if is_kept else self._found.expired).append(unit)
            for head in heads(unit.entries) if is_kept else ():
                self._reach(self._record(head))
        for key in sorted(self._found.reached):
            if key.startswith("manifests/"):
                self._manifest(key)
        return self._found

    def _list(self, prefix: str) -> list[Listed]:
        return self._bucket.list(prefix, seen=self._seen)

    def _work_folder(self, unit: Unit) -> None:
        attempts = units([entry for entry in unit.entries if entry.key.startswith(f"{unit.key}/attempts/")], 6)
        result = self._record(f"{unit.key}/_RESULT.json") if unit.has("_RESULT.json") else None
        is_expired = unit.newest < self._oldest and unit.key not in self._in_use
        (self._found.expired_work_folders if is_expired else self._found.kept_work_folders).append(unit)
        gone: set[str] = set()
        if isinstance(result, dict) and not is_expired:
            old = [found for found in attempts if found.newest < self._oldest_attempt]
            spare = [found for found in old if found.key.rsplit("/", 1)[-1] != result.get("attempt_id")]
            self._found.expired_attempts += spare
            gone = {entry.key for found in spare for entry in found.entries}
        self._reach(result)
        journal: list[Any] = []
        for entry in unit.entries:
            name = entry.key.rsplit("/", 1)[-1]
            if not name.endswith(".json") or name in (*NO_RECORD, "_RESULT.json") or entry.key in gone:
                continue
            value = self._record(entry.key)
            if entry.key.startswith(f"{unit.key}/journal/"):
                journal.append(value)
            else:
                self._reach(value)
                # Metrics of a trial are delivered into the run of its study, which the study's records describe.
                is_live = result is None or unit.key in self._in_use
                if name == "_REQUEST.json" and is_live and not is_expired and isinstance(value, dict):
                    self._note_live(value)
        self._reach([value for value in journal if not _is_checkpoint(value)])
        self._reach(kept_checkpoints(journal))

    def _note_live(self, request: JsonObject) -> None:
        run = json_object(request.get("run") or {})
        # A run of a helper DAG (`<pipeline>.tune`) has what it works with under its own DAG, and what it made under the pipeline.
        self._in_use |= {f"runs/{dag_id}/{run.get('run_id')}" for dag_id in (request.get("pipeline"), run.get("dag_id"))}
        study = json_object(request.get("parameters") or {}).get("study")
        if study:
            self._in_use.add(f"studies/{request.get('pipeline')}/{study}")

    def is_in_use(self, unit: Unit) -> bool:
        """Return whether unfinished work uses a run or a study, or MLflow lacks its metrics."""
        return unit.key in self._in_use

    def is_journal_in_use(self, unit: Unit) -> bool:
        """Return whether MLflow lacks a journal, or its run or study is in use."""
        _, pipeline, name = unit.key.split("/")
        return not self._in_use.isdisjoint({unit.key, metric_journal.owner_key(pipeline, name)})

    def is_newest_snapshot(self, unit: Unit) -> bool:
        """Return whether a snapshot is the newest of its pipeline: the next run is compared with it."""
        return unit.key in self._newest_snapshots

    def is_snapshot_kept(self, unit: Unit) -> bool:
        """Return whether the snapshot stays whose columns a profile describes."""
        digest = unit.key.rsplit("/", 1)[-1]
        return f"manifests/sha256/{digest[:2]}/{digest}.json" in self._found.reached

    def _record(self, key: str) -> Any:
        """Return a record's value; None for one that was deleted in the meantime, or that cannot be read, which is then a problem."""
        data = self._bucket.find(key)
        self._seen([])
        if data is None:
            return None
        try:
            return records.decode(key, data, uri=self._bucket.uri(key), hint=HINT)
        except StoreError as err:
            self._found.problems.append(err)
            return None

    def _reach(self, value: Any) -> None:
        self._found.reached.update(content_keys(value))

    def _manifest(self, key: str) -> None:
        self._seen([])
        try:
            manifest = self._store.manifests.get(self._bucket.uri(key))
        except DataError as err:
            # A deleted record references nothing. One that exists and cannot be read may reference anything.
            if err.code not in GONE:
                self._found.problems.append(err)
            return
        except (ValueError, KeyError, TypeError, AttributeError) as err:
            self._found.problems.append(records.damaged(self._bucket.uri(key), str(err), hint=HINT))
            return
        for entry in manifest.files.values():
            found = self._store.objects.key(entry.digest)
            self._found.reached.add(found)
            self._found.kind_of.setdefault(found, manifest.kind)


def content_keys(value: Any) -> Iterator[str]:
    """Yield the keys of objects and manifests whose URIs are anywhere in a JSON value.

    The root of a URI does not count: records of a store that was moved name its earlier place.
    """
    for text in texts_of(value):
        key = StoreUri(text).content_key
        if key is not None:
            yield key


def texts_of(value: Any) -> Iterator[str]:
    """Yield all texts of a JSON value, names of its fields left out."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, str):
            yield found
        elif isinstance(found, Mapping):
            waiting += found.values()
        elif isinstance(found, list | tuple):
            waiting += found


def kept_checkpoints(journal: Iterable[Any]) -> list[str]:
    """Return the URIs of the checkpoints that a training keeps.

    They are the newest ones, as many as it says, that of its best epoch, and the newest one of a step after which its replicas were equal.
    """
    made = [value["payload"] for value in standing(journal, lambda value: value)]
    if not made:
        return []
    last = made[-1]
    keep, best_epoch = last["keep"], last.get("best_epoch")
    best = [payload for payload in made if best_epoch is not None and payload.get("epoch") == best_epoch][:1]
    # Those after the last comparison of the replicas may be withdrawn, all of them.
    compared = [payload for payload in made if payload.get("step", 0) <= last.get("compared_step", -1)][-1:]
    return [str(payload["uri"]) for payload in [*best, *compared, *made[-keep:]]]


def units(entries: Iterable[Listed], depth: int) -> list[Unit]:
    """Group files by the first `depth` parts of their keys."""
    found: dict[str, Unit] = {}
    for entry in entries:
        parts = entry.key.split("/")
        if len(parts) > depth:
            key = "/".join(parts[:depth])
            found.setdefault(key, Unit(key)).entries.append(entry)
    return list(found.values())


def grouped(entries: Iterable[Listed]) -> list[Unit]:
    """Group files of `TOPS` that stay or go together; one that is not recognised is in no group, and stays."""
    found: dict[str, Unit] = {}
    for entry in entries:
        parts, numbered = entry.key.split("/"), _NUMBERED.fullmatch(entry.key)
        if parts[0] != "refs":
            key = "/".join(parts[:3]) if len(parts) > 3 else None
        elif numbered is not None and parts[1] == "studies":
            # A study is one unit: its refs and the records of its trials.
            key = "/".join(parts[1:4])
        else:
            key = None if numbered is None else numbered["ref"]
        if key is not None:
            found.setdefault(key, Unit(key)).entries.append(entry)
    return list(found.values())


def heads(entries: Iterable[Listed]) -> list[str]:
    """Return the keys of the newest records of the refs among these files."""
    found: dict[str, str] = {}
    for entry in entries:
        if match := _NUMBERED.fullmatch(entry.key):
            found[match["ref"]] = max(entry.key, found.get(match["ref"], ""))
    return list(found.values())


RULES: Final[Mapping[str, Callable[[Marking, Unit], bool]]] = {
    "runs": Marking.is_in_use,
    "metrics": Marking.is_journal_in_use,
    "studies": Marking.is_in_use,
    "refs/snapshots": Marking.is_newest_snapshot,
    "refs/evaluations": lambda _marking, _unit: False,
    "refs/profiles": Marking.is_snapshot_kept,
}
"""What goes `KeepRules.runs` after its last change, to what keeps it all the same. All other refs stay. See docs/retention.md."""


def _is_checkpoint(value: Any) -> bool:
    return isinstance(value, dict) and value.get("kind") == "checkpoint" and isinstance(value.get("payload"), dict)
