"""200 readers of one training, through nginx that honours `X-Accel-Buffering` and nginx that ignores it; the server is killed meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from airflow.api_fastapi.auth.tokens import get_signing_key

from nightshift.client import Client, metric_stream
from tests.unit.plugins.api.test_rest_metrics import PATH, journal, set_state, write
from tests.unit.plugins.seeded_installation import API, DONE, Seeded
from training.runtime.provenance import CHECKOUT
from training.store.metric_journal import JournalWriter

NUM_READERS = 200
USERS = 5
NUM_POINTS = 300
KILLED_AT = 100
PAUSE_SECONDS = 0.02
RECONNECT_SECONDS = 0.3
CONFIG = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u;
  scgi_temp_path {folder}/s;
  server {{ listen 127.0.0.1:{honest}; location / {{ proxy_pass http://127.0.0.1:{server}; }} }}
  server {{ listen 127.0.0.1:{deaf}; location / {{ proxy_pass http://127.0.0.1:{server}; proxy_ignore_headers X-Accel-Buffering; }} }}
}}
"""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def comes_true(condition: Callable[[], bool]) -> bool:
    """Return whether a condition holds within a minute."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


def answers(port: int) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"http://127.0.0.1:{port}/nightshift{API}/openapi.json", trust_env=False).status_code == 401
    return False


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen(arguments, cwd=CHECKOUT)
    try:
        yield started
    finally:
        started.kill()
        started.wait()


@contextmanager
def api_server(port: int) -> Iterator[subprocess.Popen[bytes]]:
    with process(sys.executable, "-m", "tests.unit.plugins.api.served_application", str(port)) as server:
        assert comes_true(lambda: answers(port))
        yield server


class Reader:
    """A browser's EventSource: it connects again where it was cut off, with the id of the last whole event."""

    def __init__(self, port: int, headers: dict[str, str]) -> None:
        self.port, self.headers = port, headers
        self.steps: list[int] = []
        self.last = ""
        self.num_connections = 0

    async def run(self) -> None:
        while not await self._connection():
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _connection(self) -> bool:
        """Read until the connection ends; return whether that was the training's end."""
        lines = [f"GET /nightshift{API}{PATH} HTTP/1.0", "Host: localhost", "Accept: text/event-stream"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        lines += [f"Last-Event-ID: {self.last}"] if self.last else []
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        try:
            writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
            status = await reader.readline()
            if b" 200 " not in status:
                return False
            self.num_connections += 1
            await reader.readuntil(b"\r\n\r\n")
            return await self._events(reader)
        except (OSError, asyncio.IncompleteReadError):
            return False
        finally:
            writer.close()

    async def _events(self, reader: asyncio.StreamReader) -> bool:
        while True:
            block = (await reader.readuntil(b"\n\n")).decode()
            fields = dict(line.split(": ", 1) for line in block.strip().splitlines() if not line.startswith(":"))
            if fields.get("event") == "end":
                return True
            if "data" in fields and "event" not in fields:
                self.steps.append(json.loads(fields["data"])["step"])
                self.last = fields["id"]


@pytest.fixture
def nginx(tmp_path: Path) -> Iterator[tuple[int, int, int]]:
    """Return the ports of the server behind it, of nginx as it is by default, and of nginx that ignores the header."""
    server, honest, deaf = free_port(), free_port(), free_port()
    folder = tmp_path / "nginx"
    folder.mkdir()
    (folder / "nginx.conf").write_text(CONFIG.format(folder=folder, server=server, honest=honest, deaf=deaf))
    with process("nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")):
        yield server, honest, deaf


def train(killed: Callable[[], None]) -> None:
    """Write the points of two attempts, and end the training."""
    writer = JournalWriter(journal(), "a1")
    pause = threading.Event()
    for step in range(NUM_POINTS):
        if step == NUM_POINTS // 2:
            writer = JournalWriter(journal(), "a2")
        write(writer, range(step, step + 1))
        if step == KILLED_AT:
            killed()
        pause.wait(PAUSE_SECONDS)
    writer.close()
    set_state("running", "success")


def test_every_reader_has_every_point_once_and_in_order(
    seeded: Seeded, nginx: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The key that this process has made for its tokens: the server has to know it.
    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", get_signing_key("api_auth", "jwt_secret"))
    monkeypatch.setattr(metric_stream, "SILENT_SECONDS", 1.5)
    monkeypatch.setattr("nightshift.client.client.SILENT_SECONDS", 1.5)
    set_state("running", "running")
    port, *proxies = nginx
    readers = [Reader(proxies[number % 2], seeded.headers(f"user{number % USERS}", "viewer")) for number in range(NUM_READERS)]
    token = seeded.headers("client", "viewer")["Authorization"].removeprefix("Bearer ")
    by_client: dict[int, list[int]] = {proxy: [] for proxy in proxies}

    def follow(proxy: int) -> None:
        with Client(f"http://127.0.0.1:{proxy}", lambda: token, is_local=True) as client:
            by_client[proxy] += [point.step for point in client.metrics(f"search_ranking:{DONE}", follow=True)]

    async def read_all() -> None:
        await asyncio.gather(*(reader.run() for reader in readers))

    with api_server(port) as first:
        threads = [threading.Thread(target=asyncio.run, args=(read_all(),))]
        threads += [threading.Thread(target=follow, args=(proxy,)) for proxy in proxies]
        for thread in threads:
            thread.start()
        assert comes_true(lambda: all(reader.num_connections for reader in readers))
        training = threading.Thread(target=train, args=(lambda: os.kill(first.pid, signal.SIGKILL),))
        training.start()
        assert first.wait(60) == -signal.SIGKILL
    with api_server(port):
        for thread in (training, *threads):
            thread.join(120)
    assert Counter(tuple(reader.steps) for reader in readers) == {tuple(range(NUM_POINTS)): NUM_READERS}
    assert by_client == {proxy: list(range(NUM_POINTS)) for proxy in proxies}
    assert all(reader.num_connections == 2 for reader in readers), "the server was killed while they read"
