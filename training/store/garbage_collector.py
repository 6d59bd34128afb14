"""Deletes what is no longer needed: mark and sweep, one collector at a time, safe to kill at any step.

Expired runs, refs and studies go at once, attempts likewise: no process takes them up by name. Work folders, manifests and objects are
first condemned (`training.store.condemned`) and deleted by a later collection. What leads somewhere goes before what it leads to: a work
folder before its artifacts, a manifest before its objects.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

from training.errors import LeaseHeldError, LeaseLostError, NightshiftError, StoreError
from training.store import Store
from training.store.bucket import Listed
from training.store.chains import Chain
from training.store.collection_report import CollectionReport
from training.store.condemned import TAKEOVER_SECONDS, Condemned, CondemnedMark
from training.store.reachability import KeepRules, Marked, Marking, Unit, units
from training.store.scan_progress import INTERVAL_SECONDS, ProgressCounter, Say

CLOCK_KEY: Final = "collector/clock"
LEDGER: Final = "collector/ledger"
"""Ref to the identity of the one ledger whose models are in this store."""
LEASE: Final = "collector/runs"
BEAT_SECONDS: Final = 60.0
DEAD_SECONDS: Final = 900.0
"""A collector whose last sign of life is older counts as dead."""
KEPT_LEASE_ENTRIES: Final = 20
MAX_CLOCK_DIFFERENCE: Final = timedelta(minutes=15)
"""Between the storage's clock and this machine's. With more, one of them is wrong, and ages of refs and runs mean nothing. S3 refuses
requests whose time differs by more than that, too."""
PROBE_AGE: Final = timedelta(days=1)
SHOWN_PROBLEMS: Final = 20


class Roots(Protocol):
    """What has to stay by the ledger, regardless of its age."""

    def identity(self) -> str | None:
        """Return the permanent identity of this ledger; None while it has no decision."""

    def uris(self) -> Collection[str]:
        """Return the URIs that the ledger needs."""

    def release(self, uris: Collection[str]) -> Collection[str]:
        """Note that these manifests are deleted next; return those that must stay after all."""


class Collector:
    """Collections of one store."""

    def __init__(
        self,
        store: Store,
        rules: KeepRules,
        roots: Roots,
        *,
        say: Say | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Prepare the collections.

        Args:
            roots: of the ledger whose models are in this store.
            say: gets a line of progress every 30 s.
            clock: seconds, for the lease.
            now: this machine's clock, which the storage's is compared with.
        """
        self._store = store
        self._say = say
        self._wall_clock = now
        self._interval_seconds = INTERVAL_SECONDS
        self._progress = ProgressCounter()
        self._is_dry = False
        self._bucket = store.bucket
        self._rules = rules
        self._roots = roots
        self._condemned = Condemned(store.bucket)
        self._marks: dict[str, CondemnedMark] = {}
        """Of what was not looked at yet."""
        self._lease = Chain(store.bucket, LEASE)
        self._clock = clock
        self._head = 0
        self._beat_at = 0.0
        self._report = CollectionReport()
        self._now = now()

    def last_done(self) -> datetime | None:
        """Return when the last collection ended well, by the storage's clock."""
        entries = self._bucket.list(LEASE)
        for entry in reversed(entries):
            if self._lease.at(int(entry.key[-15:-5])).value.get("state") == "done":
                return entry.modified
        return None

    def collect(self, *, dry_run: bool = False) -> CollectionReport:
        """Delete what the rules allow, and mark what is deleted next; return bytes by kind.

        Args:
            dry_run: write and delete nothing.

        Raises:
            LeaseHeldError: `retention.running`, another collector is at work.
            LeaseLostError: `retention.lost`, another one took this one for dead.
            StoreError: nothing was deleted: `retention.unreadable`, a record cannot be read, which may reference anything;
                `retention.other_ledger`, the decisions about the models in this store are in another database; `retention.clock`, the
                storage's clock and this machine's differ by more than 15 minutes.
            UnavailableError: the storage or the ledger does not answer.
        """
        self._report = CollectionReport()
        self._is_dry = dry_run
        self._progress = ProgressCounter(self._say, interval_seconds=self._interval_seconds)
        with self._progress:
            return self._collect()

    def _collect(self) -> CollectionReport:
        if self._is_dry:
            self._look_and_sweep()
            return self._report
        with self.alone("done"):
            self._look_and_sweep()
        return self._report

    @contextmanager
    def alone(self, outcome: str) -> Iterator[Callable[[], None]]:
        """Hold the lease of collections, which ends with `outcome`; yield what has to be called before each deletion.

        Raises:
            LeaseHeldError: `retention.running`.
            LeaseLostError: `retention.lost`, also by what it yields.
            StoreError: `retention.clock`.
        """
        self._begin()
        try:
            yield self._check
        except LeaseLostError:
            raise
        except NightshiftError:
            # The lease is given back, so that the next try does not have to wait until it counts as dead.
            self._end("failed")
            raise
        self._end(outcome)

    def _look_and_sweep(self) -> None:
        # The marks first: a writer that relied on something before it was marked has committed by now, and the look below sees that.
        self._check_ledger()
        self._marks = self._condemned.list(seen=self._seen)
        found = Marking(self._store, self._rules, now=self._now, roots=self._roots.uris(), seen=self._seen).look()
        if found.problems:
            lines = [f"{err}" for err in found.problems[:SHOWN_PROBLEMS]]
            message = f"{len(found.problems)} records cannot be read, so nothing was deleted: " + "; ".join(lines)
            raise StoreError("retention.unreadable", message, hint="repair, restore or delete the named files")
        contents = [entry for top in ("manifests", "objects", "reports") for entry in self._bucket.list(top, seen=self._seen)]
        self._note_kinds(found, contents)
        # Refs are deleted before anything that they reference is condemned.
        for unit in found.kept:
            self._report.add(_kind_of_unit(unit), "kept", unit.size_bytes)
        for unit in [*found.expired, *found.expired_attempts]:
            self._drop(unit, _kind_of_unit(unit))
        spared = sum(unit.size_bytes for unit in found.expired_attempts)
        for unit in found.kept_work_folders:
            self._keep(unit.key, "stages", unit.size_bytes)
        self._report.add("stages", "kept", -spared)
        self._condemn([(unit, "stages") for unit in found.expired_work_folders])
        for prefix in ("manifests/", "objects/", "reports/"):
            entries = [entry for entry in contents if entry.key.startswith(prefix)]
            for entry in entries:
                if entry.key in found.reached:
                    self._keep(entry.key, _kind_of(found, entry), entry.size_bytes)
            self._condemn([(Unit(entry.key, [entry]), _kind_of(found, entry)) for entry in entries if entry.key not in found.reached])
        for mark in self._marks.values():
            # Of what is not there any more.
            if mark.head == 1 or (self._is_abandoned(mark) and self._condemned.state(mark) != "erased"):
                self._clear(mark)
        self._sweep_small({entry.key for entry in contents})

    def _check_ledger(self) -> None:
        """Refuse to collect by a ledger that does not know the champions of this store: all of them would be deleted."""
        ref, identity = Chain(self._bucket, LEDGER), self._roots.identity()
        owner = ref.read()
        if owner is None and identity is not None:
            if self._is_dry or ref.move(identity, expected=0):
                return
            owner = ref.read()
        if owner.value == identity if owner else not self._has_promotions():
            return
        database = "is empty" if identity is None else "is another one"
        message = f"the ledger with the decisions about the models in {self._bucket.root_uri} is required, this ledger {database}"
        hint = "name that ledger (NIGHTSHIFT_DATABASE), or give each installation its own store (NIGHTSHIFT_STORE)"
        if owner is not None:
            hint += f"; if this ledger replaces that one for good, delete {self._bucket.uri(LEDGER)}"
        raise StoreError("retention.other_ledger", f"{message}; nothing was deleted", hint=hint)

    def _has_promotions(self) -> bool:
        """Return whether a stage `promote` was done here: each leaves a decision in the ledger."""
        found = (entry for pipeline in self._bucket.folders("stages") for entry in self._bucket.list(f"stages/{pipeline}/promote"))
        return any(entry.key.endswith("/_RESULT.json") for entry in found)

    def _note_kinds(self, found: Marked, contents: Iterable[Listed]) -> None:
        """Also find the kinds of what nothing reaches, for the report alone."""
        for entry in contents:
            if not entry.key.startswith("manifests/") or entry.key in found.reached:
                continue
            self._seen([])
            try:
                manifest = self._store.manifests.get(self._bucket.uri(entry.key))
            except (StoreError, ValueError, KeyError, TypeError):
                continue
            for file in manifest.files.values():
                found.kind_of.setdefault(self._store.objects.key(file.digest), manifest.kind)

    def _sweep_small(self, contents: set[str]) -> None:
        """Delete marks of altered objects that were deleted, old probes, and files of killed writers."""
        digests = {key.rsplit("/", 1)[-1] for key in contents}
        altered = [Unit(entry.key, [entry]) for entry in self._bucket.list("altered")]
        gone = [unit for unit in altered if unit.key.rsplit("/", 1)[-1] not in digests]
        gone += [unit for unit in units(self._bucket.list("probe"), 2) if unit.newest < self._now - PROBE_AGE]
        for unit in gone:
            self._drop(unit, "marks")
        _, size_bytes = self._bucket.delete_leftovers(self._rules.grace.total_seconds(), dry_run=self._is_dry)
        self._report.add("leftovers of killed writers", "deleted", size_bytes)

    def _keep(self, key: str, kind: str, size_bytes: int) -> None:
        self._report.add(kind, "kept", size_bytes)
        mark = self._marks.pop(key, None)
        if mark is not None and self._condemned.state(mark) != "erased":
            self._clear(mark)

    def _drop(self, unit: Unit, kind: str) -> None:
        """Delete files that stay or go together; `_RESULT.json` first, and records of chains oldest first."""
        self._report.add(kind, "deleted", unit.size_bytes)
        if self._is_dry:
            return
        for key in sorted((entry.key for entry in unit.entries), key=lambda key: (not key.endswith("/_RESULT.json"), key)):
            self._check()
            self._bucket.delete(key, prune=True)
            self._progress.num_deleted += 1

    def _condemn(self, items: list[tuple[Unit, str]]) -> None:
        """Condemn units that nothing reaches, and delete those whose grace period is over.

        Args:
            items: [(work folder, manifest or object; kind)].
        """
        due = {unit.key for unit, _ in items if (mark := self._marks.get(unit.key)) is not None and self._is_due(mark)}
        manifests = [self._bucket.uri(key) for key in due if key.startswith("manifests/")]
        stay = {self._bucket.key(uri) for uri in self._roots.release(manifests)} if manifests and not self._is_dry else set()
        for unit, kind in items:
            mark = self._marks.pop(unit.key, None)
            if unit.key in due and unit.key not in stay and mark is not None and self._delete(mark, unit, kind):
                continue
            self._report.add(kind, "condemned", unit.size_bytes)
            if self._is_dry:
                continue
            self._check()
            if mark is None:
                self._condemned.condemn(unit.key)
            elif mark.condemned_at is None or self._condemned.state(mark) == "kept":
                # A writer has claimed it: if nothing reaches it at the next collection either, it is condemned again.
                self._clear(mark)

    def _delete(self, mark: CondemnedMark, unit: Unit, kind: str) -> bool:
        """Delete a unit whose grace period is over, unless a writer has claimed it; return whether it was deleted."""
        if self._is_dry:
            self._drop(unit, kind)
            return True
        self._check()
        state = self._condemned.state(mark)
        if state == "erased":
            # By a process that was killed before it had deleted it.
            self._drop(unit, kind)
            return True
        if state == "kept" or (state == "deleting" and not self._is_abandoned(mark)):
            return False
        taken = self._condemned.take(mark)
        if taken is None:
            return False
        self._drop(unit, kind)
        self._condemned.clear(taken)
        return True

    def _clear(self, mark: CondemnedMark) -> None:
        if not self._is_dry:
            self._check()
            self._condemned.clear(mark)

    def _seen(self, entries: list[Listed]) -> None:
        """Count a page of a listing, or, where it is empty, a record; show a sign of life: a look may take longer than a dead one is
        waited for."""
        self._progress.num_objects += len(entries)
        self._progress.size_bytes += sum(entry.size_bytes for entry in entries)
        self._progress.num_records += not entries
        if not self._is_dry:
            self._check()

    def _is_due(self, mark: CondemnedMark) -> bool:
        """Return whether a mark is older than the grace period."""
        return mark.condemned_at is not None and mark.condemned_at <= self._now - self._rules.grace

    def _is_abandoned(self, mark: CondemnedMark) -> bool:
        """Return whether the collector that began to delete a key died long ago."""
        return mark.moved_at <= self._now - timedelta(seconds=TAKEOVER_SECONDS)

    def _begin(self) -> None:
        self._read_clock()
        head = self._lease.read()
        if head is not None and head.value.get("state") in ("begun", "alive"):
            age = self._now - max((entry.modified for entry in self._bucket.list(LEASE)), default=self._now)
            if age < timedelta(seconds=DEAD_SECONDS):
                seconds = round(DEAD_SECONDS - age.total_seconds())
                message = f"another collection of {self._bucket.root_uri} is under way"
                raise LeaseHeldError("retention.running", message, hint=f"wait until it ends; if it died, for {seconds} s")
        self._head = head.number if head else 0
        self._move("begun")

    def _read_clock(self) -> None:
        """Take the time from an object that is written now: ages are by the storage's own clock, which must not have jumped.

        Raises:
            StoreError: `retention.clock`.
        """
        earliest = self._wall_clock()
        self._bucket.put(CLOCK_KEY, b"")
        self._now = max(entry.modified for entry in self._bucket.list(CLOCK_KEY.split("/", 1)[0]) if entry.key == CLOCK_KEY)
        latest = self._wall_clock()
        if earliest - MAX_CLOCK_DIFFERENCE <= self._now <= latest + MAX_CLOCK_DIFFERENCE:
            return
        minutes = MAX_CLOCK_DIFFERENCE // timedelta(minutes=1)
        message = f"the clock of {self._bucket.root_uri} shows {self._now:%Y-%m-%d %H:%M} UTC, this machine's {latest:%Y-%m-%d %H:%M} UTC"
        hint = "set the wrong clock, then collect again: by a wrong one, runs in use look old"
        raise StoreError("retention.clock", f"{message}; they may differ by {minutes} minutes; nothing was deleted", hint=hint)

    def _check(self) -> None:
        """Show a sign of life where it is time for one; while looking, and before each deletion.

        Raises:
            LeaseLostError: `retention.lost`.
        """
        if self._clock() - self._beat_at >= BEAT_SECONDS:
            self._move("alive")

    def _move(self, state: str, **facts: Any) -> None:
        if not self._lease.move({"state": state, "nonce": secrets.token_hex(8), **facts}, expected=self._head):
            if state == "begun":
                raise LeaseHeldError("retention.running", f"another collection of {self._bucket.root_uri} has just begun")
            raise LeaseLostError("retention.lost", f"another collection of {self._bucket.root_uri} took this one for dead")
        self._head += 1
        self._beat_at = self._clock()

    def _end(self, state: str) -> None:
        self._move(state, deleted_bytes=self._report.total("deleted"))
        self._lease.delete(before=self._head - KEPT_LEASE_ENTRIES)


def _kind_of(found: Marked, entry: Listed) -> str:
    return "manifests" if entry.key.startswith("manifests/") else found.kind_of.get(entry.key, "reports and specs")


def _kind_of_unit(unit: Unit) -> str:
    top = unit.key.partition("/")[0]
    return "attempts" if top == "stages" else top
