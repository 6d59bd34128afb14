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
    begun_at: datetime
    """In UTC: tells two uses of one name, more than a day apart, from each other."""
    status: int | None
    """None: the work has not ended, or its process has died."""
    body: dict[str, Any] | None


class Answers:
    """The answers of one database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._insert = postgresql.insert if engine.dialect.name == "postgresql" else sqlite.insert

    def find(self, name: str) -> Answer | None:
        """Return the request of this name; None where there is none of the last 24 hours."""
        with database_faults(), Session(self._engine) as session:
            row = session.get(ApiAnswer, name)
            if row is None or _zoned(row.created_at) < datetime.now(UTC) - KEPT:
                return None
            return _answer(row)

    def begin(self, name: str, request_digest: str) -> Answer:
        """Note a request before its work begins, and return it; one that is noted stays. Forget those of more than 24 hours ago."""
        while True:
            now = datetime.now(UTC)
            with database_faults(), Session(self._engine) as session, session.begin():
                session.execute(delete(ApiAnswer).where(ApiAnswer.created_at < now - KEPT))
                request = {"name": name, "request_digest": request_digest, "created_at": now}
                session.execute(self._insert(ApiAnswer).values(**request).on_conflict_do_nothing())
                row = session.get(ApiAnswer, name)
                # None: another process has forgotten it since.
                if row is not None:
                    return _answer(row)

    def end(self, name: str, begun: Answer, status: int, body: dict[str, Any]) -> None:
        """Keep the answer to a request that has begun; the first one stays."""
        row = {"request_digest": begun.request_digest, "created_at": begun.begun_at, "status": status, "body": body}
        with database_faults(), Session(self._engine) as session, session.begin():
            # The row is missing where the same request was refused, and forgotten, at the same moment.
            session.execute(self._insert(ApiAnswer).values(name=name, **row).on_conflict_do_nothing())
            session.execute(update(ApiAnswer).where(ApiAnswer.name == name, ApiAnswer.status.is_(None)).values(status=status, body=body))

    def forget(self, name: str) -> None:
        """Remove a request that was refused: it may be repeated once the reason is gone."""
        with database_faults(), Session(self._engine) as session, session.begin():
            session.execute(delete(ApiAnswer).where(ApiAnswer.name == name, ApiAnswer.status.is_(None)))


def _answer(row: ApiAnswer) -> Answer:
    begun_at = _zoned(row.created_at).astimezone(UTC)
    return Answer(request_digest=row.request_digest, begun_at=begun_at, status=row.status, body=row.body)


def _zoned(instant: datetime) -> datetime:
    # SQLite returns UTC without a zone.
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)
