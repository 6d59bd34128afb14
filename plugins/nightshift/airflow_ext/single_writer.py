"""Makes Airflow's API server handle one writing request at a time where its database is SQLite.

Airflow writes its audit log on the event loop. While another request's thread holds SQLite's only write lock, that write waits for
the lock, the event loop waits for the write, and the other request cannot commit because its end needs the event loop: nothing is
answered until SQLite's time-out ends the wait. One request that changes something at a time waits for no other.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from airflow.configuration import conf

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

READING = frozenset({"GET", "HEAD", "OPTIONS"})


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
        read = await _body(receive)

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


async def _body(receive: Receive) -> list[Message]:
    messages = [await receive()]
    while messages[-1]["type"] == "http.request" and messages[-1].get("more_body", False):
        messages.append(await receive())
    return messages
