"""How decisions and standings are looked up and added in an open transaction. SQLAlchemy only."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Select, bindparam, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from training.database.schema import Base, LedgerDecisionRow, ModelPipelineRow, ModelStandingRow
from training.registry.ledger.entries import REQUEST, Entry, columns_of

# In the text of the statement: SQLite uses an index of some rows alone for no parameter.
IS_REQUEST: Final = LedgerDecisionRow.outcome == bindparam("request", REQUEST, literal_execute=True)
"""Whether a row is a request for approval."""


def locked_standing(session: Session, model: str) -> ModelStandingRow:
    """Return the model's row, made where there is none, held until the transaction ends: decisions about a model follow each other."""
    _make(session, ModelStandingRow, model=model, revision=0)
    return session.scalars(select(ModelStandingRow).where(ModelStandingRow.model == model).with_for_update()).one()


def _make(session: Session, kind: type[Base], **values: object) -> None:
    """Add a row, unless there is one of its key."""
    add = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    session.execute(add(kind).values(**values).on_conflict_do_nothing())


def add_decision(session: Session, standing: ModelStandingRow, entry: Entry, *, revision: int | None = None) -> LedgerDecisionRow:
    """Add a decision, and what lists read instead of all decisions."""
    row = LedgerDecisionRow(**columns_of(entry), revision=revision)
    session.add(row)
    standing.decisions += 1
    if (pipeline := entry.evidence.get("pipeline")) is not None:
        _make(session, ModelPipelineRow, model=entry.model, pipeline=pipeline)
    # Rows are numbered as they are flushed, and history reads by number.
    session.flush()
    return row


def outlined(model: str) -> Select[Any]:
    """Return the query of all decisions about a model, without number and evidence."""
    columns = [column for column in LedgerDecisionRow.__table__.columns if column.key not in ("id", "evidence")]
    return select(*columns).where(LedgerDecisionRow.model == model)


def decision_row(session: Session, model: str, key: str) -> LedgerDecisionRow | None:
    """Return the row of the decision with this key."""
    return session.scalar(select(LedgerDecisionRow).where(LedgerDecisionRow.model == model, LedgerDecisionRow.decision_key == key))


def endings(model: str, request_key: str) -> Select[LedgerDecisionRow]:
    """Return the query of the decisions that ended a request for approval: one, or none."""
    return (
        select(LedgerDecisionRow)
        .where(LedgerDecisionRow.model == model, LedgerDecisionRow.request_key == request_key)
        .order_by(LedgerDecisionRow.id)
    )


def open_request_rows(session: Session, model: str) -> list[LedgerDecisionRow]:
    """Return the rows of the requests for approval that nothing has ended, oldest first."""
    ended = select(LedgerDecisionRow.request_key).where(LedgerDecisionRow.model == model, LedgerDecisionRow.request_key.is_not(None))
    asked = select(LedgerDecisionRow).where(LedgerDecisionRow.model == model, IS_REQUEST, LedgerDecisionRow.decision_key.not_in(ended))
    return list(session.scalars(asked.order_by(LedgerDecisionRow.id)))
