"""Where a fork is not safe, torchrun starts the ranks itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch.distributed import run as torchs
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from training.process import child as processes
from training.process import liveness
from training.process.liveness import Phase
from training.runtime import torchrun
from training.runtime.provenance import CHECKOUT
from training.store import Store

PLAIN = ("--standalone", "--nproc-per-node=2", "--max-restarts=0", "-m", "training.stages.trial", "uri")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What `main` does: `imports`, `forks`, `torchrun`."""
    steps: list[str] = []
    # A torch that is built for GPUs imports no stage before a fork, unless none is visible.
    monkeypatch.setenv(torchrun.GPUS.name, "")
    monkeypatch.setattr(torchrun, "import_only", lambda module: steps.append(f"imports {module}"))
    monkeypatch.setattr(torchrun, "fork_ranks", lambda options: steps.append("forks") or [])
    monkeypatch.setattr(torchs, "main", lambda arguments: steps.append("torchrun"))
    # Threads of the tests' own process.
    monkeypatch.setattr(torchrun, "other_threads", list)
    return steps


def main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["torchrun", *arguments])
    torchrun.main()


def test_ranks_are_forked_after_the_stage_is_imported_and_before_torchrun_begins(
    started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main(monkeypatch, *PLAIN)
    assert started == ["imports training.stages.trial", "forks", "torchrun"]


def test_nothing_is_forked_beside_another_thread(
    started: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torchrun, "other_threads", lambda: ["tokio-worker"])
    main(monkeypatch, *PLAIN)
    assert started == ["imports training.stages.trial", "torchrun"]
    assert "ranks are not forked: tokio-worker runs in addition to the main thread" in capsys.readouterr().err


def test_imports_have_the_limit_of_a_start_and_what_follows_has_none(monkeypatch: pytest.MonkeyPatch, started: list[str]) -> None:
    timers: list[float] = []
    monkeypatch.setenv(liveness.START_LIMIT.name, "500")
    monkeypatch.setattr(torchrun, "import_only", lambda _module: timers.append(signal.getitimer(signal.ITIMER_REAL)[0]))
    monkeypatch.setattr(torchrun, "fork_ranks", lambda _options: timers.append(signal.getitimer(signal.ITIMER_REAL)[0]) or [])
    main(monkeypatch, *PLAIN)
    assert 0 < timers[0] <= 500
    assert timers[1:] == [0.0]


def test_an_import_that_hangs_in_c_code_ends_the_launcher_with_its_stack() -> None:
    code = "import ctypes\nfrom training.runtime import torchrun\nwith torchrun.limited(1):\n    ctypes.PyDLL(None).sleep(600)"
    environment = {**os.environ, liveness.START_LIMIT.name: "1", "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == -signal.SIGALRM
    assert 'File "<string>", line 4' in done.stderr


@pytest.mark.parametrize(("visible", "is_first"), [(None, False), ("0", False), ("", True)])
def test_with_a_torch_for_gpus_ranks_are_forked_before_the_stage_is_imported_unless_all_gpus_are_hidden(
    started: list[str], monkeypatch: pytest.MonkeyPatch, visible: str | None, is_first: bool
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    main(monkeypatch, *PLAIN)
    assert started == [*["imports training.stages.trial"] * is_first, "forks", "torchrun"]


def test_a_thread_of_a_library_is_seen_and_those_that_no_fork_needs_are_not() -> None:
    stop, named = threading.Event(), threading.Barrier(4)
    before = processes.other_threads()

    def run(name: str) -> None:
        # The kernel's name of this thread.
        processes.name_this_process(name)
        named.wait(60)
        stop.wait()

    threads = [threading.Thread(target=run, args=(name,)) for name in ("of a library", processes.ALLOCATOR_THREAD)]
    threads.append(threading.Thread(target=run, args=("python",), name=processes.ALARM_THREAD))
    for thread in threads:
        thread.start()
    named.wait(60)
    try:
        assert processes.other_threads() == sorted([*before, "of a library"])
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, -15), (None, 3)])
def test_a_forked_process_ends_with_the_code_that_popen_gives(number: signal.Signals | None, code: int) -> None:
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 3" if number is None else "exec sleep 600"], os.environ)
    process = processes.ForkedProcess(pid)
    if number is not None:
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.0)
        os.kill(pid, number)
    assert process.wait(600) == code
    assert process.poll() == code


def failures_of(*exit_codes: int) -> ChildFailedError:
    return ChildFailedError("stage", {rank: ProcessFailure(rank, 1, code, "") for rank, code in enumerate(exit_codes)})


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (SignalException("asked to stop", signal.SIGTERM), 143),
        (failures_of(75, 75), 75),
        (failures_of(75, -signal.SIGTERM), 75),
        (failures_of(75, -signal.SIGKILL), None),
        (failures_of(75, 70), None),
        (failures_of(1), None),
    ],
)
def test_launcher_tells_ranks_that_were_asked_to_stop_from_ranks_that_failed(
    monkeypatch: pytest.MonkeyPatch, started: list[str], end: Exception, code: int | None
) -> None:
    def fail(_arguments: list[str]) -> None:
        raise end

    monkeypatch.setattr(torchs, "main", fail)
    with pytest.raises(SystemExit if code else ChildFailedError) as caught:
        main(monkeypatch, *PLAIN)
    assert getattr(caught.value, "code", None) == code


class Ended:
    """A process that has ended."""

    def __init__(self, exit_code: int) -> None:
        self.exit_code = exit_code

    def poll(self) -> int:
        return self.exit_code


def ended_ranks(folder: Path, exit_code: int) -> list[torchrun.Started]:
    """Return ranks 2, which was asked to stop, and 3, which ended so in its validation."""
    path = folder / "rank-3"
    path.write_text(json.dumps(Phase("validation", "epoch 2", 600.0).to_json()))
    return [torchrun.Started(2, Ended(-signal.SIGTERM), ""), torchrun.Started(3, Ended(exit_code), str(path))]


@pytest.mark.parametrize("exit_code", [-signal.SIGALRM, -signal.SIGKILL])
def test_launcher_writes_the_error_of_a_rank_that_hung_with_what_that_rank_did(tmp_path: Path, exit_code: int) -> None:
    work_folder = Store(str(tmp_path / "store")).work_folder("p", "train", "f" * 64)
    torchrun.write_hang_of(ended_ranks(tmp_path, exit_code), f"{work_folder.uri}/attempts/a1/_REQUEST.json")
    error = work_folder.error("a1")
    if exit_code == -signal.SIGKILL:
        assert error is None, "it was not its timer that ended it"
    else:
        assert error is not None
        assert (error["code"], error["rank"]) == ("stage.hung", 3)
        assert error["message"] == "rank 3: no progress in validation (epoch 2) within the limit of 600 s"


def test_launcher_reports_a_rank_that_hung_whose_error_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    uri = f"s3:///stages/p/train/{'f' * 64}/attempts/a1/_REQUEST.json"
    torchrun.write_hang_of(ended_ranks(tmp_path, -signal.SIGALRM), uri)
    assert "the error of rank 3, which hung, could not be written" in capsys.readouterr().err
