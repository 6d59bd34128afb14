"""Lets an idle scheduler wait until its SQLite database changes, instead of polling it ten times a second.

SQLite counts, for each connection, the commits of all others (`PRAGMA data_version`, 3 µs). A loop of the scheduler that changed nothing
would change nothing again until another process writes, or until something is due; what is due may be a second late.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sqlalchemy.engine import make_url

MAX_WAIT_SECONDS: Final = 1.0
POLL_SECONDS: Final = 0.02


class IdleWait:
    """Waits in the scheduler's loop. For a database other than a SQLite file it never waits."""

    def __init__(self, url: str, *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep) -> None:
        parsed = make_url(url)
        is_file = parsed.get_backend_name() == "sqlite" and parsed.database not in (None, "", ":memory:")
        self._path = Path(str(parsed.database)) if is_file else None
        self._clock = clock
        self._sleep = sleep
        self._connection: sqlite3.Connection | None = None
        self._seen: int | None = None

    def wait(self) -> None:
        """Return at once if the database has changed since the last call returned, else when it changes; after a second at the latest.

        Call it once in each loop: a change made while the loop read the database then ends the next wait, and none is overlooked.
        """
        until = self._clock() + MAX_WAIT_SECONDS
        while not self._has_changed() and self._clock() < until:
            self._sleep(POLL_SECONDS)

    def close(self) -> None:
        """Close the connection: a process that is forked must not inherit it. The next wait opens another one, and returns at once."""
        connection, self._connection, self._seen = self._connection, None, None
        if connection is not None:
            connection.close()

    def _has_changed(self) -> bool:
        """Return whether another connection has committed since the last call; True where that cannot be found out."""
        if self._path is None:
            return True
        try:
            if self._connection is None:
                self._connection = sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True, timeout=0)
            version = int(self._connection.execute("PRAGMA data_version").fetchone()[0])
        except sqlite3.Error:
            with contextlib.suppress(sqlite3.Error):
                self.close()
            return True
        before, self._seen = self._seen, version
        return version != before
