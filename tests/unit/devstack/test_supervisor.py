"""A real supervisor in a process of its own, over small sleepers in place of the services."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from devstack.processes import MARK, ProcessId, ProcessMark, marked, marked_by_home
from devstack.shutdown import end_leftovers, running, serving, stop
from devstack.supervisor import Supervisor
from devstack.supervisor_state import ComponentState, ServicesState, is_stop_noted, read_state, take_lock
from training.errors import NightshiftError

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_SECONDS = 240.0

SUPERVISE = """
import json, logging, os, sys
from pathlib import Path
from devstack.supervisor import Component, Supervisor
logging.basicConfig(level=logging.INFO)
components = [Component(environment=dict(os.environ), **one) for one in json.loads(sys.argv[2])]
Supervisor(Path(sys.argv[1]), components, grace_seconds=float(sys.argv[3])).run()
"""
SLEEP = "import time; time.sleep(300)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('deaf', 'w').close(); time.sleep(300)"
# The child has a session of its own, as torchrun's workers have.
WITH_CHILD = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}], start_new_session=True).wait()"
LISTENING_CHILD = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (open('child-was-told', 'w').close(), sys.exit()))
open('child-listens', 'w').close()
time.sleep(300)
"""
WITH_LISTENING_CHILD = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {LISTENING_CHILD!r}]).wait()"


def python(name: str, code: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "command": [sys.executable, "-c", code], **more}


def until(look: Callable[[], Any]) -> Any:
    """Wait for a condition, and return what was seen."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if seen := look():
            return seen
        time.sleep(0.02)
    raise AssertionError("did not happen in time")


class Installation:
    """One supervisor and what it runs."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *components: dict[str, Any], grace_seconds: float = 5.0) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'plugins'}"}
        arguments = [sys.executable, "-c", SUPERVISE, str(self.home), json.dumps(components), str(grace_seconds)]
        self.process = subprocess.Popen(arguments, env=environment, stderr=subprocess.PIPE)
        until(lambda: running(self.home))

    def component(self, name: str) -> ComponentState | None:
        state = read_state(self.home)
        return next((entry for entry in state.components if entry.name == name), None) if state else None

    def alive(self, name: str) -> ProcessId | None:
        entry = self.component(name)
        return entry.process if entry and entry.process and entry.process.alive() else None

    def processes(self, name: str) -> list[ProcessId]:
        return marked(lambda mark: mark.startswith(f"{name}:") and mark.endswith(f":{self.home}"))


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    made = Installation(tmp_path)
    yield made
    stop(tmp_path, lambda _text: None, grace_seconds=0.5)
    if made.process is not None:
        made.process.communicate(timeout=PATIENCE_SECONDS)


def test_dead_component_is_started_again(installation: Installation) -> None:
    installation.start(python("sleeper", SLEEP))
    first = until(lambda: installation.alive("sleeper"))

    os.kill(first.pid, signal.SIGKILL)

    second = until(lambda: (found := installation.alive("sleeper")) and found != first and found)
    entry = installation.component("sleeper")
    assert entry is not None
    assert entry.restarts == 1
    assert second.pid != first.pid


def test_orphans_of_a_dead_component_are_ended_before_it_starts_again(installation: Installation) -> None:
    installation.start(python("parent", WITH_CHILD))
    parent = until(lambda: installation.alive("parent"))
    before = until(lambda: len(found := installation.processes("parent")) == 2 and found)

    os.kill(parent.pid, signal.SIGKILL)

    until(lambda: (found := installation.alive("parent")) and found != parent)
    assert not [process for process in before if process.alive()]


def test_component_that_keeps_dying_is_started_ever_more_rarely(installation: Installation) -> None:
    installation.start(python("broken", "raise SystemExit(3)"), python("sleeper", SLEEP))

    entry = until(lambda: (seen := installation.component("broken")) and seen.restarts >= 2 and seen)

    assert entry.state == "backoff"
    assert installation.alive("sleeper")


def test_step_that_must_be_done_once_holds_back_what_needs_it(installation: Installation) -> None:
    wait_for_gate = "import os, time\nwhile not os.path.exists('gate'): time.sleep(0.02)"
    installation.start(python("migration", wait_for_gate, once=True), python("server", SLEEP, needs="migration"))
    until(lambda: installation.alive("migration"))
    entry = installation.component("server")
    assert entry is not None
    assert entry.state == "waiting"

    (installation.home / "gate").touch()

    until(lambda: installation.alive("server"))
    done = installation.component("migration")
    assert done is not None
    assert (done.state, done.restarts) == ("done", 0)


def test_stop_leaves_no_process_and_touches_no_other(installation: Installation) -> None:
    stranger = subprocess.Popen(
        [sys.executable, "-c", SLEEP], env={**os.environ, MARK: str(ProcessMark.fresh("sleeper", Path("/elsewhere")))}
    )
    try:
        installation.start(python("parent", WITH_CHILD), python("sleeper", SLEEP))
        until(lambda: len(installation.processes("parent")) == 2 and installation.alive("sleeper"))

        stop(installation.home, lambda _text: None)

        assert marked_by_home(installation.home) == []
        assert read_state(installation.home) is None
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_component_deaf_to_sigterm_is_killed_after_the_grace_time(installation: Installation) -> None:
    installation.start(python("deaf", DEAF), grace_seconds=0.3)
    process = until(lambda: (installation.home / "deaf").exists() and installation.alive("deaf"))

    stop(installation.home, lambda _text: None)

    assert not process.alive()


def test_commands_see_that_the_services_are_being_stopped_before_the_last_one_has_ended(installation: Installation) -> None:
    installation.start(python("deaf", DEAF), grace_seconds=60)
    process = until(lambda: (installation.home / "deaf").exists() and installation.alive("deaf"))
    assert serving(installation.home)

    assert installation.process is not None
    installation.process.send_signal(signal.SIGTERM)

    until(lambda: not serving(installation.home))
    assert process.alive()
    process.send(signal.SIGKILL)
    installation.process.wait(PATIENCE_SECONDS)
    assert read_state(installation.home) is None


def test_services_are_ended_even_if_the_state_file_cannot_be_written(installation: Installation) -> None:
    installation.start(python("sleeper", SLEEP))
    process = until(lambda: installation.alive("sleeper"))
    assert installation.process is not None
    # As on a full disk: the draft of the state cannot be made.
    (installation.home / f"services.{installation.process.pid}").mkdir()

    installation.process.send_signal(signal.SIGTERM)

    assert installation.process.wait(PATIENCE_SECONDS) == 0
    assert not process.alive()


def test_sigterm_goes_to_the_component_alone_and_not_to_its_children(installation: Installation) -> None:
    installation.start(python("parent", WITH_LISTENING_CHILD))
    until(lambda: (installation.home / "child-listens").exists())

    stop(installation.home, lambda _text: None)

    assert not (installation.home / "child-was-told").exists()
    assert marked_by_home(installation.home) == []


def test_after_the_supervisor_was_killed_stop_still_ends_what_it_started(installation: Installation) -> None:
    installation.start(python("parent", WITH_CHILD))
    until(lambda: len(installation.processes("parent")) == 2)
    assert installation.process is not None
    installation.process.kill()
    installation.process.wait()
    assert running(installation.home) is None
    said: list[str] = []

    stop(installation.home, said.append)

    assert said == ["ending 2 processes that an earlier supervisor left"]
    assert marked_by_home(installation.home) == []
    assert read_state(installation.home) is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_supervisor_that_a_signal_ended_is_not_noted_as_stopped_by_a_command(installation: Installation, number: signal.Signals) -> None:
    installation.start(python("sleeper", SLEEP))
    assert installation.process is not None
    installation.process.send_signal(number)
    installation.process.wait(PATIENCE_SECONDS)
    assert not is_stop_noted(installation.home)

    stop(installation.home, lambda _text: None)

    assert is_stop_noted(installation.home)


def test_stop_of_an_installation_that_was_never_made_makes_no_folder(tmp_path: Path) -> None:
    stop(tmp_path / "none", lambda _text: None)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(("change", "value"), [("start_ticks", 1), ("boot_id", "another boot")])
def test_stale_state_file_never_identifies_another_process_with_a_reused_pid(tmp_path: Path, change: str, value: Any) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", SLEEP])
    try:
        found = ProcessId.of(bystander.pid)
        assert found is not None
        record = asdict(replace(found, **{change: value}))
        entry = {"name": "scheduler", "state": "running", "process": record, "restarts": 0, "log_path": "x"}
        (tmp_path / "services.json").write_text(json.dumps({"supervisor": record, "components": [entry], "settings": {}}))

        assert running(tmp_path) is None
        assert end_leftovers(tmp_path, lambda _text: None) == 0
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_supervisor_lives_on_when_the_clock_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    me = ProcessId.of(os.getpid())
    assert me is not None
    ServicesState(me).write(tmp_path)
    # The kernel derives it from the clock.
    booted_at = psutil.boot_time()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: booted_at + 2)
    assert running(tmp_path) is not None
    assert me.alive()
    assert ProcessId.of(os.getpid()) == me


def test_second_supervisor_of_an_installation_is_refused(tmp_path: Path) -> None:
    lock = take_lock(tmp_path)
    assert lock is not None
    with lock, pytest.raises(NightshiftError, match="another supervisor runs the services") as caught:
        Supervisor(tmp_path, []).run()
    assert caught.value.code == "services.running"


def test_damaged_state_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "services.json").write_text('{"supervisor": 3}')

    with pytest.raises(NightshiftError, match=r"services\.json is damaged") as caught:
        read_state(tmp_path)
    assert caught.value.code == "services.state"
