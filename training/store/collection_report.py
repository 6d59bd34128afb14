"""What a collection did, or would do: bytes by kind and verdict."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Tally:
    """Bytes of one kind."""

    kept: int = 0
    condemned: int = 0
    """Nothing reaches them; deleted by a later collection, after the grace period."""
    deleted: int = 0


@dataclass(slots=True)
class CollectionReport:
    """What a collection did, or would do."""

    by_kind: dict[str, Tally] = field(default_factory=dict)

    def add(self, kind: str, verdict: str, size_bytes: int) -> None:
        tally = self.by_kind.setdefault(kind, Tally())
        setattr(tally, verdict, getattr(tally, verdict) + size_bytes)

    def total(self, verdict: str) -> int:
        return sum(int(getattr(tally, verdict)) for tally in self.by_kind.values())
