"""What the processes of a stage use, as the kernel counts it: the stage's own process, its children, and the other ranks of its machine.

Numbers are read from /proc. CPU time and bytes of a process that has ended are in its parent's numbers: nothing is lost between two looks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from training.contracts import Usage
from training.installation import TORCHRUN_ID

PROC: Final = Path("/proc")
TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
STACK_START: Final = 25
"""Field 28 of proc(5), counted from the third."""
_UNITS: Final = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


_inherited_bytes, _stack_start = 0, ""
"""Memory that this process had when it was forked, and the address of its stack: those that it forks have both, new programs neither."""


def start_from_here() -> None:
    """Count of this process and its forks only the memory used from now on: what they share with a template is not theirs."""
    global _inherited_bytes, _stack_start
    folder = PROC / "self"
    _inherited_bytes = _numbers(folder / "status")["VmRSS"] * 1024
    _stack_start = stat_fields(folder)[STACK_START]


@dataclass(frozen=True, slots=True)
class _Process:
    """One process now."""

    resident_bytes: int
    resident_peak_bytes: int
    cpu_seconds: float
    """With those of its children that have ended."""
    read_bytes: int
    written_bytes: int


class UsageMeter:
    """Measures the processes of one attempt; the runner has it look with each heartbeat."""

    def __init__(self) -> None:
        # Ranks are children of torchrun: its tree has those of this machine.
        self._root = os.getppid() if TORCHRUN_ID.is_set() else os.getpid()
        self._peak_bytes = 0

    def look(self) -> list[_Process]:
        """Look at the processes that there are now, and keep the largest sum of memory."""
        found = [process for pid in _tree(self._root) if (process := _read(pid)) is not None]
        self._peak_bytes = max(self._peak_bytes, sum(process.resident_peak_bytes for process in found))
        return found

    def usage(self) -> Usage:
        """Return what was used up to now."""
        found = self.look()
        return Usage(
            peak_memory_bytes=self._peak_bytes,
            cpu_seconds=round(sum(process.cpu_seconds for process in found), 2),
            read_bytes=sum(process.read_bytes for process in found),
            written_bytes=sum(process.written_bytes for process in found),
        )


def usage_text(usage: Usage) -> str:
    """Return the numbers as people read them."""
    read, written = _size(usage.read_bytes), _size(usage.written_bytes)
    return f"peak {_size(usage.peak_memory_bytes)} of memory, {usage.cpu_seconds:.1f} s of CPU, {read} read, {written} written"


def _size(size_bytes: int) -> str:
    unit, scale = next(((name, size) for name, size in _UNITS if size_bytes >= size), ("B", 1))
    return f"{size_bytes / scale:.1f} {unit}" if scale > 1 else f"{size_bytes} B"


def _tree(root: int) -> Iterator[int]:
    """Yield a process and its descendants; one that ends in the meantime is skipped."""
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        yield pid
        with suppress(OSError):
            for thread in (PROC / str(pid) / "task").iterdir():
                # One that ends in the meantime must not hide the children of the others.
                with suppress(OSError):
                    waiting += map(int, (thread / "children").read_text(encoding="ascii").split())


def _read(pid: int) -> _Process | None:
    """Return what the kernel counts of a process; None where it has ended."""
    folder = PROC / str(pid)
    try:
        stat = stat_fields(folder)
        status = _numbers(folder / "status")
    except OSError:
        return None
    try:
        counted = _numbers(folder / "io")
    except OSError:
        # Not every kernel counts bytes, and not for every reader.
        counted = {}
    inherited_bytes = _inherited_bytes if _inherited_bytes and stat[STACK_START] == _stack_start else 0
    # Fields 14 to 17 of proc(5): utime, stime, cutime, cstime; the third is the first after the name.
    return _Process(
        resident_bytes=max(0, status.get("VmRSS", 0) * 1024 - inherited_bytes),
        resident_peak_bytes=max(0, status.get("VmHWM", 0) * 1024 - inherited_bytes),
        cpu_seconds=sum(map(int, stat[11:15])) / TICKS_PER_SECOND,
        read_bytes=counted.get("rchar", 0),
        written_bytes=counted.get("wchar", 0),
    )


def stat_fields(folder: Path) -> list[str]:
    """Return the fields of a process's `stat` of proc(5) from the third on."""
    # The name is in parentheses, and may hold some of its own.
    return (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


def _numbers(path: Path) -> dict[str, int]:
    """Return the whole numbers of a file of `name: number [unit]` lines."""
    lines = (line.partition(":") for line in path.read_text(encoding="utf-8", errors="replace").splitlines())
    return {name: int(words[0]) for name, _, rest in lines if (words := rest.split()) and words[0].isdecimal()}
