"""What a process's timer is set to by phases and movements, and that it ends whatever hangs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from training.process import liveness
from training.process.liveness import FIRST_RANK_SECONDS, Phase
from training.runtime.provenance import CHECKOUT

LIMIT_SECONDS = 600.0
WAIT_SECONDS = 240.0
START = """
import ctypes, os, re, signal, threading
from training.process import liveness
liveness.watch()
"""


@pytest.fixture
def timer(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the timer was set to; nothing is armed. The process is in a step."""
    armed: list[float] = []
    monkeypatch.setattr(signal, "getsignal", lambda _number: signal.SIG_DFL)
    monkeypatch.setattr(signal, "setitimer", lambda _which, seconds: armed.append(seconds))
    watched = liveness._Watched(limits={"step": LIMIT_SECONDS}, extra_seconds=0.0, note=None, is_starting=False)
    monkeypatch.setattr(liveness, "_watched", watched)
    watched.enter("step", "epoch 1")
    return armed


def present() -> tuple[str, str, float]:
    found = liveness.present()
    assert found is not None
    return found.kind, found.name, found.limit_seconds


def ended(program: str, *before: str, **environment: str) -> tuple[int, str]:
    """Run a program; return (exit code, standard error)."""
    command = [*before, sys.executable, "-c", program]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_SECONDS,
    )
    return done.returncode, done.stderr


def elsewhere(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_each_movement_gives_the_phase_its_whole_limit(timer: list[float]) -> None:
    liveness.moved()
    liveness.moved()
    assert timer == [LIMIT_SECONDS] * 3
    assert present() == ("step", "epoch 1", LIMIT_SECONDS)


def test_phase_without_a_limit_has_no_timer_and_the_next_one_has_its_whole_time(timer: list[float]) -> None:
    with liveness.phase("peers"):
        liveness.moved()
    assert timer[1:] == [0.0, 0.0, LIMIT_SECONDS]


def test_all_that_is_done_before_the_spec_is_known_has_the_limit_of_the_start(timer: list[float]) -> None:
    watched = liveness._watched
    assert watched is not None
    watched.limits, watched.is_starting = {"start": 7.0}, True
    with liveness.phase("transfer", "read a request"):
        assert present() == ("start", "read a request", 7.0)
    liveness.limit({"transfer": 9.0, "start": 8.0})
    assert present() == ("start", "epoch 1", 8.0)
    with liveness.phase("transfer", "read"):
        assert present() == ("transfer", "read", 9.0)
    assert timer[1:3] == [7.0, LIMIT_SECONDS]
    assert timer[3:] == [8.0, 8.0, 9.0, 8.0]


def test_transfer_in_one_call_has_a_second_more_for_each_mebibyte(timer: list[float]) -> None:
    with liveness.phase("step", size_bytes=100 * 2**20):
        pass
    assert timer[1] == LIMIT_SECONDS + 100


def test_phases_are_those_of_the_working_thread_and_helpers_move_it_but_heartbeats_do_not(timer: list[float]) -> None:
    def helper() -> None:
        with liveness.phase("transfer", "block"):
            pass

    def heartbeat() -> None:
        liveness.in_background()
        helper()
        liveness.moved()

    before = present()
    elsewhere(heartbeat)
    assert timer == [LIMIT_SECONDS]
    elsewhere(helper)
    assert timer == [LIMIT_SECONDS] * 3
    assert present() == before


def test_movement_of_a_helper_in_the_moment_in_which_the_work_enters_a_phase_leaves_the_limit_of_that_phase(
    timer: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = liveness._watched
    assert watched is not None

    def set_late(_which: int, seconds: float) -> None:
        if not timer[1:]:
            # The work enters a phase that has no limit between the helper's look and its call.
            watched.phases.append(Phase("peers", "", 0.0))
        timer.append(seconds)

    monkeypatch.setattr(signal, "setitimer", set_late)
    elsewhere(liveness.moved)
    assert timer == [LIMIT_SECONDS, LIMIT_SECONDS, 0.0]


@pytest.mark.usefixtures("timer")
def test_phase_that_ends_late_leaves_the_present_one() -> None:
    late = liveness.phase("transfer", "stream")
    late.__enter__()
    with liveness.phase("validation"):
        late.__exit__(None, None, None)
        assert present()[0] == "validation"
    assert present()[0] == "step"


@pytest.mark.usefixtures("timer")
def test_note_of_a_rank_begins_with_its_phase_after_a_longer_one_too(tmp_path: Path) -> None:
    path = tmp_path / "note"
    watched = liveness._watched
    assert watched is not None
    watched.note = os.open(path, os.O_WRONLY | os.O_CREAT)
    with liveness.phase("step", "ä\n" * 1000):
        assert noted(path) == {"kind": "step", "name": "ä\n" * 1000, "limit_seconds": LIMIT_SECONDS}
    assert noted(path) == {"kind": "step", "name": "epoch 1", "limit_seconds": LIMIT_SECONDS}
    os.close(watched.note)


def noted(path: Path) -> object:
    return json.loads(path.read_bytes().splitlines()[0])


@pytest.mark.parametrize(
    "hang",
    ["ctypes.PyDLL(None).sleep(600)", "threading.Event().wait()", "re.match('(a+)+$', 'a' * 64 + 'b')"],
    ids=["C code that holds the GIL", "wait", "loop in re"],
)
def test_process_that_hangs_is_ended_with_its_stack(hang: str) -> None:
    code, errors = ended(f"{START}\nliveness.limit({{'step': 0.2}})\nwith liveness.phase('step'):\n    {hang}")
    assert code == -signal.SIGALRM
    assert 'File "<string>", line 8 in <module>' in errors


@pytest.mark.parametrize(("rank", "extra_seconds"), [("0", FIRST_RANK_SECONDS), ("1", 0.0)])
def test_first_rank_of_several_is_ended_later_so_that_it_can_save_once_another_one_is(
    tmp_path: Path, rank: str, extra_seconds: float
) -> None:
    path = str(tmp_path / "error.json")
    code, errors = ended(START, RANK=rank, WORLD_SIZE="2", TORCHELASTIC_ERROR_FILE=path, NIGHTSHIFT_START_TIMEOUT_SECONDS="100")
    assert code == 0, errors
    assert noted(Path(liveness.note_of(path))) == {"kind": "start", "name": "imports", "limit_seconds": 100.0 + extra_seconds}


def test_fork_of_a_watched_process_has_no_timer_whatever_it_does() -> None:
    child = """
liveness.limit({"step": 600.0})
with liveness.phase("step"):
    if (pid := os.fork()) == 0:
        with liveness.phase("step"):
            liveness.moved()
        os._exit(signal.getitimer(signal.ITIMER_REAL)[0] > 0)
    is_armed = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
assert not is_armed
"""
    code, errors = ended(START + child)
    assert code == 0, errors


def test_alarm_of_users_code_rings_while_the_work_moves_and_the_limit_holds_after_it() -> None:
    alarm = """
liveness.limit({"start": 600.0})
rung = threading.Event()
before = signal.signal(signal.SIGALRM, lambda *_: rung.set())
signal.setitimer(signal.ITIMER_REAL, 0.05)
while not rung.is_set():
    liveness.moved()
assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0
signal.signal(signal.SIGALRM, before)
liveness.moved()
assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 600
"""
    code, errors = ended(START + alarm)
    assert code == 0, errors


BLOCKS = "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM]); os.execv(sys.argv[1], sys.argv[1:])"


@pytest.mark.parametrize("before", [("sh", "-c", "trap '' ALRM; exec \"$@\"", "sh"), (sys.executable, "-c", BLOCKS)])
def test_process_whose_parent_ignores_or_blocks_the_signal_is_ended(before: tuple[str, ...]) -> None:
    hang = "liveness.limit({'start': 0.2})\nthreading.Event().wait(60)"
    code, errors = ended(f"{START}\n{hang}", *before)
    assert code == -signal.SIGALRM, errors


def test_process_that_waits_in_the_kernel_for_what_does_not_come_is_ended() -> None:
    # As for a file of a server that is away: a parent of vfork(2) takes no signal that has a handler before its child ends.
    wait = """
liveness.limit({"start": 0.2})
parent = os.getpid()
clone, vfork = {"x86_64": 56, "aarch64": 220}[os.uname().machine], 0x4000
if ctypes.CDLL(None).syscall(clone, vfork | signal.SIGCHLD, 0, 0, 0, 0) == 0:
    os.closerange(0, 3)
    while os.getppid() == parent:
        threading.Event().wait(0.1)
    os._exit(0)
"""
    code, errors = ended(START.replace("liveness.watch()", "liveness.TAKE_SECONDS = 0.1; liveness.watch()") + wait)
    assert code == -signal.SIGALRM, errors
    assert "most recent call first" in errors


def test_time_that_a_process_is_stopped_counts_once_it_continues(tmp_path: Path) -> None:
    program = f"{START}\nliveness.limit({{'start': 0.2}})\nos.kill(os.getpid(), signal.SIGSTOP)\nthreading.Event().wait()"
    process = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(CHECKOUT)}, stderr=subprocess.DEVNULL)
    try:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        status = Path(f"/proc/{process.pid}/status")
        # The timer expires while it is stopped.
        while not is_pending(status.read_text(encoding="ascii"), signal.SIGALRM):
            assert process.poll() is None
        process.send_signal(signal.SIGCONT)
        assert process.wait(WAIT_SECONDS) == -signal.SIGALRM
    finally:
        process.kill()
        process.wait()


def is_pending(status: str, number: signal.Signals) -> bool:
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    return bool(int(fields["ShdPnd"], 16) >> (number - 1) & 1)
