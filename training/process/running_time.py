"""Time in which this process could run: a stop of the whole machine or of all its processes does not count."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

MAX_STEP_SECONDS: Final = 3.0


class AwakeClock:
    """A monotonic clock, in seconds, that advances by at most `max_step_seconds` between two readings.

    Read it at least that often. A longer gap means that this process was stopped or starved, and then so were, most likely, the
    processes of this machine that it watches: how long they were silent says nothing about them.
    """

    def __init__(self, *, max_step_seconds: float = MAX_STEP_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_step_seconds = max_step_seconds
        self._clock = clock
        self._read_at = clock()
        self._awake_seconds = 0.0

    def __call__(self) -> float:
        now = self._clock()
        self._awake_seconds += min(now - self._read_at, self._max_step_seconds)
        self._read_at = now
        return self._awake_seconds
