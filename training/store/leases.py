"""One writer per work: leases with epochs, and the fence that refuses a writer whose time is over.

Lease changes and commits go through one chain, that of the work: a record is made by conditional create at the
number after the last one its writer has seen. A take-over is a record too, so the commit of a writer that was taken
over lands on a number that exists and is refused, however late it comes. (The shared-log construction of, for
instance, Balakrishnan et al., "CORFU", NSDI 2012, with the object store as the log.)
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from training.contracts import JsonObject
from training.errors import LeaseHeldError, LeaseLostError, StoreError, UnavailableError
from training.process.running_time import AwakeClock
from training.store.chains import Chain, ChainRecord
from training.store.work_folder import WorkFolder

COMMIT: Final = "commit"
"""Kind of an attempt's last record, which holds the result that it then makes. With both the lease is free."""
LEASE_TTL_SECONDS: Final = 15.0
"""A holder whose heartbeat has not changed for so long, while the observer was awake and looked, counts as dead."""


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """The present or last holder of a work's lease."""

    epoch: int
    owner: str
    attempt_id: str
    has_committed: bool
    """Its result may still be on the way."""


class Lease:
    """The right to write in one work folder, held by one attempt in one epoch."""

    def __init__(self, work_folder: WorkFolder, *, epoch: int, owner: str, attempt_id: str, earlier: list[ChainRecord]) -> None:
        self._work_folder = work_folder
        self._chain = work_folder.chain()
        self._head = (earlier[-1].number if earlier else 0) + 1
        self._has_committed = False
        # The heartbeat checks while a checkpoint thread commits: a commit seen between its two halves looks foreign.
        self._lock = threading.Lock()
        self.epoch = epoch
        self.owner = owner
        self.attempt_id = attempt_id
        self.is_restart = any(record.value["kind"] == "lease" and record.value["attempt_id"] == attempt_id for record in earlier)
        """An earlier start of the same attempt has held the lease: a queue took the nodes of its Job, and gave them back."""
        commits = [record.value["payload"] for record in earlier if record.value["kind"] == COMMIT]
        self.committed: JsonObject | None = commits[-1] if commits else None
        """The result that an earlier attempt committed. Its file may be missing."""

    @classmethod
    def acquire(cls, work_folder: WorkFolder, *, owner: str, attempt_id: str, takeover_epoch: int = 0) -> Lease:
        """Take the lease: free, done, our own task's older attempt, or one whose epoch was seen dead.

        Args:
            owner: equal for all attempts of one task instance; a newer attempt takes over from an older one at once.
            takeover_epoch: epoch whose holder an observer saw dead (`HolderWatch`), 0 for none.

        Raises:
            LeaseHeldError: `lease.held`, another owner's attempt is alive as far as anyone knows.
        """
        work_folder.claim()
        chain = work_folder.chain()
        while True:
            records = chain.history()
            holder = _holder_of(records)
            if holder and holder.owner != owner and holder.epoch != takeover_epoch and not _is_done(work_folder, holder):
                raise LeaseHeldError(
                    "lease.held",
                    f"{work_folder.uri} is being worked on by {holder.owner} (attempt {holder.attempt_id}, epoch {holder.epoch})",
                )
            epoch = (holder.epoch if holder else 0) + 1
            head = records[-1].number if records else 0
            # Two processes of one attempt, a pod and its replacement, would write the same bytes, and both find that they won.
            record = {"kind": "lease", "epoch": epoch, "owner": owner, "attempt_id": attempt_id, "nonce": secrets.token_hex(8)}
            if chain.move(record, expected=head):
                return cls(work_folder, epoch=epoch, owner=owner, attempt_id=attempt_id, earlier=records)

    def commit(self, kind: str, payload: Mapping[str, object]) -> None:
        """Append one record (`checkpoint`, `COMMIT`) in this lease's name.

        Raises:
            LeaseLostError: `lease.lost`, a newer attempt took over; the record was not made.
        """
        record = {"kind": kind, "epoch": self.epoch, "attempt_id": self.attempt_id, "payload": dict(payload)}
        with self._lock:
            while not self._chain.move(record, expected=self._head):
                head = self._head
                if record in self._adopt_own():
                    break
                if self._head == head:
                    message = f"{self._work_folder.uri}/journal refuses record {head + 1} as existing, and does not list it"
                    raise UnavailableError("storage.conflict", message)
            else:
                self._head += 1
            self._has_committed = kind == COMMIT

    def check(self) -> None:
        """Raise LeaseLostError if a newer attempt took over. Cheap while nothing happened: one listing.

        After `COMMIT` it never does: the work is finished, and its result may still be the first one.
        """
        with self._lock:
            if not self._has_committed:
                self._adopt_own()

    def _adopt_own(self) -> list[Any]:
        """Continue after records of this lease that were made although their writer got the error that the storage does not answer.

        An epoch has one holder, so what is in this one's name was written by it.

        Raises:
            LeaseLostError: `lease.lost`, there is another writer's record.
        """
        try:
            records = self._chain.history(after=self._head)
        except StoreError as err:
            # Written by another process: what it says cannot be read, perhaps because a later version wrote it.
            message = f"{self._work_folder.uri}/journal has a record after {self._head} that cannot be read, so this attempt stops: {err}"
            raise LeaseLostError("lease.lost", message) from err
        for record in records:
            if record.value["epoch"] != self.epoch or record.value["kind"] == "lease":
                self._raise_lost(records)
            self._head = record.number
        return [record.value for record in records]

    def _raise_lost(self, records: list[ChainRecord]) -> NoReturn:
        holder = _holder_of(records)
        who = f"{holder.owner} (attempt {holder.attempt_id}, epoch {holder.epoch})" if holder else "another writer"
        message = f"{self._work_folder.uri} was taken over from epoch {self.epoch} by {who}; this attempt's commits are refused"
        raise LeaseLostError("lease.lost", message, details={"new_attempt_id": holder.attempt_id if holder else ""})


class HolderWatch:
    """Watches another holder's heartbeat by the local clock, so that clocks need not agree.

    Time in which this process was stopped does not count: after a machine has slept, its holders get a whole lifetime for their next
    heartbeat.
    """

    def __init__(
        self,
        work_folder: WorkFolder,
        *,
        owner: str,
        ttl_seconds: float = LEASE_TTL_SECONDS,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._work_folder = work_folder
        self._chain = work_folder.chain()
        self._owner = owner
        self._ttl_seconds = ttl_seconds
        self._clock = clock or AwakeClock()
        self._seen: tuple[int, bytes | None] | None = None
        self._seen_at = 0.0
        self._holder: LeaseHolder | None = None
        self.known = 0
        """Number of the newest chain record that the last poll saw, 0 for none."""

    def poll(self) -> tuple[LeaseHolder | None, int]:
        """Return (the live foreign holder or None, the epoch that may be taken over or 0)."""
        # Records never change: what was read once is known, and a poll lists what is new.
        for record in self._chain.history(after=self.known):
            self._holder, self.known = _holder_after(self._holder, record), record.number
        holder = self._holder
        if holder is None or holder.owner == self._owner or _is_done(self._work_folder, holder):
            return None, 0
        beat = (holder.epoch, self._work_folder.heartbeat(holder.attempt_id))
        now = self._clock()
        if beat != self._seen:
            self._seen, self._seen_at = beat, now
        if now - self._seen_at >= self._ttl_seconds:
            return None, holder.epoch
        return holder, 0


def holder_of(chain: Chain) -> LeaseHolder | None:
    """Return the last holder that a chain names, or None."""
    return _holder_of(chain.history())


def _is_done(work_folder: WorkFolder, holder: LeaseHolder) -> bool:
    """Return whether a holder has made its result: between its commit and that, another attempt would do the same work again."""
    if not holder.has_committed:
        return False
    result = work_folder.committed()
    return result is not None and result.attempts == holder.epoch


def _holder_of(records: list[ChainRecord]) -> LeaseHolder | None:
    holder: LeaseHolder | None = None
    for record in records:
        holder = _holder_after(holder, record)
    return holder


def _holder_after(holder: LeaseHolder | None, record: ChainRecord) -> LeaseHolder | None:
    value = record.value
    if value["kind"] == "lease":
        return LeaseHolder(value["epoch"], value["owner"], value["attempt_id"], has_committed=False)
    if value["kind"] == COMMIT and holder is not None and value["epoch"] == holder.epoch:
        return LeaseHolder(holder.epoch, holder.owner, holder.attempt_id, has_committed=True)
    return holder
