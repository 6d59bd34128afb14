"""Switches a pipeline's DAG on for the nights that a command runs, and pauses it again however the command ends.

What was paused before is written down: what a killed command (SIGKILL) could not pause, the next start pauses. Until then the note
holds the schedule back (`nightshift.airflow_ext.schedule_hold`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import Final

import httpx

from devstack.airflow_api import AirflowApi
from devstack.dag_parsing import ParseLimit
from devstack.wait_messages import Awaited
from nightshift.airflow_ext.schedule_hold import FOLDER, PAUSED_BEFORE, hold_path, take
from training.errors import NightshiftError

SOON: Final = timedelta(minutes=5)
POLL_SECONDS: Final = 0.3
MAX_NAMED: Final = 10
END_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)

Say = Callable[[str], None]


@contextlib.contextmanager
def end_signals_raise() -> Iterator[None]:
    """Make SIGTERM and SIGHUP end this process through its `finally` clauses, as SIGINT does."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in END_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def switched_on(client: AirflowApi, home: Path, dag_id: str, say: Say) -> Iterator[None]:
    """Unpause a DAG; pause it at the end if it was paused, and no other command needs it on.

    Until then its schedule starts no run, unless it was on before.

    Raises:
        NightshiftError: those of the client; `night.dag`, the schedule could not be held back.
    """
    path = hold_path(home, dag_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # Shared by the commands that need the DAG on; the last one of them can take it for itself alone.
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        try:
            if client.get(f"/dags/{dag_id}")["is_paused"]:
                os.pwrite(descriptor, PAUSED_BEFORE, 0)
                _hold_back_schedule(client, dag_id, say)
                _say_what_waited(client, dag_id, say)
                client.patch(f"/dags/{dag_id}", {"is_paused": False})
            yield
        finally:
            _pause_again(client, descriptor, dag_id, say)
    finally:
        os.close(descriptor)


def _say_what_waited(client: AirflowApi, dag_id: str, say: Say) -> None:
    found = client.get(f"/dags/{dag_id}/dagRuns", state=["queued", "running"], limit=MAX_NAMED)
    names = [run["dag_run_id"] for run in found["dag_runs"]]
    more = found["total_entries"] - len(names)
    if names:
        say(f"{dag_id} was paused; what waited for that runs now: {', '.join(names)}" + (f" and {more:,} more" if more else ""))


def pause_leftovers(client: AirflowApi, home: Path, say: Say) -> None:
    """Pause what killed commands left switched on."""
    for path in sorted((home / FOLDER).glob("*")):
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if _noted(descriptor) and _pause_again(client, descriptor, path.name, say):
                say(f"{path.name} is paused: a command that was killed left it on; to run it by its schedule, switch it on again")
        finally:
            os.close(descriptor)


def _pause_again(client: AirflowApi, descriptor: int, dag_id: str, say: Say) -> bool:
    """Pause a DAG that was paused before, unless another command needs it; return whether it was paused now."""
    # A second Ctrl-C waits until this is done.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *END_SIGNALS})
    try:
        if not take(descriptor) or not _noted(descriptor):
            return False
        dag = client.patch(f"/dags/{dag_id}", {"is_paused": True})
        os.ftruncate(descriptor, 0)
        # Without a hold the DAG has a next run again.
        _request_parse(client, dag)
        return True
    except NightshiftError as err:
        if err.details.get("status") == httpx.codes.NOT_FOUND:
            os.ftruncate(descriptor, 0)  # the pipeline was removed
            return False
        # The command's own error counts; the note stays.
        why = "Airflow does not answer" if err.code == "airflow.unreachable" else str(err)
        say(f"{dag_id} could not be paused again: {why}; the next make start or make run pauses it")
        return False
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _noted(descriptor: int) -> bool:
    return os.pread(descriptor, len(PAUSED_BEFORE), 0) == PAUSED_BEFORE


def _hold_back_schedule(client: AirflowApi, dag_id: str, say: Say) -> None:
    """Return once Airflow will start no slot of a held DAG; at once if none is due soon."""
    limit, awaited = ParseLimit(client), Awaited(say)
    asked = False
    while due := (dag := client.get(f"/dags/{dag_id}"))["next_dagrun_run_after"]:
        if not asked:
            _request_parse(client, dag)
            asked = True
        if datetime.fromisoformat(due) > datetime.now(UTC) + SOON:
            return
        if limit.is_spent():
            raise NightshiftError(
                "night.dag", f"Airflow did not parse {dag_id} again within {awaited.seconds:.0f} s", hint="make status shows the log files"
            )
        awaited.look(f"Airflow to read dags/{dag_id}.py again")
        time.sleep(POLL_SECONDS)


def _request_parse(client: AirflowApi, dag: Mapping[str, str]) -> None:
    """Have Airflow evaluate the timetable of a DAG, which it does when it parses the file."""
    with contextlib.suppress(NightshiftError):
        client.put(f"/parseDagFile/{dag['file_token']}")
