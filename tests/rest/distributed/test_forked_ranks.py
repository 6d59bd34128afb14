"""Ranks that are forked from one import are processes as torchrun starts them: environment, session, output, exit codes, signals.

What a rank inherits, and how it ends, is seen in processes alone: these are runs of torchrun.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.launched import await_condition, processes_of
from training.runtime.provenance import CHECKOUT

pytestmark = pytest.mark.distributed

WAIT_SECONDS = 240.0
PROGRAM = "tests.distributed.shown_rank"
OPTIONS = ("--standalone", "--nproc-per-node=2", "--max-restarts=0", "-m", PROGRAM)
OF_A_RUN = {"MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "TMPDIR"}
"""Variables that no two runs of torchrun have in common."""


def start(folder: Path, how: str = "", launcher: str = "training.runtime.torchrun", *python: str) -> subprocess.Popen[str]:
    folder.mkdir()
    environment = {
        **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        "PYTHONPATH": str(CHECKOUT),
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(folder),
    }
    command = [sys.executable, *python, "-m", launcher, *OPTIONS, str(folder), *([how] if how else [])]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, cwd=CHECKOUT, env=environment, text=True, **pipes)


def ended(process: subprocess.Popen[str]) -> str:
    try:
        return process.communicate(timeout=WAIT_SECONDS)[0]
    finally:
        process.kill()


def shown(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(2)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, int, str]]:
    """Launcher to its folder, pid and output."""
    found = {}
    for launcher in ("training.runtime.torchrun", "torch.distributed.run"):
        folder = tmp_path_factory.mktemp("runs") / "run"
        process = start(folder, launcher=launcher)
        output = ended(process)
        assert process.returncode == 0, output
        found[launcher] = folder, process.pid, output
    return found


def test_a_forked_rank_is_a_process_as_torchrun_starts_it(runs: dict[str, tuple[Path, int, str]]) -> None:
    (folder, pid, output), (other_folder, other_pid, _) = runs.values()
    for rank, (forked, spawned) in enumerate(zip(shown(folder), shown(other_folder), strict=True)):
        own, others = forked.pop("environment"), spawned.pop("environment")
        assert own.keys() == others.keys()
        assert {name for name in own if own[name] != others[name]} == OF_A_RUN
        assert own["RANK"] == own["LOCAL_RANK"] == str(rank)
        assert (forked.pop("parent"), spawned.pop("parent")) == (pid, other_pid)
        assert forked.pop("comm") == f"rank {rank}"
        # Of the launcher's store and its sockets a rank has nothing: the port would outlive the launcher.
        assert "socket" not in forked["descriptors"]
        for facts, where in ((forked, folder), (spawned, other_folder)):
            assert facts.pop("arguments")[1:] == [str(where)]
        for name in ("comm", "descriptors", "pid", "random"):
            forked.pop(name, None), spawned.pop(name, None)
        assert forked == spawned
    assert sorted(line for line in output.splitlines() if line.startswith("rank ")) == ["rank 0 writes", "rank 1 writes"]


def test_ranks_of_one_import_draw_different_numbers(runs: dict[str, tuple[Path, int, str]]) -> None:
    first, second = shown(runs["training.runtime.torchrun"][0])
    assert first["random"] != second["random"]


@pytest.mark.parametrize(("how", "code"), [("raise", "exitcode  : 1"), ("exit", "exitcode  : 4"), ("kill", "exitcode  : -9")])
def test_the_end_of_a_rank_is_reported_as_torchrun_does_and_nothing_that_it_wrote_is_lost(tmp_path: Path, how: str, code: str) -> None:
    process = start(tmp_path / "run", how)
    output = ended(process)
    assert process.returncode == 1
    assert code in output
    assert "rank 1 writes" in output
    assert ("ValueError: rank 1 raises" in output) == (how == "raise")
    assert processes_of(str(tmp_path)) == []


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Yield a launcher, and its ranks, which wait for a signal."""
    folder = tmp_path / "run"
    process = start(folder, "wait")
    try:
        await_condition(lambda: all((folder / f"{rank}.json").exists() for rank in range(2)) or process.poll() is not None, "the ranks")
        yield process, [facts["pid"] for facts in shown(folder)]
    finally:
        process.kill()
        process.wait()
        await_condition(lambda: processes_of(str(folder)) == [], "the end of all")


def test_ranks_die_with_a_launcher_that_is_killed(waiting: tuple[subprocess.Popen[str], list[int]]) -> None:
    process, ranks = waiting
    process.kill()
    process.wait()
    await_condition(lambda: not any(Path(f"/proc/{pid}").exists() for pid in ranks), "the ranks to die")


def test_a_stop_of_the_launcher_reaches_each_rank(waiting: tuple[subprocess.Popen[str], list[int]]) -> None:
    process, ranks = waiting
    process.send_signal(signal.SIGTERM)
    output = ended(process)
    assert process.returncode not in (0, -signal.SIGTERM), "torchrun ends its ranks, and then itself"
    for pid in ranks:
        assert f"Sending process {pid} closing signal SIGTERM" in output
        assert not Path(f"/proc/{pid}").exists()


IMPORTING = """
import os, sys, time
from pathlib import Path
from training.runtime import torchrun

def begun(*_arguments):
    Path(sys.argv.pop(1)).touch()
    time.sleep(600)

import torch.distributed.run
torch.distributed.run.main = begun
torchrun.main()
"""


def test_ranks_that_are_not_started_yet_die_with_their_launcher(tmp_path: Path) -> None:
    (program := tmp_path / "begins.py").write_text(IMPORTING.replace("sys.argv.pop(1)", repr(str(tmp_path / "begun"))), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, str(program), *OPTIONS, str(tmp_path)], cwd=CHECKOUT, env=environment)
    try:
        await_condition(lambda: (tmp_path / "begun").exists() or process.poll() is not None, "torchrun to begin")
        children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        assert [Path(f"/proc/{pid}/comm").read_text() for pid in children] == ["rank ?\n", "rank ?\n"]
    finally:
        process.kill()
        process.wait()
    await_condition(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), "the ranks to die")
