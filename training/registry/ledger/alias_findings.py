"""What was found about MLflow's aliases that the ledger did not do: kept in the database until it ends, and announced. SQLAlchemy only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from training.database.connect import connect, reading, with_zone, writing
from training.database.schema import RegistryFindingRow

Kind = Literal["former_champion", "not_decided", "missing"]
"""The alias serves an earlier champion, and stays for a day; it served what the ledger never decided, and was set back; the version that
the ledger names cannot be served."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedFinding:
    """An alias that does not serve what the ledger says."""

    number: int
    model: str
    alias: str
    kind: str
    served: str
    """Digest of the weights that it serves; empty: none, or weights that the ledger does not know."""
    words: str
    """What it serves, what the ledger says, and what to do."""
    first_seen_at: datetime
    ended_at: datetime | None
    announced_at: datetime | None


class RecordedFindings:
    """The findings of one database."""

    def __init__(self, database_url: str | None = None) -> None:
        """Open the database; None: the installation's."""
        self._engine = connect(database_url)

    def open(self, model: str) -> list[RecordedFinding]:
        """Return what has not ended about a model, oldest first.

        Raises:
            UnavailableError: `database.unavailable`.
        """
        with reading(self._engine) as session:
            rows = select(RegistryFindingRow).where(RegistryFindingRow.model == model, RegistryFindingRow.ended_at.is_(None))
            return [_finding(row) for row in session.scalars(rows.order_by(RegistryFindingRow.id))]

    def see(self, model: str, alias: str, kind: Kind, *, served: str, words: str, now: datetime) -> RecordedFinding:
        """Note what is found; the same one that is open already stays the first."""
        with writing(self._engine) as session:
            same = select(RegistryFindingRow).where(RegistryFindingRow.model == model, RegistryFindingRow.alias == alias)
            same = same.where(RegistryFindingRow.ended_at.is_(None), RegistryFindingRow.kind == kind, RegistryFindingRow.served == served)
            row = session.scalar(same.order_by(RegistryFindingRow.id))
            if row is None:
                row = RegistryFindingRow(model=model, alias=alias, kind=kind, served=served, first_seen_at=now)
                session.add(row)
            row.words = words
            session.flush()
            return _finding(row)

    def end(self, model: str, *, now: datetime, but: Sequence[int] = ()) -> None:
        """Note that all findings of a model have ended, except those of these numbers."""
        ended = update(RegistryFindingRow).where(RegistryFindingRow.model == model, RegistryFindingRow.ended_at.is_(None))
        with writing(self._engine) as session:
            session.execute(ended.where(RegistryFindingRow.id.not_in(but)).values(ended_at=now))

    def to_announce(self) -> list[RecordedFinding]:
        """Return what an alert is due for, of all models: what is open, each time, and what ended before any alert was sent."""
        with reading(self._engine) as session:
            due = RegistryFindingRow.ended_at.is_(None) | RegistryFindingRow.announced_at.is_(None)
            return [_finding(row) for row in session.scalars(select(RegistryFindingRow).where(due).order_by(RegistryFindingRow.id))]

    def note_announced(self, numbers: Sequence[int], *, now: datetime) -> None:
        """Note that alerts were sent."""
        with writing(self._engine) as session:
            session.execute(update(RegistryFindingRow).where(RegistryFindingRow.id.in_(numbers)).values(announced_at=now))


def open_served(session: Session, model: str) -> set[str]:
    """Return the weights that MLflow's aliases of a model serve instead of the ledger's: they are in use, so they stay."""
    rows = select(RegistryFindingRow.served).where(RegistryFindingRow.model == model, RegistryFindingRow.ended_at.is_(None))
    return {served for served in session.scalars(rows) if served}


def _finding(row: RegistryFindingRow) -> RecordedFinding:
    return RecordedFinding(
        number=row.id,
        model=row.model,
        alias=row.alias,
        kind=row.kind,
        served=row.served,
        words=row.words,
        first_seen_at=with_zone(row.first_seen_at),
        ended_at=None if row.ended_at is None else with_zone(row.ended_at),
        announced_at=None if row.announced_at is None else with_zone(row.announced_at),
    )
