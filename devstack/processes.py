"""Which processes belong to this installation, and how they are ended.

PIDs are reused, so a process is identified by PID and start. Every service is started with
`NIGHTSHIFT_SERVICE=<component>:<token>:<home>` in its environment, which its child processes inherit: what a killed
component left behind is found by that mark, whichever session or parent it has by then. (`SPT_NOENV` keeps
setproctitle, which Airflow uses, from overwriting the environment that the kernel shows.)
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import psutil

from training.installation import Variable
from training.process.identity import boot_id, start_of

SERVICE: Final = Variable(
    name="NIGHTSHIFT_SERVICE", set_by="Nightshift", meaning="marks the processes of an installation, so that `make stop` finds them"
)
MARK: Final = SERVICE.name
POLL_SECONDS: Final = 0.05
KILL_SECONDS: Final = 10.0
CLOCK_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process, for good: pids are used again, a pid with its start is not. The start is no time of day: that clock may be set."""

    pid: int
    start_ticks: int
    """Clock ticks since boot."""
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """Return the identity of the process that has this pid now, None if there is none, or a zombie."""
        start_ticks = start_of(pid)
        return None if start_ticks is None else cls(pid, start_ticks, boot_id())

    def alive(self) -> bool:
        """Return whether this very process still runs; a zombie does not."""
        return self == ProcessId.of(self.pid)

    @property
    def age_seconds(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self.start_ticks / CLOCK_TICKS_PER_SECOND

    def send(self, signal_number: signal.Signals) -> None:
        """Send a signal to exactly this process; nothing if it has ended."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal_number)


@dataclass(frozen=True, slots=True)
class ProcessMark:
    """What one start of one component, and all that it starts, carries in its environment."""

    component: str
    token: str
    home: Path

    @classmethod
    def fresh(cls, component: str, home: Path) -> Self:
        return cls(component, secrets.token_hex(6), home)

    def __str__(self) -> str:
        return f"{self.component}:{self.token}:{self.home}"


def marked(belongs: Callable[[str], bool]) -> list[ProcessId]:
    """Return this user's live processes whose mark `belongs`; this process is never among them."""
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        try:
            mark = SERVICE.text(process.environ())
            if mark and belongs(mark) and (identity := ProcessId.of(process.pid)) is not None:
                found.append(identity)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def marked_by(mark: ProcessMark) -> list[ProcessId]:
    """Return what one start of a component left or still runs."""
    return marked(lambda found: found == str(mark))


def marked_by_home(home: Path) -> list[ProcessId]:
    """Return every process of the installation in `home`, supervisor included."""
    return marked(lambda found: found.split(":", 2)[-1] == str(home))


def wait_gone(processes: Iterable[ProcessId], *, timeout_seconds: float, reap: Callable[[], None] = lambda: None) -> list[ProcessId]:
    """Wait for the processes to end; return those that did not in time.

    Args:
        reap: called between looks, for children of this process that no other code waits for.
    """
    deadline = time.monotonic() + timeout_seconds
    left = list(processes)
    while True:
        reap()
        left = [process for process in left if process.alive()]
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(POLL_SECONDS)


def kill_all(find: Callable[[], list[ProcessId]]) -> int:
    """Kill what `find` finds, and what those started in between, until it finds nothing; return how many were killed.

    Raises:
        TimeoutError: some are still there after ten seconds (in uninterruptible sleep, as a rule).
    """
    deadline = time.monotonic() + KILL_SECONDS
    killed: set[ProcessId] = set()
    while found := find():
        for process in found:
            process.send(signal.SIGKILL)
        killed.update(found)
        left = wait_gone(found, timeout_seconds=max(deadline - time.monotonic(), 0))
        if left and time.monotonic() >= deadline:
            raise TimeoutError(f"still there after SIGKILL: pid {', '.join(str(process.pid) for process in left)}")
    return len(killed)
