"""How many training rows a training takes in a second, for its metrics."""

from __future__ import annotations

import time
from collections.abc import Callable


class Throughput:
    """Counts rows and the time in which they were trained; what lies between epochs, such as validation, is left out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rows = 0
        self._seconds = 0.0
        self._begun_at = clock()

    def begin(self) -> None:
        """Begin to count time: after a pause that is not part of the training's steps."""
        self._begun_at = self._clock()

    def add(self, num_rows: int) -> None:
        """Count rows that were trained since `begin`, or since the last call."""
        now = self._clock()
        self._rows += num_rows
        self._seconds += now - self._begun_at
        self._begun_at = now

    def take(self) -> dict[str, float]:
        """Return the metric of the rows that were counted since the last call; nothing where no time has passed."""
        rows, seconds = self._rows, self._seconds
        self._rows, self._seconds = 0, 0.0
        return {"training_throughput_samples_per_sec": rows / seconds} if seconds > 0 else {}
