"""Metrics of a training to its journal in the store, from where all readers have them: a batch each 500 ms, by an own thread.

In the store, because a training reaches nothing else that its readers reach, too: in a cluster its pod has no secret of a database.
Apart from MLflow's thread, so that a server that does not answer delays no reader.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from training.errors import NightshiftError
from training.process import liveness
from training.store.metric_journal import JournalWriter, RawPoint

logger = logging.getLogger(__name__)

FLUSH_SECONDS: Final = 0.5
RETRY_SECONDS: Final = 5.0
CLOSE_SECONDS: Final = 10.0
MAX_PENDING: Final = 1_000_000
MAX_BATCH: Final = 10_000


class LiveMetrics:
    """The points of one attempt on their way to the journal. A journal that cannot be written never delays or fails a training."""

    def __init__(self, writer: JournalWriter, begun: Callable[[], None], sample: Callable[[], None]) -> None:
        """Begin to write; the attempt is in the journal within a second, also where it logs nothing for long.

        Args:
            begun: called once the attempt is in the journal, before its first point is; repeated where the store does not answer.
            sample: called before each batch; it may queue points of its own.
        """
        self._writer = writer
        self._begun, self._sample = begun, sample
        self._is_begun = False
        self._pending: list[RawPoint] = []
        self._lost = 0
        self._away_reason = ""
        self._away_until = 0.0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="live-metrics", daemon=True)
        self._thread.start()

    def extend(self, points: Sequence[RawPoint]) -> None:
        """Queue points; takes about a microsecond. Where the store was away for a million points, they are dropped."""
        if len(self._pending) > MAX_PENDING:
            self._lost += len(points)
            return
        self._pending.extend(points)

    def close(self) -> bool:
        """Write what is left, for up to 10 s; return whether the journal has everything."""
        self._closing.set()
        self._thread.join(CLOSE_SECONDS)
        missing = self._lost + (0 if self._writer.is_superseded else len(self._pending))
        if missing:
            logger.warning("%d points of metrics were dropped: %s", missing, self._away_reason or "the store answers slowly")
        return not missing

    def _run(self) -> None:
        # It writes while the work hangs: no progress of the work's.
        liveness.in_background()
        while not self._closing.wait(FLUSH_SECONDS):
            if time.monotonic() >= self._away_until:
                self._flush()
        self._flush()
        if not self._pending:
            self._writer.close()

    def _flush(self) -> None:
        try:
            if not self._is_begun:
                self._writer.begin()
                self._begun()
                self._is_begun = True
            self._sample()
            while self._pending and not self._writer.is_superseded:
                num_added = self._writer.append(self._pending[:MAX_BATCH])
                del self._pending[:num_added]
            if self._writer.is_superseded:
                self._pending.clear()
            self._away_reason = ""
        except NightshiftError as err:
            if not self._away_reason:
                logger.warning("metrics wait for the store: %s", err.message)
            self._away_reason, self._away_until = err.message, time.monotonic() + RETRY_SECONDS
        except Exception as err:
            # A journal that another version or a person has changed never ends a training.
            if not self._away_reason:
                logger.exception("metrics cannot be written")
            self._away_reason, self._away_until = str(err), time.monotonic() + RETRY_SECONDS
