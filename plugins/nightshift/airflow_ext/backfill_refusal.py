"""Refuses Airflow's own backfill where Airflow's database is SQLite: on its pages, in its REST API and on its command line.

It writes its runs while the scheduler writes too, and SQLite lets one of them write: the scheduler ended with `database is locked`, and a
run without tasks counted as successful. `nightshift backfill` starts one run after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow.exceptions import DagRunTypeNotAllowed
from airflow.models.backfill import Backfill, NoBackfillRunsToCreate
from sqlalchemy import event

if TYPE_CHECKING:
    from sqlalchemy import Connection

HINT: Final = "Airflow's own backfill needs PostgreSQL, and this Airflow's database is SQLite: nightshift backfill {} --from DAY --to DAY"


class RefusedBackfillError(DagRunTypeNotAllowed, NoBackfillRunsToCreate):
    """Airflow's API answers the first with 400, its command the second with one line and exit code 1; both with this one's message."""


def refuse_on_sqlite() -> None:
    """Have a backfill refused before its row is written."""
    event.listen(Backfill, "before_insert", _refuse)


def _refuse(_mapper: Any, connection: Connection, backfill: Backfill) -> None:
    if connection.dialect.name == "sqlite":
        raise RefusedBackfillError(HINT.format(backfill.dag_id))
