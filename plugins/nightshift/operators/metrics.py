"""Copies metrics of trainings into the table for SQL clients (docs/sql.md), by processes of Airflow: they have the database."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from airflow.sdk import BaseOperator

from nightshift.settings import Settings
from training.errors import NightshiftError
from training.process.waiting import waiting_for_database
from training.store import Bucket

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context
    from sqlalchemy import Engine

logger = logging.getLogger(__name__)

LIVE_SECONDS: Final = 2.0
"""Between two looks at the journal of a training that this task waits for."""
LAST_COPY_SECONDS: Final = 1.0
"""A task that is stopped has five seconds in all; the thread ends by itself."""
ENDED: Final = frozenset({"success", "failed"})


class CopyMetricsOperator(BaseOperator):
    """Housekeeping's copy: what the operators of trainings did not copy, because the training failed or still works.

    It also notes how runs have ended.
    """

    @waiting_for_database()
    def execute(self, context: Context) -> int:
        """Return the number of points that were added.

        Raises:
            UnavailableError: store or database do not answer; Airflow tries again.
        """
        from training.database import connect  # SQLAlchemy: a DAG file needs none of it
        from training.database.run_metrics import copy_recent

        settings = Settings.from_environment()
        num_points = copy_recent(connect(settings.database_url), Bucket(settings.store_uri))
        self.log.info("%d points of metrics were added to run_metric", num_points)
        self._note_states(context, connect(settings.database_url))
        return num_points

    def _note_states(self, context: Context, engine: Engine) -> None:
        """Note how runs have ended, and which failed ones go on: the scheduler ends them, and must not wait for our database."""
        from training.database.pipeline_runs import FAILED, LOST, QUEUED, RUNNING, note_state, unsettled_runs

        for pipeline, run_id, noted in unsettled_runs(engine):
            if context["ti"].get_dr_count(dag_id=pipeline, run_ids=[run_id]):
                state = str(context["ti"].get_dagrun_state(dag_id=pipeline, run_id=run_id))
            else:
                state = noted if noted == FAILED else LOST
            if state not in (*ENDED, LOST):
                # A run that is queued again, after its tasks were cleared, goes on; how one begins, its first task notes.
                state = QUEUED if noted == QUEUED else RUNNING
            if state != noted:
                note_state(engine, pipeline, run_id, state, noted=noted)


def copy_metrics(pipeline: str, journal: str, settings: Settings) -> None:
    """Copy the metrics of a training that has ended. It never fails a task: housekeeping copies what this did not.

    Args:
        journal: name of the training's journal (`training.store.metric_journal.journal_name`).
    """
    from training.database import connect
    from training.database.run_metrics import copy_points

    try:
        num_points = copy_points(connect(settings.database_url), Bucket(settings.store_uri), pipeline, journal)
        logger.info("%d points of metrics were added to run_metric", num_points)
    except NightshiftError as err:
        logger.warning("housekeeping copies the metrics later: %s", err)


@contextmanager
def copied_live(pipeline: str, journal: str, settings: Settings, every_seconds: float = LIVE_SECONDS) -> Iterator[None]:
    """Copy the metrics of a training while the body waits for it. What fails is left to the copy at the end, and to housekeeping.

    In a thread of its own: neither the training nor the task that watches it waits for the database.

    Args:
        journal: as in `copy_metrics`.
    """
    is_over = threading.Event()
    copier = threading.Thread(target=_copy_until, args=(is_over, pipeline, journal, settings, every_seconds), name="metrics", daemon=True)
    copier.start()
    try:
        yield
    finally:
        is_over.set()
        copier.join(LAST_COPY_SECONDS)


def _copy_until(is_over: threading.Event, pipeline: str, journal: str, settings: Settings, every_seconds: float) -> None:
    from training.database import connect
    from training.database.run_metrics import copy_points

    while not is_over.wait(every_seconds):
        try:
            copy_points(connect(settings.database_url), Bucket(settings.store_uri), pipeline, journal)
        except (NightshiftError, ValueError) as err:
            logger.debug("metrics are copied later: %s", err)
