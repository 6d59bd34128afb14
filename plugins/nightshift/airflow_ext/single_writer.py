"""Makes Airflow's API server handle one writing request at a time where its database is SQLite.

Airflow writes its audit log on the event loop. While another request's thread holds SQLite's only write lock, that write waits for
the lock, the event loop waits for the write, and the other request cannot commit because its end needs the event loop: nothing is
answered until SQLite's time-out ends the wait. One request that changes something at a time waits for no other.

A request's body is held in memory until its turn, so it is bounded: a larger one is answered 413 before all of it is read.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Final

from airflow.configuration import conf

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

READING = frozenset({"GET", "HEAD", "OPTIONS"})
MAX_BODY_BYTES: Final = 32 * 1024 * 1024
"""Of any request; the REST API of Nightshift has a smaller limit of its own."""


class SingleWriter:
    """ASGI middleware: requests of other methods than GET, HEAD and OPTIONS run one after the other; with PostgreSQL it does nothing."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._is_needed = conf.get_mandatory_value("database", "sql_alchemy_conn").startswith("sqlite")
        self._writing = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if not self._is_needed or scope["type"] != "http" or scope["method"] in READING:
            await self._app(scope, receive, send)
            return
        # The body comes first: a client that sends it slowly must not keep others from writing.
        read = await _body(scope, receive)
        if read is None:
            await _refuse(send)
            return

        async def again() -> Message:
            return read.pop(0) if read else await receive()

        answer: list[Message] = []

        async def keep(message: Message) -> None:
            answer.append(message)

        try:
            async with self._writing:
                await self._app(scope, again, keep)
        finally:
            # A client that does not read its answer must not keep others from writing either.
            for message in answer:
                await send(message)


async def _body(scope: Scope, receive: Receive) -> list[Message] | None:
    """Return the messages with a request's body; None where it is too large."""
    if _announced(scope) > MAX_BODY_BYTES:
        return None
    messages = [await receive()]
    num_bytes = len(messages[0].get("body", b""))
    while messages[-1]["type"] == "http.request" and messages[-1].get("more_body", False):
        if num_bytes > MAX_BODY_BYTES:
            return None
        messages.append(await receive())
        num_bytes += len(messages[-1].get("body", b""))
    return None if num_bytes > MAX_BODY_BYTES else messages


def _announced(scope: Scope) -> int:
    """Return the size that the request's header gives, 0 where it gives none; the server checks that the body has it."""
    sizes = [value for name, value in scope.get("headers", ()) if name.lower() == b"content-length"]
    return int(sizes[0]) if sizes and sizes[0].isdigit() else 0


async def _refuse(send: Send) -> None:
    body = json.dumps(
        {
            "type": "about:blank",
            "title": "Body too large",
            "status": 413,
            "detail": f"the body is above {MAX_BODY_BYTES:,} bytes",
            "code": "request.too_large",
            "hint": "send less",
            "errors": [],
        }
    ).encode()
    # What the client still sends is not read.
    headers = [(b"content-type", b"application/problem+json"), (b"content-length", str(len(body)).encode()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": body})
