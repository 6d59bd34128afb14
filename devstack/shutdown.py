"""Ends every process of an installation and no other, with its supervisor's help or without."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from devstack.processes import kill_all, marked_by_home, wait_gone
from devstack.supervisor import GRACE_SECONDS
from devstack.supervisor_state import ServicesState, note_stop, read_state, remove_state
from training.errors import NightshiftError, UnavailableError

UNREACHABLE: Final = "airflow.unreachable"


def running(home: Path) -> ServicesState | None:
    """Return the state of a living supervisor, None if there is none."""
    state = read_state(home)
    return state if state is not None and state.supervisor.alive() else None


def serving(home: Path) -> bool:
    """Return whether a supervisor keeps the services running: False as soon as it begins to stop them."""
    state = running(home)
    return state is not None and not (state.components and all(entry.state == "stopped" for entry in state.components))


@contextmanager
def stopped_services_named(home: Path, what: str, hint: str) -> Iterator[None]:
    """Name the reason if the body ends because another command stops the services.

    Args:
        what: is not finished then.
        hint: what to do about it.

    Raises:
        NightshiftError: `services.stopped`.
    """
    try:
        yield
    except UnavailableError as err:
        if err.code != UNREACHABLE or serving(home):
            raise
        raise NightshiftError("services.stopped", f"the services were stopped; {what} is not finished", hint=hint) from err


def stop(home: Path, say: Callable[[str], None], *, grace_seconds: float = GRACE_SECONDS) -> None:
    """End the supervisor and all that it started.

    Raises:
        TimeoutError: a process is still there after SIGKILL.
    """
    note_stop(home)
    state = running(home)
    if state is not None:
        say("stopping")
        state.supervisor.send(signal.SIGTERM)
        wait_gone([state.supervisor], timeout_seconds=2 * grace_seconds)
    end_leftovers(home, say, grace_seconds=grace_seconds)


def end_leftovers(home: Path, say: Callable[[str], None], *, grace_seconds: float = GRACE_SECONDS) -> int:
    """End what runs without a supervisor, as after a kill -9 of it: TERM to each component's own process, then KILL for all.

    Returns:
        How many processes there were.
    """
    found = marked_by_home(home)
    if found:
        say(f"ending {len(found)} processes that an earlier supervisor left")
        state = read_state(home)
        components = [entry.process for entry in state.components if entry.process] if state else []
        for process in components:
            process.send(signal.SIGTERM)
        wait_gone(components, timeout_seconds=grace_seconds)
        kill_all(lambda: marked_by_home(home))
    remove_state(home)
    return len(found)
