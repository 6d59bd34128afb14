"""The template of the stages where it, or the system, does not answer: what runs goes on or ends, and the next stage is started."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from errno import EAGAIN
from pathlib import Path
from typing import Any, NoReturn

import pytest

from devstack.processes import kill_all, marked_by_home
from nightshift.execution import forked_stage
from nightshift.execution.forked_stage import ForkedStage, fork_stage
from tests.unit.plugins.execution.test_forked_stage import WAITS, is_alive, started, until
from training.runtime import template
from training.runtime.template import Template, at_start, end_of, stamps_of_code

FOLDER = Path.cwd()
SLOW_LIBRARY = """
import time
from pathlib import Path
begun = Path(__file__).with_name("importing")
begun.touch()
time.sleep(60)
begun.unlink()
"""
TWO_THREADS = {**os.environ, "OMP_NUM_THREADS": "2"}


class Here:
    """Templates of this process: what `fork_stage` starts, each in a thread."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.listeners: list[socket.socket] = []
        self.stamps: list[template.Stamps] = []
        self.answers = True

    def start(self, place: str, folder: str, environment: object) -> None:
        Path(place).unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(place)
        listener.listen()
        self.listeners.append(listener)
        stamps: template.Stamps = {}
        self.stamps.append(stamps)
        if self.answers:
            found = Template(listener, lambda: dict(stamps))
            threading.Thread(target=found.serve, args=(iter(()),), daemon=True).start()

    def stage(self) -> ForkedStage | None:
        return fork_stage(self.home, ["this"], dict(os.environ), FOLDER, lambda line: None)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    found = Here(tmp_path)
    monkeypatch.setattr(forked_stage, "_start", found.start)
    has = {"executable": sys.executable, "folder": str(FOLDER), "environment": at_start(os.environ), "threads": []}
    monkeypatch.setattr(template, "identity", lambda: has)
    yield found
    # A template whose code was edited ends when it is asked.
    found.stamps[-1]["edited"] = (0, 0)
    found.answers = False
    monkeypatch.setattr(forked_stage, "ANSWER_SECONDS", 0.05)
    found.stage()
    for listener in found.listeners:
        listener.close()


def refuses(*_: object) -> NoReturn:
    raise BlockingIOError(EAGAIN, os.strerror(EAGAIN))


@pytest.mark.timeout(60)
def test_stage_for_which_the_system_has_no_process_costs_the_template_nothing(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fork", refuses)
    for _ in range(2):
        stage = here.stage()
        assert stage is not None
        assert (stage.stdout.read(), stage.wait(), stage.is_lost) == (b"", -signal.SIGKILL, True)
    assert len(here.stamps) == 1


def test_template_that_does_not_answer_is_waited_for_once(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked_stage, "ANSWER_SECONDS", 0.05)
    here.answers = False
    assert here.stage() is None
    here.answers = True
    monkeypatch.setattr(os, "fork", refuses)
    assert here.stage() is not None
    assert here.stage() is not None
    assert len(here.stamps) == 2


def test_threads_of_a_library_for_numbers_are_no_reason_to_refuse_a_fork() -> None:
    program = "import numpy; from training.runtime import template; template.end_blas_threads(); print(template.identity()['threads'])"
    done = subprocess.run([sys.executable, "-c", program], env=TWO_THREADS, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


def test_end_of_a_process_is_seen_by_a_python_without_pidfds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as process, selectors.DefaultSelector() as selector:
        end = end_of(process.pid)
        selector.register(end, selectors.EVENT_READ)
        assert selector.select(0) == []
        assert process.stdin is not None
        process.stdin.close()
        assert selector.select(60)
        os.close(end)
    with pytest.raises(OSError, match="pidfd_open: No such process"):
        end_of(process.pid)


def test_folder_of_code_that_goes_while_stamps_are_taken_ends_no_template(monkeypatch: pytest.MonkeyPatch) -> None:
    scandir: Callable[[Any], Any] = os.scandir

    def gone(path: Any) -> Any:
        if Path(path).name == "runtime":
            raise FileNotFoundError(path)
        return scandir(path)

    before = stamps_of_code()
    monkeypatch.setattr(os, "scandir", gone)
    assert 0 < len(stamps_of_code()) < len(before)


def test_stage_whose_task_has_ended_does_not_wait_for_an_import_of_its_template(tmp_path: Path) -> None:
    # In the place of one of the template's libraries.
    (tmp_path / "alembic.py").write_text(SLOW_LIBRARY, encoding="utf-8")
    try:
        stage, lines = started(tmp_path, f"import os; print(os.getpid(), flush=True); {WAITS}")
        pid = int(next(lines))
        assert until((tmp_path / "importing").exists)
        stage._connection.close()
        assert until(lambda: not is_alive(pid))
        assert (tmp_path / "importing").exists()
    finally:
        kill_all(lambda: marked_by_home(tmp_path))
