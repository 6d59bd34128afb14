"""Metrics of trainings in the table `run_metric`: copied from the journals in the store by processes that have the database.

A training itself has none: in a cluster its pod has no secret of it. The operator of `train` copies while it waits for the training
and when that has ended; housekeeping copies what is missing: of trainings that failed, or ended while the database was away.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any, Final

from sqlalchemy import Engine, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from training.database.connect import database_faults
from training.database.schema import RunMetric
from training.errors import StoreError
from training.store import Bucket
from training.store.metric_journal import PREFIX, MetricJournal, MetricPoint

logger = logging.getLogger(__name__)

ROWS: Final = 2000
"""Of a transaction: SQLite has one writer, and others wait for it."""
MAX_NAME_CHARS: Final = 250
RECENT: Final = timedelta(days=7)
"""Journals that have not changed for longer were copied, unless housekeeping stood still."""


def copy_points(engine: Engine, bucket: Bucket, pipeline: str, run_id: str) -> int:
    """Add the points of a run that the table lacks; return how many. It may be called again, and by several processes.

    Raises:
        UnavailableError: `database.unavailable`, or the store does not answer; what was added stays.
    """
    key, journal, num_added = f"{pipeline}:{run_id}", MetricJournal(bucket, pipeline, run_id), 0
    with database_faults(), Session(engine) as session:
        number = session.scalar(select(func.max(RunMetric.number)).where(RunMetric.run_id == key)) or 0
    add = postgresql.insert if engine.dialect.name == "postgresql" else sqlite.insert
    while points := journal.after(number, limit=ROWS):
        rows = [_row(key, point) for point in points]
        with database_faults(), Session(engine) as session, session.begin():
            session.execute(add(RunMetric).on_conflict_do_nothing(), rows)
        number, num_added = points[-1].number, num_added + len(rows)
    return num_added


def copy_recent(engine: Engine, bucket: Bucket, *, now: datetime | None = None) -> int:
    """Copy what the table lacks of all journals that have changed within a week; return how many points.

    Raises:
        UnavailableError: as `copy_points`.
    """
    return sum(_copied(engine, bucket, pipeline, run_id) for pipeline, run_id in _recent(bucket, now or datetime.now(UTC)))


def _copied(engine: Engine, bucket: Bucket, pipeline: str, run_id: str) -> int:
    try:
        return copy_points(engine, bucket, pipeline, run_id)
    except (StoreError, ValueError) as err:
        # One journal that cannot be read must not keep those of all others out.
        logger.warning("the metrics of %s:%s are not copied: %s", pipeline, run_id, err)
        return 0


def _recent(bucket: Bucket, now: datetime) -> Iterator[tuple[str, str]]:
    found = [entry for entry in bucket.list(PREFIX) if entry.key.count("/") == 3]
    for folder, entries in groupby(found, key=lambda entry: entry.key.rpartition("/")[0]):
        if max(entry.modified for entry in entries) > now - RECENT:
            _, pipeline, run_id = folder.split("/")
            yield pipeline, run_id


def _row(run_id: str, point: MetricPoint) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "number": point.number,
        "attempt": point.attempt,
        "metric_name": point.name[:MAX_NAME_CHARS],
        "step": point.step,
        "value": point.value if isinstance(point.value, float) else None,
        "logged_at": datetime.fromtimestamp(point.logged_at_ms / 1000, UTC),
    }
