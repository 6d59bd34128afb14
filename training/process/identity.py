"""Which process a pid means: pids are reused, and each container counts its own. Standard library only."""

from __future__ import annotations

import hashlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

UNKNOWN: Final = "unknown"
"""Where /proc does not say which namespace this is."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process, on any machine: its pid namespace, pid and start."""

    namespace: str
    pid: int
    start_ticks: int
    """Clock ticks since boot; 0 where that is not known."""

    @classmethod
    def this(cls) -> Self:
        """Return the process that asks."""
        return cls(pid_namespace(), os.getpid(), start_of(os.getpid()) or 0)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return the process that `to_text` described."""
        namespace, pid, start = text.split("-")
        return cls(namespace, int(pid), int(start))

    def to_text(self) -> str:
        """Return it for `from_text`."""
        return f"{self.namespace}-{self.pid}-{self.start_ticks}"

    def has_ended(self) -> bool:
        """Return whether it is known to have ended; False for one that this process cannot see."""
        if self.namespace == UNKNOWN or self.namespace != pid_namespace() or not self.start_ticks:
            return False
        return not runs(self.pid, self.start_ticks)


def pid_namespace() -> str:
    """Return 16 hex digits that name the place in which this process's pids mean something, `unknown` where that is not known."""
    try:
        boot = boot_id()
        namespace = os.stat("/proc/self/ns/pid")
    except OSError:
        return UNKNOWN
    text = f"{socket.gethostname()} {boot} {namespace.st_dev} {namespace.st_ino}"
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def boot_id() -> str:
    """Return the kernel's random UUID of this boot.

    Raises:
        OSError: there is no /proc.
    """
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def runs(pid: int, start: int) -> bool:
    """Return whether this very process is there, not only one that has its pid now; one that cannot be looked at counts as running."""
    try:
        return start_of(pid) == start
    except OSError:
        return True


def start_of(pid: int) -> int | None:
    """Return a process's start in clock ticks since boot; None if it is gone or a zombie.

    A killed process stays in /proc until its parent asks for it.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()  # the name of a command may hold blanks
    return None if fields[0] == "Z" else int(fields[19])
