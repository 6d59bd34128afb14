"""What a collection did, or would do: bytes by kind and state, and the table of them."""

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

    def add(self, kind: str, state: str, size_bytes: int) -> None:
        tally = self.by_kind.setdefault(kind, Tally())
        setattr(tally, state, getattr(tally, state) + size_bytes)

    def total(self, state: str) -> int:
        return sum(int(getattr(tally, state)) for tally in self.by_kind.values())

    def lines(self, *, dry_run: bool) -> list[str]:
        """Return the table for people, in MB."""
        columns = ("kind", "kept", "to be deleted later", "would be deleted now" if dry_run else "deleted")
        every = Tally(*(self.total(state) for state in ("kept", "condemned", "deleted")))
        rows: list[tuple[str, ...]] = [columns]
        for kind, tally in [*sorted(self.by_kind.items(), key=lambda item: -item[1].kept), ("all", every)]:
            rows.append((kind, *(f"{size_bytes / 1e6:,.2f} MB" for size_bytes in (tally.kept, tally.condemned, tally.deleted))))
        widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
        return [
            "  ".join([row[0].ljust(widths[0]), *(cell.rjust(wide) for cell, wide in zip(row[1:], widths[1:], strict=True))])
            for row in rows
        ]
