"""What was found about MLflow's aliases that the ledger did not do: kept in the database until it ends, and announced. SQLAlchemy only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from training.database.connect import connect, database_faults
from training.database.schema import RegistryFinding
from training.registry.ledger.entries import with_zone

Kind = Literal["former_champion", "not_decided", "missing"]
"""The alias serves an earlier champion, and stays for a day; it served what the ledger never decided, and was set back; the version that
the ledger names cannot be served."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
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


class Findings:
    """The findings of one database."""

    def __init__(self, database_url: str | None = None) -> None:
        """Open the database; None: the installation's."""
        self._engine = connect(database_url)

    def open(self, model: str) -> list[Finding]:
        """Return what has not ended about a model, oldest first.

        Raises:
            UnavailableError: `database.unavailable`.
        """
        with database_faults(), Session(self._engine) as session:
            rows = select(RegistryFinding).where(RegistryFinding.model == model, RegistryFinding.ended_at.is_(None))
            return [_finding(row) for row in session.scalars(rows.order_by(RegistryFinding.id))]

    def see(self, model: str, alias: str, kind: Kind, *, served: str, words: str, now: datetime) -> Finding:
        """Note what is found; the same one that is open already stays the first."""
        with database_faults(), Session(self._engine) as session, session.begin():
            same = select(RegistryFinding).where(RegistryFinding.model == model, RegistryFinding.alias == alias)
            same = same.where(RegistryFinding.ended_at.is_(None), RegistryFinding.kind == kind, RegistryFinding.served == served)
            row = session.scalar(same.order_by(RegistryFinding.id))
            if row is None:
                row = RegistryFinding(model=model, alias=alias, kind=kind, served=served, first_seen_at=now)
                session.add(row)
            row.words = words
            session.flush()
            return _finding(row)

    def end(self, model: str, *, now: datetime, but: Sequence[int] = ()) -> None:
        """Note that all findings of a model have ended, except those of these numbers."""
        ended = update(RegistryFinding).where(RegistryFinding.model == model, RegistryFinding.ended_at.is_(None))
        with database_faults(), Session(self._engine) as session, session.begin():
            session.execute(ended.where(RegistryFinding.id.not_in(but)).values(ended_at=now))

    def to_announce(self) -> list[Finding]:
        """Return what an alert is due for, of all models: what is open, each time, and what ended before any alert was sent."""
        with database_faults(), Session(self._engine) as session:
            due = RegistryFinding.ended_at.is_(None) | RegistryFinding.announced_at.is_(None)
            return [_finding(row) for row in session.scalars(select(RegistryFinding).where(due).order_by(RegistryFinding.id))]

    def note_announced(self, numbers: Sequence[int], *, now: datetime) -> None:
        """Note that alerts were sent."""
        with database_faults(), Session(self._engine) as session, session.begin():
            session.execute(update(RegistryFinding).where(RegistryFinding.id.in_(numbers)).values(announced_at=now))


def open_served(session: Session, model: str) -> set[str]:
    """Return the weights that MLflow's aliases of a model serve instead of the ledger's: they are in use, so they stay."""
    rows = select(RegistryFinding.served).where(RegistryFinding.model == model, RegistryFinding.ended_at.is_(None))
    return {served for served in session.scalars(rows) if served}


def _finding(row: RegistryFinding) -> Finding:
    return Finding(
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
