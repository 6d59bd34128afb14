"""Chains of records: the only things that move, and only by compare-and-set.

A chain has a name in the store, and its newest record is its value: a ref below `refs/`, a run's, a work's lease and commits, its
launches. It consists of numbered, immutable records: record n + 1 is made by conditional create, so of two writers that both saw n
exactly one wins and the other gets an error. Local folders have no conditional overwrite, every storage has conditional create, so one
mechanism serves all of them; and a ref's history stays readable.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from training.errors import StoreError
from training.store import records
from training.store.bucket import Bucket

NUMBER_DIGITS: Final = 10
_NUMBERED: Final = re.compile(rf"(\d{{{NUMBER_DIGITS}}})\.json")
HINT: Final = "restore it from a backup, or delete it: the record before it is then the current one"


@dataclass(frozen=True, slots=True)
class ChainRecord:
    """A value of a chain, and its number from 1."""

    number: int
    value: Any


class Chain:
    """A named, moving value. Nothing there is record 0."""

    def __init__(self, bucket: Bucket, prefix: str, *, check: Callable[[Any], object] | None = None, hint: str = HINT) -> None:
        """Open a chain.

        Args:
            check: raises ValueError, KeyError or TypeError for a value that does not have the fields of this chain's.
            hint: what to do about a damaged record.
        """
        self._bucket = bucket
        self._prefix = prefix
        self._check = check
        self._hint = hint

    def head_number(self) -> int:
        """Return the newest record's number, 0 where there is none.

        Raises:
            StoreError: `record.foreign`, something else is among the records.
        """
        return max(self._numbers(), default=0)

    def read(self) -> ChainRecord | None:
        """Return the newest record, or None."""
        number = self.head_number()
        return None if number == 0 else self.at(number)

    def at(self, number: int) -> ChainRecord:
        """Return one record.

        Raises:
            StoreError: `object.missing`, `record.damaged` or `record.newer`.
        """
        key = self._key(number)
        uri = self._bucket.uri(key)
        value = records.decode(key, self._bucket.get(key), uri=uri, hint=self._hint)
        if self._check is not None:
            with records.readable(uri, hint=self._hint):
                self._check(value)
        return ChainRecord(number, value)

    def history(self, *, after: int = 0) -> list[ChainRecord]:
        """Return all records, or those after the record `after`, oldest first."""
        return [self.at(number) for number in self._numbers(after)]

    def move(self, value: Any, *, expected: int) -> bool:
        """Make record `expected + 1` with this JSON value; return False where another writer was faster.

        Two writers of equal values may both get True: a value that must have one writer contains the writer.
        """
        key = self._key(expected + 1)
        return self._bucket.create_own(key, records.encode(key, value))

    def begin(self, value: Any) -> bool:
        """Make the first record without a look for others, in one request; return False where it is there, whatever it holds."""
        key = self._key(1)
        return self._bucket.create(key, records.encode(key, value))

    def delete(self, *, before: int | None = None) -> None:
        """Delete the chain, or its records before a number. The oldest goes first, so that no earlier value becomes current."""
        for number in self._numbers():
            if before is None or number < before:
                self._bucket.delete(self._key(number), prune=True)

    def _numbers(self, after: int = 0) -> list[int]:
        numbers = []
        for entry in self._bucket.list(self._prefix, after=self._key(after) if after else None):
            found = _NUMBERED.fullmatch(entry.key.removeprefix(f"{self._prefix}/"))
            if found is None:
                message = f"{self._bucket.uri(entry.key)} is not a record of {self._bucket.uri(self._prefix)}"
                raise StoreError("record.foreign", message, hint="move it out of the store")
            numbers.append(int(found[1]))
        return sorted(numbers)

    def _key(self, number: int) -> str:
        return f"{self._prefix}/{number:0{NUMBER_DIGITS}d}.json"
