"""What the supervisor writes down, so that `stop` and `status` find exactly its processes, also after it was killed."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Final

from nightshift.services.processes import ProcessId
from training.errors import NightshiftError

STATE_FILE: Final = "services.json"
LOCK_FILE: Final = "services.lock"


@dataclass(frozen=True, slots=True)
class ComponentState:
    """One component as it stands."""

    name: str
    state: str
    """`waiting`, `running`, `backoff`, `done` (a one-time step) or `stopped`."""
    process: ProcessId | None
    restarts: int
    log_path: str


@dataclass(frozen=True, slots=True)
class ServicesState:
    """The supervisor and its components."""

    supervisor: ProcessId
    components: tuple[ComponentState, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    """Digests, by name, of the settings that the services were started with."""

    def write(self, home: Path) -> None:
        """Replace the state file in one step; its reader never sees half of it."""
        path = home / STATE_FILE
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")
        draft.replace(path)


def read_state(home: Path) -> ServicesState | None:
    """Return what the last supervisor wrote down, None if there is nothing; its processes need not be alive.

    Raises:
        NightshiftError: `services.state`, the file is damaged.
    """
    path = home / STATE_FILE
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        components = tuple(
            ComponentState(**{**entry, "process": ProcessId(**entry["process"]) if entry["process"] else None})
            for entry in values["components"]
        )
        return ServicesState(ProcessId(**values["supervisor"]), components, values["settings"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as err:
        raise NightshiftError("services.state", f"{path} is damaged: {err}", hint="delete it: processes are found without it") from err


def remove_state(home: Path) -> None:
    (home / STATE_FILE).unlink(missing_ok=True)


def take_lock(home: Path) -> IO[str] | None:
    """Take the installation's lock, held as long as the returned file is open; None: another supervisor has it."""
    home.mkdir(parents=True, exist_ok=True)
    file = (home / LOCK_FILE).open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file
