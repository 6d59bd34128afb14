"""A process that dies with its parent: `python -m training.process.child --parent PID -- COMMAND …` (Linux).

Airflow ends a task by killing its process group, and torchrun starts its workers in separate sessions, so a group
alone leaves workers behind. PR_SET_PDEATHSIG (prctl(2)) does not: the kernel kills the child when the parent's
thread ends, for any reason. It survives execve and is cleared in a forked child, so every rank sets it again.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
POLL_SECONDS = 0.02
ALLOCATOR_THREAD = "jemalloc_bg_thd"
"""Of Arrow's allocator, which takes its locks for a fork and does without the thread in the child (jemalloc, background_thread.c)."""
ALARM_THREAD = "alarm"
"""Of `training.process.liveness`: it sleeps, holds no lock, and a forked child is not watched."""


def bind_to_parent(expected_parent_pid: int | None = None) -> None:
    """Make the kernel kill this process with SIGKILL as soon as its parent has ended; exit now if it has ended already.

    Args:
        expected_parent_pid: pid that the parent gave as its own; None: the present parent.

    Raises:
        OSError: the kernel refused.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_PDEATHSIG): {os.strerror(number)}")
    parent = os.getppid()
    # The parent may have died before the call above: then the signal will never be sent.
    if parent == 1 or (expected_parent_pid is not None and parent != expected_parent_pid):
        os._exit(128 + signal.SIGKILL)


def name_this_process(name: str) -> None:
    """Set the name that `ps -o comm` and /proc/PID/comm show, of which the kernel keeps 15 bytes."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


def other_threads() -> list[str]:
    """Return the names of this process's threads that a forked child would lack, beside the allocator's and the one that takes alarms."""
    import threading
    from pathlib import Path

    known = {os.getpid(), *(thread.native_id for thread in threading.enumerate() if thread.name == ALARM_THREAD)}
    folders = [folder for folder in Path("/proc/self/task").iterdir() if int(folder.name) not in known]
    names = [(folder / "comm").read_text(encoding="utf-8", errors="replace").strip() for folder in folders]
    return sorted(name for name in names if name != ALLOCATOR_THREAD)


class ForkedProcess:
    """A child of `os.fork`, as a `subprocess.Popen` has its pid and its end."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative after a signal; None while the process runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end.

        Raises:
            subprocess.TimeoutExpired: the process still runs after `timeout` seconds.
        """
        # Programs that only start another need none of this.
        import subprocess
        import time

        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(POLL_SECONDS)
        return code


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.process.child", description=__doc__)
    parser.add_argument("--parent", type=int, required=True, help="pid of the process to die with")
    parser.add_argument("command", nargs="+", help="program and arguments, after --")
    arguments = parser.parse_args()
    bind_to_parent(arguments.parent)
    sys.stdout.flush()
    os.execvp(arguments.command[0], arguments.command)  # noqa: S606 - argv form, no shell; that is the point


if __name__ == "__main__":
    main()
