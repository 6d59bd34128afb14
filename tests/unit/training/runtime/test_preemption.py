"""A machine that is about to be taken away: what the metadata services of clouds say, from a double, and what a training does then."""

from __future__ import annotations

import email.utils
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.unit.training.engine.loop_bench import LoopBench, after_each_step
from training.errors import PreemptedError, SpecError
from training.runtime import preemption
from training.runtime.context import END_SECONDS, END_SHARE, StopFlag
from training.runtime.preemption import watching

WAIT_SECONDS = 60.0


class Service:
    """Answers as a cloud's metadata service: documents by path; what it was asked."""

    def __init__(self) -> None:
        self.documents: dict[str, str | int] = {}
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.was_asked = threading.Event()
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service.asked.append((self.command, self.path, {name.lower(): value for name, value in self.headers.items()}))
                found = service.documents.get(self.path, 404)
                body = b"" if isinstance(found, int) else found.encode()
                self.send_response(found if isinstance(found, int) else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                service.was_asked.set()

            do_PUT = do_GET

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(preemption, "POLL_SECONDS", 0.02)
    made = Service()
    yield made
    made.server.shutdown()
    made.server.server_close()


def in_seconds(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def aws(seconds: float) -> dict[str, str | int]:
    action = {"action": "terminate", "time": in_seconds(seconds).strftime("%Y-%m-%dT%H:%M:%SZ")}
    return {"/latest/api/token": "a-token", "/latest/meta-data/spot/instance-action": json.dumps(action)}


def gcp(_seconds: float) -> dict[str, str | int]:
    return {"/computeMetadata/v1/instance/preempted": "TRUE"}


def azure(seconds: float) -> dict[str, str | int]:
    events = [
        {"EventType": "Freeze", "NotBefore": email.utils.format_datetime(in_seconds(1), usegmt=True)},
        {"EventType": "Preempt", "NotBefore": email.utils.format_datetime(in_seconds(seconds), usegmt=True)},
    ]
    return {"/metadata/scheduledevents?api-version=2020-07-01": json.dumps({"Events": events})}


def await_condition(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.005)


@pytest.mark.parametrize(("cloud", "documents", "seconds"), [("aws", aws, 120.0), ("gcp", gcp, 30.0), ("azure", azure, 40.0)])
def test_notice_of_each_cloud_stops_the_training_within_its_time(
    service: Service, monkeypatch: pytest.MonkeyPatch, cloud: str, documents: Callable[[float], dict[str, str | int]], seconds: float
) -> None:
    service.documents = documents(seconds)
    monkeypatch.setenv("NIGHTSHIFT_PREEMPTION_NOTICE", f"{cloud}@{service.host}")
    stop = StopFlag()
    with watching(stop):
        await_condition(lambda: stop.requested, "the notice")
    assert stop.seconds_left <= seconds - min(END_SECONDS, END_SHARE * seconds)


def test_aws_is_asked_with_the_token_that_it_gave(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.documents = aws(120)
    monkeypatch.setenv("NIGHTSHIFT_PREEMPTION_NOTICE", f"aws@{service.host}")
    stop = StopFlag()
    with watching(stop):
        await_condition(lambda: stop.requested, "the notice")
    (token, action) = service.asked[:2]
    assert token[:2] == ("PUT", "/latest/api/token")
    assert action[2]["x-aws-ec2-metadata-token"] == "a-token"


@pytest.mark.parametrize(
    ("cloud", "documents"),
    [
        ("aws", {"/latest/api/token": "a-token"}),
        (
            "aws",
            {"/latest/api/token": "t", "/latest/meta-data/spot/instance-action": '{"action": "hibernate", "time": "2026-01-01T00:00:00Z"}'},
        ),
        ("gcp", {"/computeMetadata/v1/instance/preempted": "FALSE"}),
        ("azure", {"/metadata/scheduledevents?api-version=2020-07-01": '{"Events": [{"EventType": "Freeze", "NotBefore": ""}]}'}),
    ],
)
def test_machine_that_stays_is_not_stopped(
    service: Service, monkeypatch: pytest.MonkeyPatch, cloud: str, documents: dict[str, str | int]
) -> None:
    service.documents = documents
    monkeypatch.setenv("NIGHTSHIFT_PREEMPTION_NOTICE", f"{cloud}@{service.host}")
    stop = StopFlag()
    with watching(stop):
        await_condition(lambda: len(service.asked) >= 6, "several questions")
    assert not stop.requested


@pytest.mark.parametrize("answer", [500, "no JSON", "[1]", '{"action": 1}', '{"action": "terminate", "time": "soon"}'])
def test_wrong_answers_are_told_once_and_asked_again(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, answer: str | int
) -> None:
    service.documents = {"/latest/api/token": "a-token", "/latest/meta-data/spot/instance-action": answer}
    monkeypatch.setenv("NIGHTSHIFT_PREEMPTION_NOTICE", f"aws@{service.host}")
    stop = StopFlag()
    with caplog.at_level(logging.WARNING), watching(stop):
        await_condition(lambda: len(service.asked) >= 6, "several questions")
        told = [record for record in caplog.records if "does not say whether this machine stays" in record.message]
        assert len(told) == (0 if answer == '{"action": 1}' else 1)
        service.documents = aws(120)
        await_condition(lambda: stop.requested, "the notice")


@pytest.mark.parametrize("text", ["amazon", "aws@ftp://host", "aws@host", "@http://host"])
def test_value_that_names_no_cloud_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("NIGHTSHIFT_PREEMPTION_NOTICE", text)
    with pytest.raises(SpecError, match="is not the metadata service of a cloud") as caught, watching(StopFlag()):
        pass
    assert caught.value.code == "settings.notice"


@pytest.mark.parametrize("settings", [{}, {"NIGHTSHIFT_PREEMPTION_NOTICE": "aws", "LOCAL_RANK": "1"}])
def test_nothing_is_asked_without_the_variable_or_by_other_processes_of_the_node(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]
) -> None:
    monkeypatch.delenv("NIGHTSHIFT_PREEMPTION_NOTICE", raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with watching(StopFlag()):
        assert not [thread for thread in threading.enumerate() if thread.name == "preemption notice"]


def test_training_with_a_notice_commits_its_step_and_the_next_attempt_goes_on_there(
    service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_PREEMPTION_NOTICE", f"aws@{service.host}")
    bench = LoopBench(tmp_path)
    loop = bench.loop()
    stop = loop._parts.stop

    def after_step() -> None:
        if loop.progress.step == 5:
            service.documents = aws(120)
            await_condition(lambda: stop.requested, "the notice")

    with watching(stop), after_each_step(after_step), pytest.raises(PreemptedError, match="stopped after step 6, which is committed"):
        loop.train()
    loop._parts.checkpoints.close()
    assert bench.saved[-1]["step"] == 6
    assert bench.train().progress.step == 12
