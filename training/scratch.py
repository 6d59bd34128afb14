"""A process's folder for temporary files: removed when it ends, or by the next process after a kill. Standard library only.

Containers and hosts may share one TMPDIR, and each counts pids for itself. A folder's name says whose it is: host, start of the
kernel and pid namespace (as a digest), pid, and the process's start. Only those of this very namespace are looked at.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PREFIX: Final = "nightshift-"
UNKNOWN: Final = "unknown"
"""Where /proc does not say which namespace this is: nothing is swept."""
_NAME = re.compile(rf"{PREFIX}(?P<place>[0-9a-f]{{16}})-(?P<pid>[0-9]{{1,10}})-(?P<start>[0-9]{{1,20}})-[^/]+", re.ASCII)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a new folder in the temporary folder (`TMPDIR`); before and after, remove those of processes that were killed."""
    place = pid_namespace()
    _sweep(place)
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{place}-{os.getpid()}-{_start_of(os.getpid()) or 0}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _sweep(place)


def node_folder(name: str) -> Path:
    """Return the path of a temporary folder that all children of one process have in common, as torchrun's ranks on one node.

    One of them makes and removes it. What it leaves when it is killed is removed by the next process after the parent's end.
    """
    parent = os.getppid()
    return Path(tempfile.gettempdir()) / f"{PREFIX}{pid_namespace()}-{parent}-{_start_of(parent) or 0}-{name}"


def pid_namespace() -> str:
    """Return 16 hex digits that name the place in which this process's pids mean something, `unknown` where that is not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = os.stat("/proc/self/ns/pid")
    except OSError:
        return UNKNOWN
    text = f"{socket.gethostname()} {boot} {namespace.st_dev} {namespace.st_ino}"
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _sweep(place: str) -> None:
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}{place}-*"):
        found = _NAME.fullmatch(left.name)
        if found is not None and found["place"] == place and not _runs(int(found["pid"]), int(found["start"])):
            shutil.rmtree(left, ignore_errors=True)


def _runs(pid: int, start: int) -> bool:
    """Return whether this very process is there, not only one that has its pid now; one that cannot be looked at counts as running."""
    try:
        return _start_of(pid) == start
    except OSError:
        return True


def _start_of(pid: int) -> int | None:
    """Return a process's start in clock ticks since boot; None if it is gone or a zombie.

    A killed process stays in /proc until its parent asks for it.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()  # the name of a command may hold blanks
    return None if fields[0] == "Z" else int(fields[19])
