"""Whether a command has switched a pipeline on for nights of its own: then its schedule starts nothing.

`make run` and `make backfill` need the DAG unpaused while their nights run, and Airflow starts the latest slot of an unpaused DAG
by itself. A hold is a lock on a file of the installation's folder: the timetable asks for it, and a dead command's hold is gone.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from training.provenance import CHECKOUT

FOLDER: Final = "switched-on"
PAUSED_BEFORE: Final = b"paused before\n"
"""What the file holds while the command must pause the DAG again; without it the schedule was on, and stays on."""


def hold_path(home: Path, dag_id: str) -> Path:
    return home / FOLDER / dag_id


def is_held(dag_id: str) -> bool:
    """Say whether a running command of this installation holds back the schedule of a pipeline."""
    home = Path(os.environ.get("NIGHTSHIFT_HOME") or CHECKOUT / ".local")
    try:
        descriptor = os.open(hold_path(home, dag_id), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if os.pread(descriptor, len(PAUSED_BEFORE), 0) != PAUSED_BEFORE:
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
