"""Answers to requests that change something, kept for a day: a request that is repeated with the same key gets the same one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import Engine, delete, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from training.database.connect import database_faults
from training.database.schema import ApiAnswer

KEPT: Final = timedelta(hours=24)


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A request, and its answer once it has one."""

    request_digest: str
    status: int | None
    """None: the work has not ended, or its process has died."""
    body: dict[str, Any] | None


class Answers:
    """The answers of one database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def find(self, name: str) -> Answer | None:
        """Return the request of this name; None where there is none of the last 24 hours."""
        with database_faults(), Session(self._engine) as session:
            row = session.get(ApiAnswer, name)
            if row is None or _zoned(row.created_at) < datetime.now(UTC) - KEPT:
                return None
            return Answer(request_digest=row.request_digest, status=row.status, body=row.body)

    def begin(self, name: str, request_digest: str) -> None:
        """Note a request before its work begins, unless it is noted; forget those of more than 24 hours ago."""
        add = postgresql.insert if self._engine.dialect.name == "postgresql" else sqlite.insert
        now = datetime.now(UTC)
        with database_faults(), Session(self._engine) as session, session.begin():
            session.execute(delete(ApiAnswer).where(ApiAnswer.created_at < now - KEPT))
            session.execute(add(ApiAnswer).values(name=name, request_digest=request_digest, created_at=now).on_conflict_do_nothing())

    def end(self, name: str, status: int, body: dict[str, Any]) -> None:
        """Keep the answer; the first one stays."""
        with database_faults(), Session(self._engine) as session, session.begin():
            session.execute(update(ApiAnswer).where(ApiAnswer.name == name, ApiAnswer.status.is_(None)).values(status=status, body=body))

    def forget(self, name: str) -> None:
        """Remove a request that was refused: it may be repeated once the reason is gone."""
        with database_faults(), Session(self._engine) as session, session.begin():
            session.execute(delete(ApiAnswer).where(ApiAnswer.name == name, ApiAnswer.status.is_(None)))


def _zoned(instant: datetime) -> datetime:
    # SQLite returns UTC without a zone.
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)
