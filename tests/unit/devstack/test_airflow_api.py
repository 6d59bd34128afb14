"""What a command does while Airflow's API server is dead, slow or busy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from devstack.airflow_api import AirflowApi
from tests.unit.devstack.airflow_server import DROP, HANG, LOSE_ANSWER, AirflowServer, airflow_server
from training.errors import NightshiftError, UnavailableError

DAG = "/dags/search_ranking"
RUN = {"dag_run_id": "night-2026-02-01", "logical_date": None, "conf": {}}


@pytest.fixture
def server() -> Iterator[AirflowServer]:
    with airflow_server() as made:
        yield made


def client_of(server: AirflowServer, **more: Any) -> AirflowApi:
    return AirflowApi(server.url, "admin", "secret", timeout_seconds=0.5, **more)


@pytest.mark.parametrize("fault", [DROP, HANG, LOSE_ANSWER, 500, 502, 503, 504, 429])
@pytest.mark.parametrize("method", ["GET", "PATCH", "POST"])
def test_repeatable_request_succeeds_after_the_server_failed_for_a_while(server: AirflowServer, method: str, fault: int | str) -> None:
    server.faults = [fault, fault] if fault != HANG else [fault]
    client = client_of(server)

    if method == "GET":
        assert client.get(DAG)["is_paused"] is True
    elif method == "PATCH":
        assert client.patch(DAG, {"is_paused": False})["is_paused"] is False
    else:
        client.create(f"{DAG}/dagRuns", RUN)
        assert list(server.runs) == ["night-2026-02-01"]


def test_run_whose_answer_was_lost_is_made_once_and_counts_as_made(server: AirflowServer) -> None:
    server.faults = [LOSE_ANSWER]

    assert client_of(server).create(f"{DAG}/dagRuns", RUN) is False

    assert server.requests == [f"POST /api/v2{DAG}/dagRuns"] * 2
    assert list(server.runs) == ["night-2026-02-01"]


def test_server_that_is_down_is_waited_for(server: AirflowServer, caplog: pytest.LogCaptureFixture) -> None:
    client = client_of(server)
    server.stop()
    looks = []

    def is_running() -> bool:
        looks.append(1)
        if len(looks) == 3:
            server.start()
        return True

    client._is_running = is_running

    assert client.get(DAG)["is_paused"] is True
    assert [record.message for record in caplog.records if "does not answer" in record.message] == [
        f"Airflow at {server.url} does not answer ([Errno 111] Connection refused); retrying for 60 s"
    ]


def test_busy_login_is_repeated(server: AirflowServer) -> None:
    server.login_faults = [503, 500]

    assert client_of(server).get(DAG)["is_paused"] is True


def test_request_that_may_not_be_repeated_is_sent_once(server: AirflowServer) -> None:
    server.faults = [DROP]

    with pytest.raises(UnavailableError, match=r"airflow\.unreachable"):
        client_of(server).post("/dags/search_ranking/clearTaskInstances", {})
    assert len(server.requests) == 1


def test_refusal_is_final(server: AirflowServer) -> None:
    with pytest.raises(NightshiftError, match=r"airflow\.refused.*404"):
        client_of(server).get("/dags/other")
    assert len(server.requests) == 1


def test_nothing_is_repeated_once_no_supervisor_would_restart_the_server(server: AirflowServer) -> None:
    client = client_of(server, is_running=lambda: False)
    server.stop()

    with pytest.raises(UnavailableError) as caught:
        client.get(DAG)
    assert caught.value.code == "airflow.unreachable"
    assert "make status" in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "code"), [(503, "airflow.refused"), (DROP, "airflow.unreachable")])
def test_server_that_fails_for_longer_is_an_error(server: AirflowServer, fault: int | str, code: str) -> None:
    server.faults = [fault] * 10_000

    with pytest.raises(NightshiftError) as caught:
        client_of(server, retry_seconds=0.5).get(DAG)
    assert caught.value.code == code
    assert len(server.requests) > 1
