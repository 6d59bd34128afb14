"""How many requests a user may send: a bucket of tokens for each user, in each process of the api-server."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Final

from training.installation import WholeNumber

RATE: Final = WholeNumber(
    name="NIGHTSHIFT_API_RATE",
    number=1200,
    default="`1200`",
    meaning="REST API: requests per minute of one user to one process of the api-server (429 above it); `0`: no limit",
)
MINUTE_SECONDS: Final = 60.0
MAX_BUCKETS: Final = 10_000


class Rates:
    """A user may send as many requests at once as in a minute; each second gives a sixtieth of them back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: dict[str, tuple[float, float]] = {}
        """User to the tokens that there were, and when."""

    def take(self, user: str, per_minute: int) -> bool:
        """Count a request; return whether the user may send it.

        Args:
            per_minute: 0: no limit.
        """
        if not per_minute:
            return True
        now = self._clock()
        with self._lock:
            tokens, since = self._buckets.get(user, (float(per_minute), now))
            tokens = min(float(per_minute), tokens + (now - since) * per_minute / MINUTE_SECONDS)
            may_send = tokens >= 1
            self._buckets[user] = (tokens - may_send, now)
            if len(self._buckets) > MAX_BUCKETS:
                self._forget(now)
        return may_send

    @staticmethod
    def wait_seconds(per_minute: int) -> int:
        """Return after how many seconds a user who may not send a request may send one again, rounded up."""
        return math.ceil(MINUTE_SECONDS / max(per_minute, 1))

    def _forget(self, now: float) -> None:
        """Drop users who have sent nothing for a minute: their buckets are full."""
        self._buckets = {user: bucket for user, bucket in self._buckets.items() if now - bucket[1] < MINUTE_SECONDS}


RATES: Final = Rates()
"""Of this process."""
