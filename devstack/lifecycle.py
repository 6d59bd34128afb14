"""Start, readiness, stop and state of the services, seen from a command of the user."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import httpx

from devstack.airflow_api import AirflowApi
from devstack.components import components, note_database_is_current, ports
from devstack.dag_parsing import wait_for_dags
from devstack.dag_pausing import pause_leftovers
from devstack.environment import USERNAME, airflow_url, credentials, dags_path, environment, prepare_home
from devstack.locking import START_LOCK, locked
from devstack.ports import require_free
from devstack.processes import MARK, ProcessMark, wait_gone
from devstack.service_environment import digests
from devstack.shutdown import UNREACHABLE, end_leftovers, running, serving, stop, stopped_services_named
from devstack.sources_file import note_places
from devstack.storage_check import require_home, require_places
from devstack.supervisor import GRACE_SECONDS, Supervisor
from devstack.supervisor_state import ServicesState, forget_stop, is_stop_noted, read_state
from devstack.wait_messages import Awaited
from nightshift.settings import Settings
from nightshift.slots import check_pools
from training.errors import NightshiftError, UnavailableError

logger = logging.getLogger(__name__)

BUSY_STATES: Final = ("running", "queued", "restarting")
SHORT_DAGS: Final = frozenset({"housekeeping"})
"""Seconds long, and repeated every hour."""
READY_SECONDS: Final = 600.0
"""A loaded machine needs minutes. A component that cannot start ends the wait earlier, by its failures."""
MAX_START_FAILURES: Final = 5
MAX_STARTS: Final = 3
"""So often a start begins again whose supervisor was killed."""
SUPERVISOR_GONE: Final = "services.supervisor"
POLL_SECONDS: Final = 0.25
AIRFLOW_PARTS: Final = ("metadatabase", "scheduler", "dag_processor", "triggerer")
MAX_LOG_LINES: Final = 15


def api(settings: Settings, *, is_running: Callable[[], bool] | None = None) -> AirflowApi:
    """Return a client of this installation's Airflow; it repeats requests only while a supervisor would restart the server.

    Args:
        is_running: of a command that keeps the services up; its requests are repeated for as long as a start may take.
    """
    password = credentials(settings)["airflow_password"]
    if is_running is not None:
        return AirflowApi(airflow_url(settings), USERNAME, password, is_running=is_running, retry_seconds=READY_SECONDS)
    return AirflowApi(airflow_url(settings), USERNAME, password, is_running=lambda: serving(settings.home))


def start(settings: Settings, say: Callable[[str], None], *, unless_stopped: bool = False) -> None:
    """Start the services unless they run, again if they run old code or settings, and wait until everything is ready to work.

    One command starts at a time; a second one waits for it, and finds the services running. A start whose supervisor is killed
    begins again.

    Args:
        unless_stopped: start nothing if a command has stopped the services.

    Raises:
        NightshiftError: `services.port_busy`; `services.not_ready` with the last lines of the log that says why; `services.busy`, a
            restart is needed, and a run is in progress;
            what `require_places` and `check_pools` raise.
    """
    require_home(settings)
    check_pools(settings)
    with locked(
        settings.home / START_LOCK, lambda pid: say(f"another command (pid {pid or 'unknown'}) is starting the services; waiting for it")
    ):
        with stopped_services_named(settings.home, "their start", "make start"):
            for attempt in range(1, MAX_STARTS + 1):
                if unless_stopped and is_stop_noted(settings.home):
                    raise stopped_by_command()
                try:
                    _start(settings, say)
                    return
                except NightshiftError as err:
                    lost = err.code == SUPERVISOR_GONE or (err.code == UNREACHABLE and not serving(settings.home))
                    if not lost or is_stop_noted(settings.home) or attempt == MAX_STARTS:
                        raise
                    say(f"{err.message.splitlines()[0]}; starting the services again")


def stopped_by_command() -> NightshiftError:
    return NightshiftError("services.stopped", "another command stopped the services while they started", hint="make start")


def _start(settings: Settings, say: Callable[[str], None]) -> None:
    state = running(settings.home)
    if state is not None and not serving(settings.home) and not is_stop_noted(settings.home):
        # A signal ends it.
        wait_gone([state.supervisor], timeout_seconds=2 * GRACE_SECONDS)
        state = running(settings.home)
    if state is not None:
        # Before anything that runs is stopped for settings that cannot work.
        require_places(settings)
        note_places(settings, say)
    if state is not None and (changed := changed_settings(state, digests(settings))):
        _require_idle(settings, changed, say)
        say(f"the services were started with other settings ({', '.join(changed)}); starting them again")
        stop(settings.home, say)
        state = None
    is_new = state is None
    if is_new:
        end_leftovers(settings.home, say)
        require_free(ports(settings))
        require_places(settings)
        prepare_home(settings)
        note_places(settings, say)
        forget_stop(settings.home)
        say("starting MLflow and Airflow")
        _launch_supervisor(settings)
    started_at = time.monotonic()
    wait_ready(settings, since=started_at, say=say)
    note_database_is_current(settings)
    client = api(settings)
    pause_leftovers(client, settings.home, say)
    wait_for_dags(client, dags_path(settings), say)
    client.close()
    say(f"services are up after {time.monotonic() - started_at:.0f} s" if is_new else "services are up")


def _require_idle(settings: Settings, changed: list[str], say: Callable[[str], None]) -> None:
    """Return if a restart of the services interrupts no task.

    Raises:
        NightshiftError: `services.busy`, with the runs that a restart would interrupt.
    """
    client = api(settings)
    try:
        tasks = client.get("/dags/~/dagRuns/~/taskInstances", state=list(BUSY_STATES), limit=100)["task_instances"]
    except UnavailableError as err:
        say(f"which runs are in progress is not known: {err}")
        return
    finally:
        client.close()
    runs = sorted({f"{task['dag_run_id']} of {task['dag_id']}" for task in tasks if task["dag_id"] not in SHORT_DAGS})
    if runs:
        raise NightshiftError(
            "services.busy",
            f"the services run with other settings ({', '.join(changed)}), and a restart would interrupt {', '.join(runs)}",
            hint="wait until it has ended and repeat the command, or make stop first: finished stages are reused, training resumes",
        )


def supervise(settings: Settings) -> None:
    """Run the supervisor until a signal stops it."""
    note_places(settings, logger.info)
    Supervisor(settings.home, components(settings), settings=digests(settings)).run()


def wait_ready(settings: Settings, *, since: float, say: Callable[[str], None]) -> None:
    """Return once Airflow's four parts and MLflow say that they are healthy; say every ten seconds which of them are awaited.

    Args:
        since: start of the wait, of `time.monotonic`.

    Raises:
        NightshiftError: `services.not_ready`, with the missing component and the end of its log; `services.stopped`, by another command.
    """
    client, awaited = api(settings), Awaited(say)
    restarts = _restarts(settings)
    try:
        while missing := _missing(settings, client):
            failing = [name for name, count in _restarts(settings).items() if count - restarts.get(name, 0) >= MAX_START_FAILURES]
            if failing or time.monotonic() - since > READY_SECONDS:
                why = f"{failing[0]} ended {MAX_START_FAILURES} times" if failing else f"not ready after {READY_SECONDS:.0f} s"
                raise NightshiftError(
                    "services.not_ready",
                    f"{why}; missing: {', '.join(missing)}\n{_last_words(settings)}",
                    hint="make status shows the log files",
                )
            awaited.look(", ".join(missing))
            time.sleep(POLL_SECONDS)
    finally:
        client.close()


def _restarts(settings: Settings) -> dict[str, int]:
    state = running(settings.home)
    return {entry.name: entry.restarts for entry in state.components} if state else {}


def changed_settings(state: ServicesState, wanted: Mapping[str, str]) -> list[str]:
    """Return the names of the settings whose values differ from those of the running services.

    One that is only missing now was for another command: it stays in force until the services are stopped.
    """
    return sorted(name for name, digest in wanted.items() if state.settings.get(name) != digest)


def _launch_supervisor(settings: Settings) -> None:
    log_path = settings.home / "logs" / "supervisor.log"
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "devstack", "supervise"],
            env={**environment(settings), MARK: str(ProcessMark.fresh("supervisor", settings.home))},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=settings.home,
        )
    while running(settings.home) is None:
        if process.poll() is not None:
            raise NightshiftError(SUPERVISOR_GONE, f"the supervisor ended with {process.returncode}\n{_tail(log_path)}")
        time.sleep(POLL_SECONDS)


def _missing(settings: Settings, client: AirflowApi) -> list[str]:
    state = running(settings.home)
    if state is None:
        if is_stop_noted(settings.home):
            raise stopped_by_command()
        raise NightshiftError(SUPERVISOR_GONE, f"the supervisor died\n{_tail(settings.home / 'logs' / 'supervisor.log')}")
    missing = [entry.name for entry in state.components if entry.state not in ("running", "done")]
    health = client.health()
    missing += [f"Airflow's {part}" for part in AIRFLOW_PARTS if health.get(part) != "healthy"]
    return missing if _mlflow_answers(settings) else [*missing, "MLflow"]


def _mlflow_answers(settings: Settings) -> bool:
    try:
        return httpx.get(f"{settings.mlflow_uri}/health", timeout=5, trust_env=False).is_success
    except httpx.HTTPError:
        return False


def _last_words(settings: Settings) -> str:
    state = read_state(settings.home)
    troubled = [entry for entry in state.components if entry.restarts] if state else []
    return "\n".join(f"--- {entry.log_path}\n{_tail(Path(entry.log_path))}" for entry in troubled)


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 16_384))
            return "\n".join(file.read().decode("utf-8", "replace").splitlines()[-MAX_LOG_LINES:])
    except FileNotFoundError:
        return "(no log)"
