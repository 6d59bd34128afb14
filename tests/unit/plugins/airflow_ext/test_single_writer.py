"""Requests that change SQLite at the same time are all answered, as Airflow's API server handles them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from airflow.configuration import conf
from fastapi import Depends, FastAPI
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from nightshift.airflow_ext.single_writer import MAX_BODY_BYTES, SingleWriter
from nightshift_plugin import NightshiftPlugin

NUM_REQUESTS = 24
LOCK_TIMEOUT_SECONDS = 2
WAIT_SECONDS = 60


def server(folder: Path, after_write: Callable[[], object] = lambda: None, before_log: Callable[[], object] = lambda: None) -> FastAPI:
    """Return an application with the two ways in which Airflow's API server writes: in a thread, and on the event loop."""
    engine = create_engine(f"sqlite:///{folder / 'airflow.db'}", connect_args={"timeout": LOCK_TIMEOUT_SECONDS})
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE log (event TEXT)"))

    def session() -> Iterator[Session]:
        with Session(engine) as made:
            yield made
            made.commit()

    opened_by_request = Depends(session, scope="function")

    async def log_action(opened: Session = opened_by_request) -> None:
        before_log()
        opened.execute(text("INSERT INTO log VALUES ('by the event loop')"))
        opened.commit()

    app = FastAPI()

    @app.post("/logged", dependencies=[Depends(log_action)])
    def logged() -> None:
        """Write by the dependency alone."""

    @app.patch("/state")
    def state(opened: Session = opened_by_request) -> None:
        opened.execute(text("INSERT INTO log VALUES ('by a thread')"))
        after_write()

    return app


def client_of(app: object) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app, raise_app_exceptions=False), base_url="http://airflow")  # type: ignore[arg-type]


async def answers(app: object) -> list[int]:
    async with client_of(app) as client:
        requests = [client.post("/logged") if number % 2 else client.patch("/state") for number in range(NUM_REQUESTS)]
        return [answer.status_code for answer in await asyncio.gather(*requests)]


def test_requests_that_write_at_the_same_time_are_all_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "sqlite:////nowhere/airflow.db")
    app = server(tmp_path)

    found = asyncio.run(answers(SingleWriter(app)))

    assert found == [200] * NUM_REQUESTS


@pytest.mark.slow
def test_without_it_such_requests_wait_for_each_other_until_one_fails(tmp_path: Path) -> None:
    # The thread has the lock and commits once the event loop calls it; the event loop stops to wait for that lock.
    written, reached = threading.Event(), threading.Event()

    def hold_the_lock() -> None:
        written.set()
        reached.wait(WAIT_SECONDS)

    app = server(tmp_path, after_write=hold_the_lock, before_log=reached.set)

    async def both() -> list[int]:
        async with client_of(app) as client:
            by_thread = asyncio.create_task(client.patch("/state"))
            await asyncio.to_thread(written.wait, WAIT_SECONDS)
            by_loop = await client.post("/logged")
            return [(await by_thread).status_code, by_loop.status_code]

    assert asyncio.run(both()) == [200, 500]


def test_body_that_arrives_slowly_keeps_no_other_request_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "sqlite:////nowhere/airflow.db")
    assert conf.get("database", "sql_alchemy_conn").startswith("sqlite")
    bodies: list[bytes] = []

    async def app(scope: object, receive: object, send: object) -> None:
        del scope, send
        body = b""
        while True:
            message = await receive()  # type: ignore[operator]
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        bodies.append(body)

    async def run() -> None:
        one = SingleWriter(app)
        rest: asyncio.Queue[dict[str, object]] = asyncio.Queue()
        rest.put_nowait({"type": "http.request", "body": b"slow ", "more_body": True})
        scope = {"type": "http", "method": "POST"}
        waiting = asyncio.create_task(one(scope, rest.get, None))  # type: ignore[arg-type]

        async def whole() -> dict[str, object]:
            return {"type": "http.request", "body": b"quick"}

        await asyncio.wait_for(one(scope, whole, None), 30)  # type: ignore[arg-type]
        rest.put_nowait({"type": "http.request", "body": b"body"})
        await waiting

    asyncio.run(run())

    assert bodies == [b"quick", b"slow body"]


@pytest.mark.parametrize("is_announced", [True, False])
def test_body_above_the_limit_is_refused_before_all_of_it_is_read(monkeypatch: pytest.MonkeyPatch, is_announced: bool) -> None:
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "sqlite:////nowhere/airflow.db")
    chunk = b"x" * (MAX_BODY_BYTES // 4)
    num_read, sent = 0, []

    async def app(scope: object, receive: object, send: object) -> None:
        raise AssertionError("the application was asked")

    async def endless() -> dict[str, object]:
        nonlocal num_read
        num_read += 1
        return {"type": "http.request", "body": chunk, "more_body": True}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(b"Content-Length", str(MAX_BODY_BYTES + 1).encode())] if is_announced else []
    scope = {"type": "http", "method": "POST", "headers": headers}
    asyncio.run(SingleWriter(app)(scope, endless, send))  # type: ignore[arg-type]

    assert num_read == (0 if is_announced else 5)
    assert sent[0]["status"] == 413
    assert dict(sent[0]["headers"])[b"content-type"] == b"application/problem+json"
    assert json.loads(sent[1]["body"])["code"] == "request.too_large"


def test_body_of_the_limit_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "sqlite:////nowhere/airflow.db")
    sizes: list[int] = []

    async def app(_scope: object, receive: Callable[[], Awaitable[dict[str, Any]]], _send: object) -> None:
        sizes.append(len((await receive())["body"]))

    async def whole() -> dict[str, object]:
        return {"type": "http.request", "body": b"x" * MAX_BODY_BYTES}

    scope = {"type": "http", "method": "POST", "headers": [(b"content-length", str(MAX_BODY_BYTES).encode())]}
    asyncio.run(SingleWriter(app)(scope, whole, None))  # type: ignore[arg-type]

    assert sizes == [MAX_BODY_BYTES]


def test_client_that_does_not_read_its_answer_keeps_no_other_request_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "sqlite:////nowhere/airflow.db")

    async def app(_scope: object, _receive: object, send: Callable[[dict[str, object]], Awaitable[None]]) -> None:
        await send({"type": "http.response.start"})

    async def whole() -> dict[str, object]:
        return {"type": "http.request", "body": b""}

    async def run() -> None:
        one = SingleWriter(app)  # type: ignore[arg-type]
        reads, sent = asyncio.Event(), asyncio.Event()

        async def stuck(_message: object) -> None:
            sent.set()
            await reads.wait()

        async def quick(_message: object) -> None: ...

        waiting = asyncio.create_task(one({"type": "http", "method": "POST"}, whole, stuck))  # type: ignore[arg-type]
        await sent.wait()
        await asyncio.wait_for(one({"type": "http", "method": "POST"}, whole, quick), 30)  # type: ignore[arg-type]
        reads.set()
        await waiting

    asyncio.run(run())


def test_airflow_gets_the_middleware_from_the_plugin() -> None:
    assert [entry["middleware"] for entry in NightshiftPlugin.fastapi_root_middlewares] == [SingleWriter]
