"""A process's folder for temporary files: removed when it ends, or by the next process after a kill. Standard library only.

Containers and hosts may share one TMPDIR, and each counts pids for itself. A folder's name says whose it is: host, start of the
kernel and pid namespace (as a digest), pid, and the process's start. Only those of this very namespace are looked at.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from training.process.identity import pid_namespace, runs, start_of

PREFIX: Final = "nightshift-"
_NAME = re.compile(rf"{PREFIX}(?P<place>[0-9a-f]{{16}})-(?P<pid>[0-9]{{1,10}})-(?P<start>[0-9]{{1,20}})-[^/]+", re.ASCII)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a new folder in the temporary folder (`TMPDIR`); before and after, remove those of processes that were killed."""
    place = pid_namespace()
    _sweep(place)
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{place}-{os.getpid()}-{start_of(os.getpid()) or 0}-"))
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
    return Path(tempfile.gettempdir()) / f"{PREFIX}{pid_namespace()}-{parent}-{start_of(parent) or 0}-{name}"


def _sweep(place: str) -> None:
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}{place}-*"):
        found = _NAME.fullmatch(left.name)
        if found is not None and found["place"] == place and not runs(int(found["pid"]), int(found["start"])):
            shutil.rmtree(left, ignore_errors=True)
