"""Server-sent events to one reader: at its own pace, dropped where it reads nothing, and not too many for one user."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Final

import anyio
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

MAX_STREAMS: Final = 50
"""Of one user, in one process of the api-server."""
SLOW_SECONDS: Final = 30.0
"""After which a reader whose connection takes no bytes is dropped; until then it holds one chunk, and the connection's buffer."""
HEADERS: Final[Mapping[str, str]] = {
    "Cache-Control": "no-store, no-transform",
    # nginx would hold events back until its buffer is full.
    "X-Accel-Buffering": "no",
}

_open: Counter[str] = Counter()


class EventStream(StreamingResponse):
    """Events, as they come. It counts as one of the user's streams from when it is made until its connection ends."""

    def __init__(self, user: str, events: AsyncIterator[bytes]) -> None:
        super().__init__(events, media_type="text/event-stream", headers=dict(HEADERS))
        self._user = user
        self._events = events
        _open[user] += 1

    @staticmethod
    def may_open(user: str) -> bool:
        """Return whether the user may have one stream more."""
        return _open[user] < MAX_STREAMS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            _open[self._user] -= 1
            if not _open[self._user]:
                del _open[self._user]

    async def stream_response(self, send: Send) -> None:
        """Send the events; return without the end of the body, which closes the connection, where a chunk is not taken in time."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for chunk in self._events:
            with anyio.move_on_after(SLOW_SECONDS) as waiting:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            if waiting.cancelled_caught:
                return
        await send({"type": "http.response.body", "body": b"", "more_body": False})
