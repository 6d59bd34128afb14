"""What a collection must keep regardless of its age: the roots of a ledger, or none."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol


class Roots(Protocol):
    """What has to stay by the ledger."""

    def identity(self) -> str | None:
        """Return the permanent identity of this ledger; None while it has no decision."""

    def uris(self) -> Collection[str]:
        """Return the URIs that the ledger needs."""

    def release(self, uris: Collection[str]) -> Collection[str]:
        """Note that these manifests are deleted next; return those that must stay after all."""


class NoRoots:
    """For a store without a ledger."""

    def identity(self) -> str | None:
        return None

    def uris(self) -> Collection[str]:
        return ()

    def release(self, uris: Collection[str]) -> Collection[str]:
        del uris
        return ()
