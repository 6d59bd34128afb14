from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from devstack import lifecycle, wait_messages
from devstack.lifecycle import changed_settings, start, wait_ready
from devstack.locking import START_LOCK
from devstack.processes import ProcessId
from devstack.supervisor_state import ComponentState, ServicesState, note_stop
from nightshift.settings import Settings
from training.errors import NightshiftError, SpecError, UnavailableError


def test_a_start_with_slots_of_an_unknown_pool_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    settings = Settings.from_environment({"NIGHTSHIFT_HOME": str(tmp_path / "home"), "NIGHTSHIFT_SLOTS": "cpus:12"})
    with pytest.raises(SpecError, match="uses: cpus"):
        start(settings, print)
    assert not (tmp_path / "home").exists()


def test_services_are_old_when_a_setting_is_new_or_another_but_not_when_it_is_missing() -> None:
    state = ServicesState(ProcessId(1, 0, "b"), (), {"code": "a", "SHOP_URI": "b", "FLIGHTS_URI": "c"})

    assert changed_settings(state, {"code": "a", "SHOP_URI": "b"}) == []
    assert changed_settings(state, {"code": "x", "SHOP_URI": "b", "ORDERS_URI": "d"}) == ["ORDERS_URI", "code"]


def test_busy_port_is_reported_before_anything_is_made(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = str(listener.getsockname()[1])
        settings = Settings.from_environment({"NIGHTSHIFT_HOME": str(home), "NIGHTSHIFT_AIRFLOW_PORT": port})

        with pytest.raises(NightshiftError, match=f"port {port} for Airflow is taken"):
            start(settings, lambda _text: None)

    assert [path.name for path in home.iterdir()] == [START_LOCK]


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(lifecycle, "POLL_SECONDS", 0)
    # Ports on which nothing listens.
    return Settings.from_environment(
        {"NIGHTSHIFT_HOME": str(tmp_path), "NIGHTSHIFT_AIRFLOW_PORT": "1", "NIGHTSHIFT_MLFLOW_PORT": "2", "MLFLOW_TRACKING_URI": ""}
    )


def write_state(home: Path, *components: ComponentState) -> None:
    """Write the state of a supervisor that lives: this process."""
    me = ProcessId.of(os.getpid())
    assert me is not None
    ServicesState(me, components).write(home)


def test_wait_for_the_services_says_which_components_are_awaited_and_for_how_long(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait_messages, "EVERY_SECONDS", 0)
    write_state(settings.home, ComponentState("scheduler", "waiting", None, 0, "/log"))
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wait_ready(settings, since=time.monotonic(), say=say)

    assert said[0].startswith("  waiting for scheduler, Airflow's metadatabase, Airflow's scheduler")
    assert said[0].endswith(", MLflow  0 s")


def test_component_that_ends_again_and_again_ends_the_wait_early(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait_messages, "EVERY_SECONDS", 0)
    log = settings.home / "mlflow.log"
    log.write_text("address already in use\n")
    write_state(settings.home, ComponentState("mlflow", "backoff", None, 3, str(log)))

    def fail_again(_text: str) -> None:
        write_state(settings.home, ComponentState("mlflow", "backoff", None, 8, str(log)))

    with pytest.raises(NightshiftError, match=r"mlflow ended 5 times; missing: mlflow") as caught:
        wait_ready(settings, since=time.monotonic(), say=fail_again)
    assert "address already in use" in str(caught.value)


def test_stop_by_another_command_ends_the_wait_with_that_reason(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait_messages, "EVERY_SECONDS", 0)
    write_state(settings.home, ComponentState("mlflow", "waiting", None, 0, "/log"))

    def stop_by_command(_text: str) -> None:
        note_stop(settings.home)
        (settings.home / "services.json").unlink()

    with pytest.raises(NightshiftError, match=r"services\.stopped.*another command stopped the services.*make start"):
        wait_ready(settings, since=time.monotonic(), say=stop_by_command)


@pytest.fixture
def startable(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings under which a start does nothing but what a test puts in place of `_start`."""
    monkeypatch.setattr(lifecycle, "require_home", lambda _settings: None)
    return settings


def test_start_begins_again_when_its_supervisor_is_killed(startable: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [
        NightshiftError("services.supervisor", "the supervisor ended with -9"),
        UnavailableError("airflow.unreachable", "connection refused"),
    ]
    said: list[str] = []

    def start_once(_settings: Settings, _say: object) -> None:
        if failures:
            raise failures.pop(0)

    monkeypatch.setattr(lifecycle, "_start", start_once)
    start(startable, said.append)

    assert said == [
        "the supervisor ended with -9; starting the services again",
        "connection refused; starting the services again",
    ]


def test_start_waits_for_the_end_of_a_supervisor_that_a_signal_ends(startable: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    write_state(startable.home, ComponentState("scheduler", "stopped", None, 0, "/log"))
    waited: list[ProcessId] = []

    def wait_gone(processes: list[ProcessId], *, timeout_seconds: float) -> None:
        waited.extend(processes)
        (startable.home / "services.json").unlink()

    def launch(_settings: Settings) -> None:
        raise NightshiftError("test.launched", "the services are started")

    monkeypatch.setattr(lifecycle, "wait_gone", wait_gone)
    for step in ("require_free", "require_places", "prepare_home"):
        monkeypatch.setattr(lifecycle, step, lambda _argument: None)
    monkeypatch.setattr(lifecycle, "_launch_supervisor", launch)

    with pytest.raises(NightshiftError, match="the services are started"):
        start(startable, lambda _text: None)
    assert [process.pid for process in waited] == [os.getpid()]


def test_start_whose_supervisor_always_dies_ends_with_its_last_words(startable: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[int] = []

    def fail(_settings: Settings, _say: object) -> None:
        starts.append(1)
        raise NightshiftError("services.supervisor", "the supervisor ended with 1\nImportError")

    monkeypatch.setattr(lifecycle, "_start", fail)
    with pytest.raises(NightshiftError, match="ImportError"):
        start(startable, lambda _text: None)
    assert len(starts) == lifecycle.MAX_STARTS


def test_start_that_a_command_stops_does_not_begin_again(startable: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(settings: Settings, _say: object) -> None:
        note_stop(settings.home)
        raise NightshiftError("services.supervisor", "the supervisor is gone")

    monkeypatch.setattr(lifecycle, "_start", fail)
    with pytest.raises(NightshiftError, match="the supervisor is gone"):
        start(startable, lambda _text: None)
    with pytest.raises(NightshiftError, match=r"services\.stopped"):
        start(startable, lambda _text: None, unless_stopped=True)
