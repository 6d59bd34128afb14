"""Makes a stage's process hang in its next step or part of work. Pods of the tests have it as their `sitecustomize`.

As a program in the pod, it asks a process for that, of several ranks the last one, and lets one that stops go on after its limit:

    python -m sitecustomize with_gil|waiting|in_re|stopped
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

SIGNALS = {how: signal.SIGRTMIN + number for number, how in enumerate(("with_gil", "waiting", "in_re", "stopped"), 1)}
MUTEX_BYTES = 64
POLL_SECONDS = 0.05
WAIT_SECONDS = 120.0


def hang(number: int, _frame: object) -> None:
    from training.process.liveness import present

    phase = present()
    if phase is None or phase.kind not in ("part", "step"):
        threading.Timer(POLL_SECONDS, os.kill, (os.getpid(), number)).start()
        return
    if number == SIGNALS["stopped"]:
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    if number == SIGNALS["in_re"]:
        re.match("(a+)+$", "a" * 64 + "b")
    library = ctypes.PyDLL(None) if number == SIGNALS["with_gil"] else ctypes.CDLL(None)
    mutex = ctypes.create_string_buffer(MUTEX_BYTES)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)


def has(pid: int, kind: str, number: int) -> bool:
    """Return whether a set of signals in `/proc/PID/status` has one."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return bool(int(status.partition(f"\n{kind}:")[2].split()[0], 16) >> number - 1 & 1)


def processes() -> Iterator[tuple[str, int]]:
    """Yield (name, -PID) of those that hang when they are asked."""
    for pid in (int(path.name) for path in Path("/proc").glob("[0-9]*")):
        with suppress(OSError):
            if pid != os.getpid() and has(pid, "SigCgt", SIGNALS["stopped"]):
                yield Path(f"/proc/{pid}/comm").read_text(encoding="utf-8"), -pid


def main() -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not (found := max(processes(), default=None)) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    assert found, "no process of a stage"
    pid = -found[1]
    os.kill(pid, SIGNALS[sys.argv[1]])
    if sys.argv[1] == "stopped":
        while not has(pid, "ShdPnd", signal.SIGALRM):
            assert time.monotonic() < deadline, "the timer of a process that is stopped has not expired"
            time.sleep(POLL_SECONDS)
        os.kill(pid, signal.SIGCONT)


if __name__ == "__main__":
    main()
else:
    for one in SIGNALS.values():
        signal.signal(one, hang)
