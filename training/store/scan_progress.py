"""Progress of a long look at a store: what was seen so far, at least every 30 s, from a separate thread.

One request may take minutes, so the thread that makes it cannot report.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

INTERVAL_SECONDS: Final = 30.0

Say = Callable[[str], object]


class ProgressCounter:
    """Counts objects, bytes, records and deletions; `say` gets a line every `INTERVAL_SECONDS` while the block runs."""

    def __init__(self, say: Say | None = None, *, interval_seconds: float = INTERVAL_SECONDS) -> None:
        """Make the counters.

        Args:
            say: None: nothing is said, and no thread is started.
            interval_seconds: between two lines.
        """
        self._say = say
        self._interval_seconds = interval_seconds
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._started_at = time.monotonic()
        self.num_objects = 0
        self.size_bytes = 0
        self.num_records = 0
        self.num_deleted = 0

    def __enter__(self) -> Self:
        if self._say is not None:
            self._thread = threading.Thread(target=self._run, args=(self._say,), name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def line(self) -> str:
        """Return the counters as one line."""
        text = f"{self.num_objects:,} objects of {self.size_bytes / 1e6:,.1f} MB seen, {self.num_records:,} records read"
        deleted = f", {self.num_deleted:,} files deleted" if self.num_deleted else ""
        return f"{text}{deleted}, after {time.monotonic() - self._started_at:.0f} s"

    def _run(self, say: Say) -> None:
        while not self._done.wait(self._interval_seconds):
            say(self.line())
