"""Trainings that torchrun launches, and ways to kill their processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.training_bench import Bench
from training.runtime.provenance import CHECKOUT

WAIT_SECONDS = 240.0
TORCHRUN = ("-m", "training.runtime.torchrun", "--standalone", "--nnodes=1", "--nproc-per-node=2", "--max-restarts=0")

Kill = Callable[[int], None]
"""Takes torchrun's process id."""


def await_condition(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {WAIT_SECONDS:.0f} s for {what}")
        time.sleep(0.02)


def start(bench: Bench, name: str, attempt_id: str, *options: str) -> subprocess.Popen[bytes]:
    """Start a training; `options` are torchrun's."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        # Nobody listens there, and nobody is asked twice.
        "MLFLOW_TRACKING_URI": "http://127.0.0.1:9",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    }
    command = [sys.executable, *TORCHRUN, *options, "-m", "training.stages.train", bench.ask_train(name, attempt_id)]
    with log_path(bench, name, attempt_id).open("wb") as log:
        return subprocess.Popen(command, cwd=CHECKOUT, env=environment, stdout=log, stderr=subprocess.STDOUT)


def log_path(bench: Bench, name: str, attempt_id: str) -> Path:
    """Return the path of what torchrun and its ranks print."""
    return Path(bench.store.root_uri.removeprefix("file://")).parent / f"{name}-{attempt_id}.log"


def finish(bench: Bench, name: str, attempt_id: str = "a1") -> str:
    """Train to the end; return the weights' digest."""
    process = start(bench, name, attempt_id)
    try:
        assert process.wait(WAIT_SECONDS) == 0, bench.work_folder("train", name).error(attempt_id)
    finally:
        process.kill()
        process.wait()
    return bench.weights(name)


def processes_of(text: str) -> list[int]:
    """Return the pids of the processes whose command line has `text` in it."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and text.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def rank_of(torchrun_pid: int, rank: int) -> int:
    """Return the pid of one of torchrun's ranks."""
    for child in Path(f"/proc/{torchrun_pid}/task/{torchrun_pid}/children").read_text().split():
        if Path(f"/proc/{child}/comm").read_text() == f"rank {rank}\n":
            return int(child)
    raise LookupError(f"torchrun has no rank {rank}")


def signal_rank(rank: int) -> Kill:
    return lambda pid: os.kill(rank_of(pid, rank), signal.SIGKILL)


def signal_torchrun(number: signal.Signals) -> Kill:
    return lambda pid: os.kill(pid, number)


def kill_after_a_checkpoint(bench: Bench, name: str, number: int, kill: Kill | None = None, code: int | None = None) -> None:
    """Train until so many checkpoints are committed, and kill a process, rank 1 if none is given; return when all have ended.

    Args:
        code: that torchrun ends with, where that is known.
    """
    process = start(bench, name, "a1")
    try:
        await_condition(lambda: len(bench.checkpoints(name)) >= number or process.poll() is not None, "a checkpoint")
        (kill or signal_rank(1))(process.pid)
        ended = process.wait(WAIT_SECONDS)
        assert ended != 0 if code is None else ended == code
    finally:
        process.kill()
        process.wait()
    await_condition(lambda: processes_of(bench.work_folder("train", name).uri) == [], "the ranks to end")
