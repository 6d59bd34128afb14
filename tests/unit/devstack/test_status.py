"""What `make status` counts as memory of the services, and what as memory of running tasks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from devstack.processes import MARK, ProcessId
from devstack.status import TASKS, memory_bytes
from devstack.supervisor_state import ComponentState
from nightshift.settings import Settings

FAMILY = """
import os, subprocess, sys
level = int(sys.argv[1])
print(os.getpid(), flush=True)
child = subprocess.Popen([sys.executable, *sys.orig_argv[1:-1], str(level - 1)], stdin=0) if level else None
sys.stdin.read()
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.from_environment({"NIGHTSHIFT_HOME": str(tmp_path)})


@pytest.fixture
def scheduler(settings: Settings) -> Iterator[list[int]]:
    """Return the pids of a process, its child and its grandchild, as of scheduler, worker and task."""
    environment = {**os.environ, MARK: f"scheduler:token:{settings.home}"}
    command = [sys.executable, "-c", FAMILY, "2"]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pids = [int(process.stdout.readline()) for _ in range(3)]
    yield pids
    for pid in reversed(pids):
        psutil.Process(pid).kill() if psutil.pid_exists(pid) else None
    process.communicate()


@pytest.mark.slow
def test_memory_of_a_running_task_is_not_the_schedulers(settings: Settings, scheduler: list[int]) -> None:
    state = [ComponentState("scheduler", "running", ProcessId.of(scheduler[0]), 0, "log")]
    during = memory_bytes(settings, state)
    assert during["scheduler"] > 0
    assert during[TASKS] > 0
    task = psutil.Process(scheduler[2])
    task.kill()
    # Its parent does not wait for it, so it stays as a zombie.
    while task.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    after = memory_bytes(settings, state)
    assert after["scheduler"] > 0
    assert after[TASKS] == 0


def test_age_of_a_process_is_that_of_its_start() -> None:
    me = ProcessId.of(os.getpid())
    assert me is not None
    assert me.age_seconds == pytest.approx(time.time() - psutil.Process().create_time(), abs=60)


def test_component_that_does_not_run_has_no_memory(settings: Settings) -> None:
    assert memory_bytes(settings, [ComponentState("mlflow", "backoff", None, 1, "log")]) == {"mlflow": 0, TASKS: 0}
