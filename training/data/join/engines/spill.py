"""How many bytes queries have put on local disk because they did not fit the memory limit."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

logger = logging.getLogger(__name__)

MIB = 2**20

Batch = TypeVar("Batch")


class SpilledBytes:
    """The largest size that a spill folder had whenever it was looked at."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.most = 0
        """Bytes."""

    def look(self) -> None:
        """Look at the folder now."""
        size_bytes = 0
        for path in self._folder.rglob("*"):
            # A query may just have removed it.
            with suppress(OSError):
                size_bytes += path.stat().st_size
        self.most = max(self.most, size_bytes)

    def watched(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield batches of a result; look before the first, when sorted runs are complete and none is removed yet, and after the last."""
        for number, batch in enumerate(batches):
            if not number:
                self.look()
            yield batch
        self.look()

    def log(self, limit_bytes: int) -> None:
        """Log what was spilled, if anything."""
        if self.most:
            logger.info("%.0f MiB spilled to scratch: the query's memory limit is %.0f MiB", self.most / MIB, limit_bytes / MIB)
