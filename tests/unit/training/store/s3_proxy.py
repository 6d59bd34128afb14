"""A proxy with faults between a client and an S3 server."""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HOP_BY_HOP = frozenset({"connection", "transfer-encoding", "content-length", "keep-alive"})


class FaultProxy:
    """Forwards requests; what goes wrong is set by its attributes."""

    def __init__(self, upstream_port: int) -> None:
        self.upstream_port = upstream_port
        self.seen: Counter[str] = Counter()
        self.slow_down_share = 0.0
        """Share of requests that are answered with 503 SlowDown, by a seeded generator."""
        self.lose_answer: Callable[[str, str], bool] = lambda method, path: False
        """Whether this request is carried out and its answer lost."""
        self.hang_answer: Callable[[str, str], bool] = lambda method, path: False
        """Whether this request is carried out and its answer does not come for `hang_seconds`."""
        self.break_bodies = 0
        """So many answers to GET stop after half of their body."""
        self.hang_seconds = 0.0
        """How long a broken body hangs before the connection is closed."""
        self.on_break: Callable[[], object] = lambda: None
        """Called while a body is broken off."""
        self.slice_bytes, self.pause_seconds = 0, 0.0
        """Bodies go out in slices of so many bytes, with a pause after each; 0 for at once."""
        self.down = False
        self.answer: Callable[[str, str], tuple[int, str] | None] = lambda method, path: None
        """Status and S3's code to answer this request with instead of carrying it out."""
        self._chance = random.Random(7)  # noqa: S311 - the same faults in every run
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def chance(self, share: float) -> bool:
        """Return True for this share of calls, the same sequence in every run."""
        with self._lock:
            return self._chance.random() < share

    def note(self, request: str) -> None:
        with self._lock:
            self.seen[request] += 1

    def num_seen(self, method: str) -> int:
        """Return how many requests of this method came in, through whatever faults."""
        return sum(count for key, count in self.seen.items() if key.startswith(f"{method} "))

    def takes_break(self) -> bool:
        with self._lock:
            self.break_bodies -= 1
            return self.break_bodies >= 0


class _Handler(BaseHTTPRequestHandler):
    proxy: FaultProxy
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def _handle(self) -> None:
        # A client that has seen enough of a body goes away in the middle of it.
        with suppress(ConnectionError):
            self._serve(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

    def _serve(self, body: bytes) -> None:
        proxy, key = self.proxy, f"{self.command} {self.path.partition('?')[0]}"
        proxy.note(key)
        if proxy.down:
            self._hang_up()
        elif answer := proxy.answer(self.command, self.path) or ((503, "SlowDown") if proxy.chance(proxy.slow_down_share) else None):
            text = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{answer[1]}</Code><Message>as the test says</Message></Error>'
            self._answer(answer[0], {"Content-Type": "application/xml"}, text.encode())
        else:
            status, headers, data = self._forward(body)
            if proxy.hang_answer(self.command, self.path):
                time.sleep(proxy.hang_seconds)
                self._hang_up()
            elif proxy.lose_answer(self.command, self.path):
                self._hang_up()
            elif self.command == "GET" and len(data) > 1000 and status < 300 and proxy.takes_break():
                self._break(status, headers, data)
            else:
                self._answer(status, headers, data)

    def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        upstream = http.client.HTTPConnection("127.0.0.1", self.proxy.upstream_port, timeout=20)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
        upstream.request(self.command, self.path, body=body, headers=headers)
        response = upstream.getresponse()
        data = response.read()
        kept = {name: value for name, value in response.getheaders() if name.lower() not in HOP_BY_HOP}
        if self.command == "HEAD":
            kept["Content-Length"] = response.getheader("Content-Length") or "0"
        upstream.close()
        return response.status, kept, data

    def _answer(self, status: int, headers: dict[str, str], data: bytes) -> None:
        self._send_head(status, headers, len(data))
        if self.command == "HEAD":
            return
        slice_bytes = self.proxy.slice_bytes or max(1, len(data))
        for start in range(0, len(data), slice_bytes):
            self.wfile.write(data[start : start + slice_bytes])
            self.wfile.flush()
            time.sleep(self.proxy.pause_seconds)

    def _break(self, status: int, headers: dict[str, str], data: bytes) -> None:
        self._send_head(status, headers, len(data))
        self.wfile.write(data[: len(data) // 2])
        self.wfile.flush()
        self.proxy.on_break()
        time.sleep(self.proxy.hang_seconds)
        self._hang_up()

    def _send_head(self, status: int, headers: dict[str, str], num_bytes: int) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(num_bytes))
        self.end_headers()

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.close()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


CONFLICT = (409, "ConditionalRequestConflict")


def race(write: Callable[[int], bool]) -> list[int]:
    """Let eight writers write at once; return those whose write returned True."""
    barrier, winners = threading.Barrier(8), []

    def run(writer: int) -> None:
        barrier.wait()
        if write(writer):
            winners.append(writer)

    threads = [threading.Thread(target=run, args=(writer,)) for writer in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return winners


def answers(
    *given: tuple[int, str] | None, method: str = "PUT", then: tuple[int, str] | None = None
) -> Callable[..., tuple[int, str] | None]:
    """Answer requests of a method with these, one after the other (None: carry it out), and all later ones with `then`."""
    left = iter(given)
    return lambda asked, path: next(left, then) if asked == method else None
