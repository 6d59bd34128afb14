"""Copies metrics of trainings into the table for SQL clients (docs/sql.md), by processes of Airflow: they have the database."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from nightshift.settings import Settings
from training.store import Bucket

logger = logging.getLogger(__name__)

LIVE_SECONDS: Final = 2.0
"""Between two looks at the journal of a training that a task waits for."""
DEFERRED_SECONDS: Final = 5.0
"""The same, of one that the triggerer waits for."""


def copy_metrics(pipeline: str, journal: str, *, level: int = logging.WARNING) -> None:
    """Copy the metrics of a training. It never fails a task: a later copy, at last housekeeping's, has what this one has not.

    Args:
        journal: name of the training's journal (`training.store.metric_journal.journal_name`).
        level: of the message where it fails.
    """
    # SQLAlchemy: a DAG file needs none of it.
    from training.database.run_metrics import copy_points

    try:
        settings = Settings.from_environment()
        copy_points(settings.database(), Bucket(settings.store_uri), pipeline, journal)
    except Exception as err:
        # Whatever it is, the training is what counts.
        logger.log(level, "metrics are copied later: %s", err)


@contextmanager
def copied_live(pipeline: str, journal: str, every_seconds: float = LIVE_SECONDS) -> Iterator[None]:
    """Copy the metrics of a training while the body waits for it.

    In a thread of its own, which ends by itself: what waits for the training waits for no database.

    Args:
        journal: as of `copy_metrics`.
    """
    is_over = threading.Event()

    def copy() -> None:
        while not is_over.wait(every_seconds):
            copy_metrics(pipeline, journal, level=logging.DEBUG)

    threading.Thread(target=copy, name="metrics", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()
