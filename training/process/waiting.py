"""Which callers wait for a database that does not answer: stages and Airflow's tasks do; a page and a DAG file must answer at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from training.installation import Seconds

WAIT: Final = Seconds(
    name="NIGHTSHIFT_DATABASE_WAIT_SECONDS",
    seconds=180.0,
    default="180",
    meaning="how long stages and tasks wait for a PostgreSQL that does not answer",
)
"""As long as for the storage: two minutes without the database cost no stage and no task."""

_wait_seconds: ContextVar[float] = ContextVar("wait_seconds", default=0.0)


@contextmanager
def waiting_for_database() -> Iterator[None]:
    """Let connections that are opened inside wait for a database that does not answer, `NIGHTSHIFT_DATABASE_WAIT_SECONDS` (180) at most.

    Holds for the thread that enters it. Also a decorator.

    Raises:
        SpecError: `settings.number`.
    """
    token = _wait_seconds.set(WAIT.read())
    try:
        yield
    finally:
        _wait_seconds.reset(token)


@contextmanager
def without_waiting() -> Iterator[None]:
    """Let connections that are opened inside fail at once, also within `waiting_for_database`: for what can do without the database."""
    token = _wait_seconds.set(0.0)
    try:
        yield
    finally:
        _wait_seconds.reset(token)


def database_wait_seconds() -> float:
    """Return how long a connection that is opened now may wait; 0 outside of `waiting_for_database`."""
    return _wait_seconds.get()
