"""Services that end during `make run`: after `make stop` the command ends and says why; after a signal it starts them again and goes on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import pytest

from devstack import run_command, service_restarts
from devstack.airflow_api import AirflowApi
from devstack.processes import ProcessId
from devstack.run_command import run_night
from devstack.shutdown import stopped_services_named
from devstack.sources_file import note_places
from devstack.supervisor_state import ComponentState, ServicesState, note_stop
from nightshift.settings import Settings
from tests.unit.devstack.airflow_server import AirflowServer, airflow_server
from training.errors import NightshiftError, UnavailableError

UNREACHABLE = UnavailableError("airflow.unreachable", "connection refused")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in [name for name in os.environ if name.endswith("_URI")]:
        monkeypatch.delenv(name)
    made = Settings.from_environment({"NIGHTSHIFT_HOME": str(tmp_path)})
    write_state(made, "running")
    note_places(made, print)
    return made


@pytest.fixture
def server() -> Iterator[AirflowServer]:
    with airflow_server() as made:
        yield made


def write_state(settings: Settings, state: str) -> None:
    """Write the state of a supervisor that lives: this process."""
    me = ProcessId.of(os.getpid())
    assert me is not None
    ServicesState(me, (ComponentState("api-server", state, None, 0, "/log"),)).write(settings.home)


@pytest.mark.parametrize("is_gone", [True, False], ids=["supervisor gone", "supervisor stopping"])
def test_run_ends_with_the_reason_when_another_command_stops_the_services(
    settings: Settings, server: AirflowServer, monkeypatch: pytest.MonkeyPatch, is_gone: bool
) -> None:
    prepare_night(server, monkeypatch)
    monkeypatch.setattr(service_restarts, "start", lambda *_arguments, **_more: pytest.fail("services were started after make stop"))
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if text.startswith("search_ranking, run night-2026-02-01"):
            note_stop(settings.home)
            write_state(settings, "stopped")
            if is_gone:
                (settings.home / "services.json").unlink()
            server.stop()

    with pytest.raises(NightshiftError) as caught:
        run_night(settings, "search_ranking", night=date(2026, 2, 1), force=False, say=say)

    assert caught.value.code == "services.stopped"
    assert "the services were stopped; the night of search_ranking is not finished" in str(caught.value)
    assert "make run PIPELINE=search_ranking" in caught.value.hint
    assert "search_ranking could not be paused again: Airflow does not answer; the next make start or make run pauses it" in said


@pytest.mark.parametrize("answers", [True, False], ids=["supervisor alone gone", "everything gone"])
def test_run_starts_the_services_again_and_continues_when_a_signal_ended_the_supervisor(
    settings: Settings, server: AirflowServer, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    prepare_night(server, monkeypatch)
    starts: list[dict[str, bool]] = []

    def start_again(_settings: Settings, _say: object, **more: bool) -> None:
        starts.append(more)
        write_state(settings, "running")
        server.run_state = "success"
        if not answers:
            server.start()

    monkeypatch.setattr(service_restarts, "start", start_again)
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if text.startswith("search_ranking, run night-2026-02-01"):
            (settings.home / "services.json").unlink()
            if not answers:
                server.stop()

    assert run_night(settings, "search_ranking", night=date(2026, 2, 1), force=False, say=say) == 0
    assert starts == [{"unless_stopped": True}]
    assert "the supervisor of the services died, and no command stopped it; starting the services again" in said
    assert server.is_paused


def test_command_that_is_ended_together_with_the_services_starts_nothing(
    settings: Settings, server: AirflowServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_night(server, monkeypatch)
    monkeypatch.setattr(service_restarts, "start", lambda *_arguments, **_more: pytest.fail("services were started by a command that ends"))

    def say(text: str) -> None:
        if text.startswith("search_ranking, run night-2026-02-01"):
            (settings.home / "services.json").unlink()
            server.stop()
            raise SystemExit(143)

    with pytest.raises(SystemExit):
        run_night(settings, "search_ranking", night=date(2026, 2, 1), force=False, say=say)


def prepare_night(server: AirflowServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `run_night` talk to the server, and make no data."""

    def client(_settings: Settings, *, is_running: Callable[[], bool]) -> AirflowApi:
        return AirflowApi(server.url, "admin", "secret", is_running=is_running, retry_seconds=3600)

    monkeypatch.setattr(run_command, "start", lambda *_arguments: None)
    monkeypatch.setattr(run_command, "api", client)
    monkeypatch.setattr(run_command, "make_data", lambda *_arguments: None)
    monkeypatch.setattr(run_command, "summary", lambda *_arguments: "summary")


def test_api_server_that_does_not_answer_while_the_services_run_stays_that_error(settings: Settings) -> None:
    with pytest.raises(UnavailableError, match="connection refused"), stopped_services_named(settings.home, "the night", ""):
        raise UNREACHABLE


def test_store_that_does_not_answer_is_not_taken_for_stopped_services(settings: Settings) -> None:
    (settings.home / "services.json").unlink()
    with pytest.raises(UnavailableError, match="no route"), stopped_services_named(settings.home, "the night", ""):
        raise UnavailableError("storage.unavailable", "no route")
