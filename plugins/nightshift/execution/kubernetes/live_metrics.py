"""Copies the metrics of a training in the cluster while the triggerer waits for it: the pods have no database, the triggerer does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Final

from nightshift.settings import Settings

logger = logging.getLogger(__name__)

COPY_SECONDS: Final = 5.0
"""Between two copies of one training."""
MAX_THREADS: Final = 2
"""Of a triggerer: a database that does not answer takes no thread that other triggers wait with."""

_threads: Final = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="metrics")


@asynccontextmanager
async def copied_meanwhile(metrics: str | None) -> AsyncIterator[None]:
    """Copy the points of a journal into `run_metric` while the body waits. What fails is left to the copy at the end.

    Args:
        metrics: `<pipeline>/<journal>`; None: there is nothing to copy.
    """
    if metrics is None:
        yield
        return
    pipeline, _, journal = metrics.partition("/")
    copying = asyncio.create_task(_copy_again_and_again(pipeline, journal))
    try:
        yield
    finally:
        copying.cancel()
        with suppress(asyncio.CancelledError):
            await copying


async def _copy_again_and_again(pipeline: str, journal: str) -> None:
    while True:
        await asyncio.sleep(COPY_SECONDS)
        await asyncio.get_running_loop().run_in_executor(_threads, _copy, pipeline, journal)


def _copy(pipeline: str, journal: str) -> None:
    # SQLAlchemy: a DAG file, which imports the backend, needs none of it.
    from training.database import connect
    from training.database.run_metrics import copy_points
    from training.store import Bucket

    try:
        settings = Settings.from_environment()
        copy_points(connect(settings.database_url), Bucket(settings.store_uri), pipeline, journal)
    except Exception as err:
        # Whatever it is, the training goes on, and its end is copied by the task.
        logger.debug("metrics are copied later: %s", err)
