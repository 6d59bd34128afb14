"""The points of a training from a server's events, and by polling where no event comes: each once, in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

import httpx

from nightshift.queries.schemas import MetricPage, MetricPoint
from training.errors import UnavailableError

SILENT_SECONDS: Final = 15.0
"""After which a stream is given up: the server sends something every 5 s, so a proxy holds it back."""
POLL_SECONDS: Final = 2.0
AWAY_SECONDS: Final = 600.0
"""How long a server that does not answer is asked again."""
EVENTS: Final = "text/event-stream"

OpenStream = Callable[[str | None], Iterator[str]]
"""Is given the id of the last point; yields the lines of a stream. Raises httpx.TransportError, or StreamRefusedError."""
GetPage = Callable[[str | None], MetricPage]


class StreamRefusedError(Exception):
    """The server opens no stream now; pages may be had."""


def points_of(page: GetPage, stream: OpenStream, after: str | None) -> Iterator[MetricPoint]:
    """Yield the points that follow `after` until the training has ended.

    Raises:
        UnavailableError: the server has not answered for ten minutes.
    """
    reader = _StreamReader(page, stream, after)
    while not reader.has_ended:
        if reader.may_stream:
            yield from reader.streamed()
        if not reader.has_ended:
            yield from reader.page()


class _StreamReader:
    """One reader's place, and what it knows of the server."""

    def __init__(self, page: GetPage, stream: OpenStream, after: str | None) -> None:
        self._page, self._stream = page, stream
        self._last = after
        self._away_since: float | None = None
        self.may_stream = True
        self.has_ended = False

    def streamed(self) -> Iterator[MetricPoint]:
        """Yield points as they come, until the stream ends or breaks."""
        try:
            for point in _streamed(self._stream(self._last)):
                if point is None:
                    self.has_ended = True
                    return
                yield self._noted(point)
        except (httpx.ReadTimeout, StreamRefusedError):
            self.may_stream = False
        except httpx.TransportError:
            # The server restarts, or the stream was ended: a page says which.
            pass

    def page(self) -> Iterator[MetricPoint]:
        """Yield the points of one page; wait where there are none, or no answer."""
        try:
            found = self._page(self._last)
        except UnavailableError:
            self._away_since = self._away_since or time.monotonic()
            if time.monotonic() - self._away_since > AWAY_SECONDS:
                raise
            return
        self._away_since = None
        for point in found.items:
            yield self._noted(point)
        self.has_ended = found.is_complete
        if not found.items and not self.has_ended:
            time.sleep(POLL_SECONDS)

    def _noted(self, point: MetricPoint) -> MetricPoint:
        self._last, self._away_since = point.id, None
        return point


def _streamed(lines: Iterator[str]) -> Iterator[MetricPoint | None]:
    """Yield the points of a stream's lines; None: the training has ended."""
    event, data = "", ""
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            event, data = (value, data) if name == "event" else (event, value) if name == "data" else (event, data)
            continue
        if event == "end":
            yield None
            return
        if data and not event:
            yield MetricPoint.model_validate_json(data)
        event, data = "", ""
