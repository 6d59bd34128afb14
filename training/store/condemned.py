"""The agreement between writers and the collector about what exists already: whichever is first, the other one knows.

A writer that finds an object in the store does not write it again, so the collector must not delete it before the writer's commit; the
object's age says nothing about that. Therefore:

- The collector marks what nothing reaches as condemned (`condemned/<key>/0000000001.json`) and deletes it a grace period later at the
  earliest, if nothing reaches it then.
- A writer looks for that mark before it relies on a key. Where it finds one, it makes the next record of the chain, "kept"; the collector
  makes the next record, "deleting", before it deletes. Records are made by conditional create, so exactly one of the two wins.
- A writer that finds "deleting" waits until the chain is deleted, and then writes the content as new.
- What a person has erased is marked "erased", at once and for good: the chain stays, and refuses every writer and reader.

A mark that comes after the writer's look is at least a grace period older than the deletion, and the collector looks for what is reachable
after it has read the mark's age: it sees the writer's commit. So the grace period must be longer than any stage takes from its first write
to its commit. Nothing here compares clocks of two machines.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, cast

from training.errors import StoreError
from training.store import records

if TYPE_CHECKING:
    from training.store.bucket import Bucket, OnPage

PREFIX: Final = "condemned"
TAKEOVER_SECONDS: Final = 900.0
"""After which a deletion under way is that of a collector that died: longer than a request to the storage and its retries take."""
POLL_SECONDS: Final = 0.2
HINT: Final = "delete this file: nothing is lost, the collector marks again what nothing reaches"
GONE: Final = ("object.missing", "artifact.erased")
"""Codes of errors about content that is not there."""
_NUMBERED: Final = re.compile(rf"{PREFIX}/(?P<key>.+)/(?P<number>\d{{10}})\.json")

State = Literal["condemned", "kept", "deleting", "erased"]


@dataclass(frozen=True, slots=True)
class CondemnedMark:
    """The chain of one key, as a listing shows it."""

    key: str
    head: int
    """Number of the newest record."""
    condemned_at: datetime | None
    """By the storage's clock; None where the chain has lost its first record and means nothing."""
    moved_at: datetime
    """When the newest record was made."""


class Condemned:
    """The marks of one bucket."""

    def __init__(self, bucket: Bucket, *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep) -> None:
        self._bucket = bucket
        self._clock = clock
        self._sleep = sleep

    def put(self, key: str, data: bytes) -> str:
        """Store what its key names, claimed, in place of other bytes that are there; return its URI. Raises as `claim`."""
        self.claim(key)
        if not self._bucket.create(key, data) and self._bucket.find(key) != data:
            self._bucket.replace(key, data)
        return self._bucket.uri(key)

    def claim(self, key: str) -> bool:
        """Make sure that what is stored at `key` (a key, or a work folder) is not deleted for a grace period.

        Call it before looking whether anything is there. Waits while a deletion is under way; takes over from a collector that died.

        Returns:
            Whether there was a mark: content that was read from the key before may be deleted.

        Raises:
            StoreError: `artifact.erased`.
        """
        if not self._bucket.exists(_key(key, 1)):
            return False
        seen_at = self._clock()
        while True:
            head = self._head(key)
            state = self._state(key, head)
            if state == "erased":
                raise _erased(self._bucket.uri(key))
            if state in (None, "kept"):
                return True
            if state == "condemned" or self._clock() - seen_at >= TAKEOVER_SECONDS:
                if self._move(key, "kept", expected=head):
                    return True
                continue
            self._sleep(POLL_SECONDS)

    def list(self, *, seen: OnPage | None = None) -> dict[str, CondemnedMark]:
        """Return all marks, by key.

        Args:
            seen: called with each page of the listing.
        """
        found: dict[str, CondemnedMark] = {}
        for entry in self._bucket.list(PREFIX, seen=seen):
            match = _NUMBERED.fullmatch(entry.key)
            if match is None:
                raise StoreError("record.foreign", f"{self._bucket.uri(entry.key)} is not a mark", hint="move it out of the store")
            key, number = match["key"], int(match["number"])
            known = found.get(key)
            condemned_at = entry.modified if number == 1 else known.condemned_at if known else None
            found[key] = CondemnedMark(key=key, head=number, condemned_at=condemned_at, moved_at=entry.modified)
        return found

    def condemn(self, key: str) -> None:
        """Mark a key that nothing reaches and that has no mark."""
        # The existence of the first record is all that counts: one that a power loss has emptied or dropped does no harm.
        self._bucket.put(_key(key, 1), b"{}\n")

    def take(self, mark: CondemnedMark) -> CondemnedMark | None:
        """Begin to delete a key; None where a writer has claimed it, or another collector was first."""
        if not self._move(mark.key, "deleting", expected=mark.head):
            return None
        return CondemnedMark(key=mark.key, head=mark.head + 1, condemned_at=mark.condemned_at, moved_at=mark.moved_at)

    def erase(self, key: str) -> None:
        """Mark a key whose content must not be stored again; the caller holds the lease of collections, and deletes the content next."""
        self.condemn(key)
        while self._state(key, head := self._head(key)) != "erased":
            self._move(key, "erased", expected=head)

    @contextmanager
    def naming_erased(self, key: str) -> Iterator[None]:
        """Say of content that is missing that it was erased, where it was.

        Raises:
            StoreError: `artifact.erased`.
        """
        try:
            yield
        except StoreError as err:
            if err.code == "object.missing" and self._state(key, self._head(key)) == "erased":
                raise _erased(self._bucket.uri(key)) from None
            raise

    def state(self, mark: CondemnedMark) -> State | None:
        """Return the newest state of a chain, None where the chain is deleted or has no first record."""
        return None if mark.condemned_at is None else self._state(mark.key, mark.head)

    def clear(self, mark: CondemnedMark) -> None:
        """Remove a key's chain: it is reached, claimed, or deleted. The first record goes first: without it a chain means nothing."""
        for number in range(1, mark.head + 1):
            self._bucket.delete(_key(mark.key, number), prune=True)

    def _head(self, key: str) -> int:
        names = [entry.key.rsplit("/", 1)[-1] for entry in self._bucket.list(f"{PREFIX}/{key}")]
        return max((int(name.removesuffix(".json")) for name in names if re.fullmatch(r"\d{10}\.json", name)), default=0)

    def _state(self, key: str, head: int) -> State | None:
        if head <= 1:
            return "condemned" if head else None
        name = _key(key, head)
        data = self._bucket.find(name)
        if data is None:
            return None
        with records.readable(self._bucket.uri(name), hint=HINT):
            state = records.decode(name, data, uri=self._bucket.uri(name), hint=HINT)["state"]
            if state not in ("kept", "deleting", "erased"):
                raise ValueError("its state is neither kept, deleting nor erased")
            return cast("State", state)

    def _move(self, key: str, state: State, *, expected: int) -> bool:
        name = _key(key, expected + 1)
        return self._bucket.create_own(name, records.encode(name, {"state": state, "nonce": secrets.token_hex(8)}))


def _key(key: str, number: int) -> str:
    return f"{PREFIX}/{key}/{number:010d}.json"


def _erased(uri: str) -> StoreError:
    hint = "rows of it were erased on a person's order (docs/retention.md): remove them from the source, then run the pipeline again"
    return StoreError("artifact.erased", f"{uri} was erased, and is not stored again", hint=hint)
