"""`make run` after a backfill of more nights than Airflow answers with at once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path

import pytest

from devstack.next_night import PastRun, latest_first
from devstack.run_command import run_night
from devstack.sources_file import note_places
from nightshift.settings import Settings
from tests.unit.devstack.airflow_server import AirflowServer, airflow_server
from tests.unit.devstack.test_stopped_services import prepare_night, write_state

FIRST = date(2025, 9, 1)
NUM_NIGHTS = 101


@pytest.fixture
def settings(installation: Path) -> Settings:
    made = Settings.from_environment()
    write_state(made, "running")
    note_places(made, print)
    return made


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[AirflowServer]:
    with airflow_server() as made:
        made.run_state = "success"
        prepare_night(made, monkeypatch)
        yield made


def add(server: AirflowServer, run_id: str) -> None:
    server.runs[run_id] = {"dag_run_id": run_id, "state": "success"}


def test_old_night_that_is_run_again_is_a_new_run(settings: Settings, server: AirflowServer) -> None:
    add(server, "night-2025-08-01")
    for number in range(NUM_NIGHTS):
        add(server, f"night-{FIRST + timedelta(days=number)}")
    said: list[str] = []
    assert run_night(settings, "search_ranking", night=date(2025, 8, 1), force=True, say=said.append) == 0
    assert next(reversed(server.runs)) == "night-2025-08-01.2"
    assert any("run night-2025-08-01.2" in line for line in said)


def test_backfill_of_older_nights_does_not_turn_time_back(settings: Settings, server: AirflowServer) -> None:
    add(server, "night-2026-02-03")
    for number in range(NUM_NIGHTS):
        add(server, f"night-{FIRST + timedelta(days=number)}")
    assert run_night(settings, "search_ranking", night=None, force=False, say=lambda _text: None) == 0
    assert next(reversed(server.runs)) == "night-2026-02-04"


def test_tenth_run_of_a_night_is_later_than_its_ninth() -> None:
    ids = ["night-2026-02-03.9", "night-2026-02-03.10", "by-hand", "night-2026-02-03", "night-2026-02-04"]
    expected = ["night-2026-02-04", "night-2026-02-03.10", "night-2026-02-03.9", "night-2026-02-03"]
    assert [run.run_id for run in latest_first([PastRun(run_id, "success") for run_id in ids])] == expected
