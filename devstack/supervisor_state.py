"""What the supervisor writes down, so that `stop` and `status` find exactly its processes, also after it was killed."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from devstack.processes import ProcessId
from nightshift.json_files import read_object
from training.errors import NightshiftError

STATE_FILE: Final = "services.json"
LOCK_FILE: Final = "services.lock"
STOP_FILE: Final = "services.stopped"
MAX_PID: Final = 2**22
"""The kernel's own limit."""


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
    path, hint = home / STATE_FILE, "delete it: processes are found without it"
    values = read_object(path, code="services.state", hint=hint)
    if values is None:
        return None
    try:
        components = tuple(_component(entry) for entry in values["components"])
        return ServicesState(_process(values["supervisor"]), components, dict(values["settings"]))
    except (AttributeError, ValueError, KeyError, TypeError) as err:
        raise NightshiftError("services.state", f"{path} is damaged: {type(err).__name__} {err}", hint=hint) from err


def _component(entry: dict[str, Any]) -> ComponentState:
    texts = [entry["name"], entry["state"], entry["log_path"]]
    if not all(isinstance(text, str) for text in texts) or not isinstance(entry["restarts"], int):
        raise ValueError("a component's values have the wrong types")
    return ComponentState(**{**entry, "process": _process(entry["process"]) if entry["process"] else None})


def _process(entry: dict[str, Any]) -> ProcessId:
    found = ProcessId(**entry)
    # A pid of 0 or below names a group of processes, or all of them.
    if type(found.pid) is not int or not 0 < found.pid <= MAX_PID or type(found.start_ticks) is not int:
        raise ValueError(f"{found} is not a process")
    return found


def remove_state(home: Path) -> None:
    (home / STATE_FILE).unlink(missing_ok=True)


def note_stop(home: Path) -> None:
    """Note that a command stops the services, so that no command in progress starts them again."""
    if home.is_dir():
        (home / STOP_FILE).touch()


def forget_stop(home: Path) -> None:
    (home / STOP_FILE).unlink(missing_ok=True)


def is_stop_noted(home: Path) -> bool:
    """Return whether a command has stopped the services since their last start. If not, and they have ended, a signal ended them."""
    return (home / STOP_FILE).exists()


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
