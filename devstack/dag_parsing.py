"""How long a command waits for Airflow to read a DAG file: only the time counts in which the dag-processor is healthy."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from devstack.airflow_api import AirflowApi

PARSE_SECONDS: Final = 90.0
MAX_SECONDS: Final = 900.0
"""In all, healthy or not."""


class ParseLimit:
    """The limit of one wait. A dag-processor that was killed or stopped parses nothing until it is back."""

    def __init__(self, client: AirflowApi, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        now = clock()
        self._last = now + MAX_SECONDS
        self._deadline = now + PARSE_SECONDS

    def is_spent(self) -> bool:
        """Return whether the wait is to end. Call it at every look."""
        now = self._clock()
        if now > self._deadline and self._client.health().get("dag_processor") != "healthy":
            self._deadline = now + PARSE_SECONDS
        return now > min(self._deadline, self._last)
