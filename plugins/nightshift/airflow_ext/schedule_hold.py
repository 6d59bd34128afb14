"""Whether a command has unpaused a pipeline for its own runs: then the schedule starts none.

`make run` and `make backfill` need the DAG unpaused while their runs are under way, and Airflow starts the latest slot of an unpaused DAG
by itself. A hold is a note in a file of the installation's folder, which the timetable reads, and a lock on that file while the
command lives.

A command that is killed (SIGKILL) leaves the DAG on and its note behind: the note alone holds the schedule, for `DEAD_HOLD_SECONDS`
after it was written. The next `make start`, `make run` or `make backfill` pauses the DAG and removes the note; a DAG that a user
switches on after that runs by its schedule.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Final

from training.installation import home_folder

FOLDER: Final = "switched-on"
PAUSED_BEFORE: Final = b"paused before\n"
"""What the file holds while the command must pause the DAG again; without it the schedule was on, and stays on."""

LOOKS: Final = 20
LOOK_SECONDS: Final = 0.05
DEAD_HOLD_SECONDS: Final = 24 * 3600
"""How long a note without a lock counts: the schedule of a DAG that a user keeps on starts again although no further command is run."""


def hold_path(home: Path, dag_id: str) -> Path:
    return home / FOLDER / dag_id


def is_in_use(home: Path, dag_id: str) -> bool:
    """Return whether a command that lives has runs of a pipeline under way."""
    try:
        descriptor = os.open(hold_path(home, dag_id), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not take(descriptor)
    finally:
        os.close(descriptor)


def take(descriptor: int) -> bool:
    """Take the file of a pipeline; return False where another command holds it. A timetable that looks at it does so for a moment only."""
    for _ in range(LOOKS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(LOOK_SECONDS)
    return False


def is_held(dag_id: str) -> bool:
    """Return whether a command of this installation, running or killed, holds back the schedule of a pipeline."""
    home = home_folder()
    try:
        descriptor = os.open(hold_path(home, dag_id), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if os.pread(descriptor, len(PAUSED_BEFORE), 0) != PAUSED_BEFORE:
            return False
        # The absolute age: a time in the future, after a wrong clock, must not hold for longer either.
        if abs(time.time() - os.fstat(descriptor).st_mtime) < DEAD_HOLD_SECONDS:
            return True
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
