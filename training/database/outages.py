"""Connections to PostgreSQL wait through a restart or a fail-over where the caller allows it (`training.process.waiting`)."""

from __future__ import annotations

import logging
import time
from typing import Any, Final

from sqlalchemy import Engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection, Dialect

from training.process.waiting import database_wait_seconds

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS: Final = 0.25
LONGEST_PAUSE_SECONDS: Final = 5.0
SAID_EVERY_SECONDS: Final = 30.0
FINAL: Final = ("authentication failed", "does not exist", "no pg_hba.conf entry", "no password supplied", "invalid", "permission denied")
"""Of the driver's messages (a failed connection has no SQLSTATE): what waiting does not change."""


def wait_on_connect(engine: Engine) -> None:
    """Make new connections of `engine`, and those that replace broken ones, wait for `database_wait_seconds`."""
    event.listen(engine, "do_connect", _connect)


def _connect(dialect: Dialect, _record: object, arguments: tuple[Any, ...], options: dict[str, Any]) -> DBAPIConnection:
    began, limit = time.monotonic(), database_wait_seconds()
    said, pause = -SAID_EVERY_SECONDS, FIRST_PAUSE_SECONDS
    while True:
        try:
            return dialect.connect(*arguments, **options)
        except dialect.loaded_dbapi.OperationalError as err:
            reason, waited = (str(err).strip() or "no reason").splitlines()[0], time.monotonic() - began
            if waited + pause > limit or any(sign in reason for sign in FINAL):
                raise
            if waited - said >= SAID_EVERY_SECONDS:
                logger.warning("the database does not answer (%s); retried for at most %.0f s", reason, limit - waited)
                said = waited
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
