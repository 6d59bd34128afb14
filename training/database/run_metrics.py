"""Metrics of trainings in the table `run_metric`: copied from the journals in the store by processes that have the database.

A training itself has none: in a cluster its pod has no secret of it. The operators of trainings and of trials copy while they wait for
one and when it has ended, in a cluster the triggerer while it waits; housekeeping copies what is missing: of trainings that failed, or
ended while the database was away. Rows are deleted after their journal.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import groupby, islice
from typing import Any, Final

from sqlalchemy import Engine, delete, func, select
from sqlalchemy.dialects import postgresql, sqlite

from training.database.connect import reading, with_zone, writing
from training.database.schema import RunMetricRow
from training.errors import StoreError
from training.store import Bucket
from training.store.metric_journal import PREFIX, JournalPoint, MetricJournal

logger = logging.getLogger(__name__)

ROWS: Final = 2000
"""Of a transaction: SQLite has one writer, and others wait for it."""
MAX_NAME_CHARS: Final = 250
RECENT: Final = timedelta(days=7)
"""Journals that have not changed for longer were copied, unless housekeeping stood still."""


def copy_points(engine: Engine, bucket: Bucket, pipeline: str, run_id: str) -> int:
    """Add the points of a training that the table lacks; return how many. It may be called again, and by several processes.

    Rows of an earlier journal of the run are deleted: its training began again after that journal was gone.

    Args:
        run_id: of a run, or the name of a trial's journal.

    Raises:
        UnavailableError: `database.unavailable`, or the store does not answer; what was added stays.
    """
    key, journal, num_added = f"{pipeline}:{run_id}", MetricJournal(bucket, pipeline, run_id), 0
    newest = select(RunMetricRow).where(RunMetricRow.run_id == key).order_by(RunMetricRow.number.desc()).limit(1)
    with reading(engine) as session:
        row = session.scalar(newest)
    number = 0 if row is None else row.number
    if row is not None and _has_begun_again(journal, row):
        with writing(engine) as session:
            session.execute(delete(RunMetricRow).where(RunMetricRow.run_id == key))
        number = 0
    add = postgresql.insert if engine.dialect.name == "postgresql" else sqlite.insert
    rows = (_row(key, point) for point in journal.after(number))
    while added := list(islice(rows, ROWS)):
        with writing(engine) as session:
            session.execute(add(RunMetricRow).on_conflict_do_nothing(), added)
        num_added += len(added)
    return num_added


def copy_recent(engine: Engine, bucket: Bucket) -> int:
    """Copy what the table lacks of all journals that have changed within a week; return how many points.

    Raises:
        UnavailableError: as `copy_points`.
    """
    since, num_points = datetime.now(UTC) - RECENT, 0
    for pipeline, run_id, modified in _journals(bucket):
        if modified <= since:
            continue
        try:
            num_points += copy_points(engine, bucket, pipeline, run_id)
        except (StoreError, ValueError) as err:
            # One journal that cannot be read must not keep those of all others out.
            logger.warning("the metrics of %s:%s are not copied: %s", pipeline, run_id, err)
    return num_points


def delete_expired(engine: Engine, bucket: Bucket, *, before: datetime) -> int:
    """Delete the rows of trainings whose journal retention has deleted and whose last point is older; return how many rows.

    Args:
        before: points of that instant and later keep all rows of their training.

    Raises:
        UnavailableError: as `copy_points`; what was deleted stays deleted.
    """
    old = select(RunMetricRow.run_id).group_by(RunMetricRow.run_id).having(func.max(RunMetricRow.logged_at) < before)
    with reading(engine) as session:
        candidates = set(session.scalars(old))
    if not candidates:
        return 0
    # After the rows were looked at: a journal that is made now has no old rows.
    candidates -= {f"{pipeline}:{run_id}" for pipeline, run_id, _modified in _journals(bucket)}
    num_rows = 0
    for run_id in sorted(candidates):
        # A transaction for each: others write in between.
        with writing(engine) as session:
            num_rows += session.scalar(select(func.count()).where(RunMetricRow.run_id == run_id)) or 0
            session.execute(delete(RunMetricRow).where(RunMetricRow.run_id == run_id))
    return num_rows


def _has_begun_again(journal: MetricJournal, newest: RunMetricRow) -> bool:
    """Return whether the journal has another event than the table, or none, at the number of the table's newest row."""
    point = next(journal.after(newest.number - 1), None)
    if point is None:
        return bool(journal.places())
    row = _row(newest.run_id, point)
    found = (newest.number, newest.metric_name, newest.step, with_zone(newest.logged_at))
    return found != (row["number"], row["metric_name"], row["step"], row["logged_at"])


def _journals(bucket: Bucket) -> Iterator[tuple[str, str, datetime]]:
    """Yield pipeline, name and last change of each journal in the store."""
    found = [entry for entry in bucket.list(PREFIX) if entry.key.count("/") == 3]
    for folder, entries in groupby(found, key=lambda entry: entry.key.rpartition("/")[0]):
        _, pipeline, run_id = folder.split("/")
        yield pipeline, run_id, max(entry.modified for entry in entries)


def _row(run_id: str, point: JournalPoint) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "number": point.number,
        "attempt": point.attempt,
        "metric_name": point.name[:MAX_NAME_CHARS],
        "step": point.step,
        "value": point.value if isinstance(point.value, float) else None,
        "logged_at": datetime.fromtimestamp(point.logged_at_ms / 1000, UTC),
    }
