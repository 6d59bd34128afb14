"""Refs: the only things that move, and only by compare-and-set.

A ref is a chain of numbered, immutable revisions: revision n + 1 is made by conditional create, so of two writers
that both saw n exactly one wins and the other is told. Local folders have no conditional overwrite, every storage
has conditional create, so one mechanism serves all of them; and a ref's history stays readable.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from training.contracts import canonical_json
from training.store.objects import Bucket

REVISION_DIGITS = 10


@dataclass(frozen=True, slots=True)
class Revision:
    """A value of a ref, and its number from 1."""

    number: int
    value: Any


class Ref:
    """A named, moving value. Nothing there is revision 0."""

    def __init__(self, bucket: Bucket, prefix: str) -> None:
        self._bucket = bucket
        self._prefix = prefix

    def head_number(self) -> int:
        """Return the newest revision's number, 0 where there is none."""
        entries = self._bucket.list(self._prefix)
        return int(entries[-1].key.rsplit("/", 1)[-1].removesuffix(".json")) if entries else 0

    def read(self) -> Revision | None:
        """Return the newest revision, or None."""
        number = self.head_number()
        return None if number == 0 else self.at(number)

    def at(self, number: int) -> Revision:
        """Return one revision.

        Raises:
            DataError: `object.missing`.
        """
        return Revision(number, json.loads(self._bucket.get(self._key(number))))

    def history(self) -> list[Revision]:
        """Return all revisions, oldest first."""
        numbers = (int(e.key.rsplit("/", 1)[-1].removesuffix(".json")) for e in self._bucket.list(self._prefix))
        return [self.at(number) for number in numbers]

    def move(self, value: Any, *, expected: int) -> bool:
        """Make revision `expected + 1` with this JSON value; say whether it was us (False: someone moved it first).

        Two writers of equal values may both be told that it was them: a value that must have one writer says who wrote it.
        """
        return self._bucket.create_own(self._key(expected + 1), canonical_json(value))

    def _key(self, number: int) -> str:
        return f"{self._prefix}/{number:0{REVISION_DIGITS}d}.json"
