"""What a command says while it waits: a person at a terminal must see that it works, and on what."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

EVERY_SECONDS: Final = 10.0


class Awaited:
    """One wait. It is announced after ten seconds, and every ten seconds from then on."""

    def __init__(self, say: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._since = self._said_at = clock()

    @property
    def seconds(self) -> float:
        """Return how long this wait has been."""
        return self._clock() - self._since

    def look(self, what: str) -> None:
        """Announce that `what` is still awaited, if it is time to. Call it at every look."""
        now = self._clock()
        if now - self._said_at >= EVERY_SECONDS:
            self._said_at = now
            self._say(f"  waiting for {what}  {now - self._since:.0f} s")
