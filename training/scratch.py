"""A process's folder for temporary files: removed when it ends, or by the next process after a kill. Standard library only."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PREFIX: Final = "nightshift-"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a new folder in the temporary folder (`TMPDIR`); before and after, remove those of processes that were killed."""
    _sweep()
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _sweep()


def _sweep() -> None:
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        pid = left.name.removeprefix(PREFIX).split("-")[0]
        if pid.isdigit() and not _runs(int(pid)):
            shutil.rmtree(left, ignore_errors=True)


def _runs(pid: int) -> bool:
    """Return whether a process is there and is no zombie: a killed one stays in /proc until its parent asks for it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] != "Z"
