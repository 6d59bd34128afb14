"""A DAG is on while a command's nights run, and paused again however the command ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from devstack.airflow_api import AirflowApi
from devstack.dag_pausing import pause_leftovers, switched_on
from nightshift.airflow_ext.schedule_hold import DEAD_HOLD_SECONDS, hold_path, is_held
from tests.unit.devstack.airflow_server import DROP, HANG, AirflowServer, airflow_server
from training.errors import NightshiftError

ROOT = Path(__file__).resolve().parents[4]
DAG = "search_ranking"
HOLD = """
import signal, sys
from pathlib import Path
from devstack.airflow_api import AirflowApi
from devstack.dag_pausing import end_signals_raise, switched_on
client = AirflowApi(sys.argv[1], "admin", "secret")
with end_signals_raise(), switched_on(client, Path(sys.argv[2]), "search_ranking", print):
    print("on", flush=True)
    signal.pause()
"""


@pytest.fixture
def server() -> Iterator[AirflowServer]:
    with airflow_server() as made:
        yield made


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NIGHTSHIFT_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def client(server: AirflowServer) -> AirflowApi:
    return AirflowApi(server.url, "admin", "secret", timeout_seconds=0.5)


def holding(server: AirflowServer, home: Path) -> subprocess.Popen[str]:
    """Return a command that has switched the DAG on."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'plugins'}"}
    command = subprocess.Popen([sys.executable, "-c", HOLD, server.url, str(home)], env=environment, stdout=subprocess.PIPE, text=True)
    assert command.stdout is not None
    assert command.stdout.readline() == "on\n"
    return command


def test_paused_dag_is_unpaused_during_the_run_and_paused_at_the_end(server: AirflowServer, client: AirflowApi, home: Path) -> None:
    with switched_on(client, home, DAG, print):
        assert not server.is_paused
        assert is_held(DAG)
        assert not is_held("another")
    assert server.is_paused
    assert not is_held(DAG)


def test_runs_that_waited_for_a_paused_dag_are_named_before_they_run(server: AirflowServer, client: AirflowApi, home: Path) -> None:
    server.runs = {
        name: {"dag_run_id": name, "state": state}
        for name, state in (("first", "running"), ("second", "queued"), ("night-2026-02-01", "success"))
    }
    said: list[str] = []
    with switched_on(client, home, DAG, said.append):
        pass
    assert said == ["search_ranking was paused; what waited for that runs now: second, first"]
    server.is_paused = True
    server.runs = {f"run-{number}": {"dag_run_id": f"run-{number}", "state": "queued"} for number in range(12)}
    with switched_on(client, home, DAG, said.append):
        pass
    assert said[1].endswith(": run-11, run-10, run-9, run-8, run-7, run-6, run-5, run-4, run-3, run-2 and 2 more")


def test_dag_that_was_on_stays_on_and_its_schedule_counts(server: AirflowServer, client: AirflowApi, home: Path) -> None:
    server.is_paused = False
    with switched_on(client, home, DAG, print):
        assert not is_held(DAG)
    assert server.on_pause == []


@pytest.mark.parametrize("fault", [DROP, HANG, 503])
def test_dag_is_paused_after_an_error_although_the_server_fails_at_first(
    server: AirflowServer, client: AirflowApi, home: Path, fault: int | str
) -> None:
    with pytest.raises(NightshiftError, match="broken"), switched_on(client, home, DAG, print):  # noqa: PT012
        server.faults = [fault]
        raise NightshiftError("test.broken", "broken")
    assert server.is_paused


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_dag_is_paused_again_when_a_signal_ends_the_command(server: AirflowServer, home: Path, number: signal.Signals) -> None:
    command = holding(server, home)
    assert not server.is_paused

    command.send_signal(number)

    command.communicate(timeout=240)
    assert command.returncode != 0
    assert server.is_paused


@pytest.mark.slow
def test_last_of_two_commands_pauses_the_dag(server: AirflowServer, home: Path) -> None:
    first, second = holding(server, home), holding(server, home)

    first.terminate()
    first.communicate(timeout=240)
    assert not server.is_paused

    second.terminate()
    second.communicate(timeout=240)
    assert server.is_paused
    assert server.on_pause == [False, True]


@pytest.mark.slow
def test_dag_that_a_killed_command_left_on_is_paused_by_the_next_start(server: AirflowServer, client: AirflowApi, home: Path) -> None:
    command = holding(server, home)
    other = holding(server, home)
    command.kill()
    command.communicate(timeout=240)
    pause_leftovers(client, home, print)
    assert not server.is_paused, "another command still needs it"
    other.kill()
    other.communicate(timeout=240)
    assert not server.is_paused
    assert is_held(DAG), "the schedule of a DAG that was left on would start a run between two nights"

    said: list[str] = []
    pause_leftovers(client, home, said.append)

    assert server.is_paused
    assert hold_path(home, DAG).read_bytes() == b""
    assert not is_held(DAG), "a DAG that the user switches on from now on runs by its schedule"
    assert said == [f"{DAG} is paused: a command that was killed left it on; to run it by its schedule, switch it on again"]


@pytest.mark.parametrize("sign", [-1, 1])
def test_note_of_a_killed_command_expires_and_that_of_a_running_one_does_not(server: AirflowServer, home: Path, sign: int) -> None:
    command = holding(server, home)
    moment = time.time() + sign * (DEAD_HOLD_SECONDS + 60)
    os.utime(hold_path(home, DAG), (moment, moment))
    assert is_held(DAG)

    command.kill()
    command.communicate(timeout=240)

    assert not is_held(DAG)
    assert not server.is_paused, "a user may keep it on"


def test_note_of_a_removed_pipeline_is_dropped(client: AirflowApi, home: Path) -> None:
    hold_path(home, "gone").parent.mkdir()
    hold_path(home, "gone").write_bytes(b"paused before\n")

    pause_leftovers(client, home, print)

    assert hold_path(home, "gone").read_bytes() == b""


def test_dag_that_cannot_be_paused_is_said_and_the_note_stays(server: AirflowServer, home: Path) -> None:
    client = AirflowApi(server.url, "admin", "secret", is_running=lambda: False)
    said: list[str] = []
    with switched_on(client, home, DAG, said.append):
        server.faults = [500]
    assert "could not be paused again" in said[0]
    assert "the next make start or make run pauses it" in said[0]
    assert not server.is_paused

    pause_leftovers(client, home, said.append)

    assert server.is_paused


def test_slot_that_is_due_is_withdrawn_before_the_dag_is_on(server: AirflowServer, client: AirflowApi, home: Path) -> None:
    server.due = (datetime.now(UTC) - timedelta(hours=3)).isoformat()
    with switched_on(client, home, DAG, print):
        assert server.due is None
    paths = [request.split(" ")[0] + " " + request.split("/v2")[1] for request in server.requests]
    assert paths.index("PUT /parseDagFile/token") < paths.index("PATCH /dags/search_ranking")


def test_slot_of_tomorrow_is_withdrawn_without_a_wait_and_planned_again_at_the_end(
    server: AirflowServer, client: AirflowApi, home: Path
) -> None:
    server.due = (datetime.now(UTC) + timedelta(hours=3)).isoformat()
    with switched_on(client, home, DAG, print):
        assert not server.is_paused
    paths = [request.split(" ")[0] + " " + request.split("/v2")[1] for request in server.requests]
    dag, parse = "/dags/search_ranking", "PUT /parseDagFile/token"
    waiting = f"GET {dag}/dagRuns?state=queued&state=running&limit=10"
    assert paths == [f"GET {dag}", f"GET {dag}", parse, waiting, f"PATCH {dag}", f"PATCH {dag}", parse]
