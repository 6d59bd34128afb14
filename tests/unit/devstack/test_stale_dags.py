"""A DAG whose file did not load for a while: Airflow shows it and refuses runs until it has read the corrected file."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from devstack.airflow_api import AirflowApi
from devstack.run_command import wait_parsed
from tests.unit.devstack.airflow_server import AirflowServer, airflow_server
from training.errors import NightshiftError


@pytest.fixture
def server() -> Iterator[AirflowServer]:
    with airflow_server() as made:
        made.is_stale = True
        made.import_errors = [load_error(datetime.now(UTC) - timedelta(minutes=1), "the error before the correction")]
        yield made


def load_error(at: datetime, text: str) -> dict[str, str]:
    return {"filename": "dags/search_ranking.py", "timestamp": at.isoformat(), "stack_trace": text}


def client_of(server: AirflowServer) -> AirflowApi:
    return AirflowApi(server.url, "admin", "secret", timeout_seconds=0.5)


def test_a_corrected_dag_is_waited_for_until_airflow_has_read_it_again(server: AirflowServer) -> None:
    wait_parsed(client_of(server), "search_ranking", lambda _text: None)
    assert not server.is_stale


def test_a_dag_that_still_does_not_load_is_named_with_its_new_error(server: AirflowServer) -> None:
    server.error_of_parsing = load_error(datetime.now(UTC) + timedelta(minutes=1), "the error of now")
    with pytest.raises(NightshiftError, match="the error of now") as caught:
        wait_parsed(client_of(server), "search_ranking", lambda _text: None)
    assert caught.value.code == "night.dag"


def test_an_error_of_a_dag_that_never_loaded_counts_only_if_it_is_newer_than_the_file(server: AirflowServer) -> None:
    server.is_stale, server.unknown_for = False, 2
    wait_parsed(client_of(server), "search_ranking", lambda _text: None, written_at=datetime.now(UTC))
    assert server.unknown_for == 0
    server.unknown_for = 2
    with pytest.raises(NightshiftError, match="the error before the correction"):
        wait_parsed(client_of(server), "search_ranking", lambda _text: None, written_at=datetime.now(UTC) - timedelta(minutes=2))
