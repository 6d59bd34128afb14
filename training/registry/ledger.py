"""The ledger: append-only decisions, and each model's standing, moved by compare-and-set. SQLAlchemy only: operators read it too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from training.contracts import canonical_json, sha256_hex
from training.errors import DeniedError
from training.tables.connect import connect, database_faults
from training.tables.schema import LedgerDecision, ModelStanding


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """A model's champion."""

    model: str
    version: str
    weights_digest: str
    model_uri: str
    """The model artifact's manifest in the store."""
    as_of: str
    bounds: Mapping[str, Any]
    """Split to [start, end] of the rows it was made with."""
    revision: int = 0
    """How often the standing has moved; 0 for one that is not written yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One decision."""

    model: str
    key: str
    version: str
    action: str
    outcome: str
    reasons: Sequence[Mapping[str, Any]]
    evidence: Mapping[str, Any]
    decided_by: str
    decided_at: datetime = field(default_factory=lambda: datetime.now(UTC))


def decision_key(model: str, weights_digest: str, evaluation_digest: str) -> str:
    """Return the idempotency key of a decision."""
    return sha256_hex(canonical_json([model, weights_digest, evaluation_digest]))


class Ledger:
    """The decisions of one database."""

    def __init__(self, database_url: str | None = None) -> None:
        """Open the database; None: the installation's."""
        self._engine = connect(database_url)

    def standing(self, model: str) -> Standing | None:
        """Return the champion of `model`, None while there is none.

        Raises:
            UnavailableError: `database.unavailable`.
        """
        with database_faults(), Session(self._engine) as session:
            row = session.get(ModelStanding, model)
            return None if row is None else _standing(row)

    def history(self, model: str) -> list[Entry]:
        """Return all decisions about `model`, oldest first."""
        with database_faults(), Session(self._engine) as session:
            rows = session.scalars(select(LedgerDecision).where(LedgerDecision.model == model).order_by(LedgerDecision.id))
            return [_entry(row) for row in rows]

    def models(self) -> list[str]:
        """Return the names of all models that anything was decided about, sorted."""
        with database_faults(), Session(self._engine) as session:
            return sorted(session.scalars(select(LedgerDecision.model).distinct()))

    def record(self, entry: Entry, *, champion: Standing | None = None, expected_revision: int = 0) -> Entry:
        """Add a decision and, where it makes a champion, move the standing in the same transaction.

        The same key twice is one decision: the first one's row is returned, and nothing moves.

        Args:
            champion: the new standing, None for a decision that changes nothing.
            expected_revision: of the standing that the decision was made against, 0 where there was no champion.

        Raises:
            DeniedError: `promotion.conflict`, someone else moved the standing first; nothing is recorded.
            UnavailableError: `database.unavailable`.
        """
        with database_faults(), Session(self._engine) as session, session.begin():
            known = session.scalar(
                select(LedgerDecision).where(LedgerDecision.model == entry.model, LedgerDecision.decision_key == entry.key)
            )
            if known is not None:
                return _entry(known)
            if champion is not None:
                self._move(session, champion, expected_revision)
            session.add(
                LedgerDecision(
                    model=entry.model,
                    decision_key=entry.key,
                    version=entry.version,
                    action=entry.action,
                    outcome=entry.outcome,
                    reasons=[dict(reason) for reason in entry.reasons],
                    evidence=dict(entry.evidence),
                    decided_at=entry.decided_at,
                    decided_by=entry.decided_by,
                )
            )
        return entry

    @staticmethod
    def _move(session: Session, champion: Standing, expected_revision: int) -> None:
        values = {
            "version": champion.version,
            "weights_digest": champion.weights_digest,
            "model_uri": champion.model_uri,
            "as_of": champion.as_of,
            "bounds": dict(champion.bounds),
            "revision": expected_revision + 1,
        }
        if expected_revision == 0:
            try:
                session.execute(insert(ModelStanding).values(model=champion.model, **values))
            except IntegrityError as err:
                raise _conflict(champion, expected_revision) from err
            return
        moved = session.execute(
            update(ModelStanding).where(ModelStanding.model == champion.model, ModelStanding.revision == expected_revision).values(**values)
        )
        if moved.rowcount != 1:  # type: ignore[attr-defined]
            raise _conflict(champion, expected_revision)


def _conflict(champion: Standing, expected_revision: int) -> DeniedError:
    return DeniedError(
        "promotion.conflict",
        f"{champion.model} has another champion than revision {expected_revision}, which version {champion.version} was compared with",
        hint="clear the evaluate task: the candidate is then compared with the new champion",
    )


def _standing(row: ModelStanding) -> Standing:
    return Standing(
        model=row.model,
        version=row.version,
        weights_digest=row.weights_digest,
        model_uri=row.model_uri,
        as_of=row.as_of,
        bounds=row.bounds,
        revision=row.revision,
    )


def _entry(row: LedgerDecision) -> Entry:
    decided_at = row.decided_at if row.decided_at.tzinfo else row.decided_at.replace(tzinfo=UTC)
    return Entry(
        model=row.model,
        key=row.decision_key,
        version=row.version,
        action=row.action,
        outcome=row.outcome,
        reasons=row.reasons,
        evidence=row.evidence,
        decided_by=row.decided_by,
        decided_at=decided_at,
    )
