"""A laptop that sleeps: every process of the installation is stopped for longer than every threshold, and goes on."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from datetime import datetime, timedelta

import psutil
import pytest

from devstack.environment import airflow_home, airflow_settings
from devstack.processes import marked_by_home
from devstack.supervisor_state import read_state
from tests.chaos.test_kills import (
    FIRST_EPOCH_STEPS,
    LONG_TRAINING,
    ORPHAN_CHECK,
    PIPELINE,
    RUN_SECONDS,
    scheduler_log,
    stage_processes,
    steps_done,
)
from tests.integration.installation import Installation
from training.store.leases import LEASE_TTL_SECONDS

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(3600)]

NIGHT = timedelta(hours=10)
TORCHRUN_KEEP_ALIVE_SECONDS = 15.0


def processes(installation: Installation) -> list[psutil.Process]:
    found = []
    for identity in marked_by_home(installation.home):
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(identity.pid))
    return found


@contextlib.contextmanager
def asleep(installation: Installation) -> Iterator[None]:
    """Stop every process; at the end the scheduler wakes first, and the others only after it has looked for orphans once more."""
    stopped: list[psutil.Process] = []

    def stop_all() -> bool:
        fresh = [process for process in processes(installation) if process not in stopped]
        for process in fresh:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
                stopped.append(process)
        return not fresh

    installation.until(stop_all, "no process left that runs")
    try:
        yield
        scheduler = component(installation, "scheduler")
        before = orphan_checks(installation)
        scheduler.resume()
        installation.until(lambda: orphan_checks(installation) > before, "the scheduler's next look for orphans")
    finally:
        for process in stopped:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()


def component(installation: Installation, name: str) -> psutil.Process:
    state = read_state(installation.home)
    assert state is not None
    identity = next(entry.process for entry in state.components if entry.name == name)
    assert identity is not None
    return psutil.Process(identity.pid)


def orphan_checks(installation: Installation) -> int:
    return scheduler_log(installation).count(ORPHAN_CHECK)


def age_heartbeats(installation: Installation, by: timedelta) -> None:
    """Set every heartbeat in Airflow's database back, as a sleep of that length leaves them.

    That this can write also shows that no stopped process holds a lock on the database.
    """
    with contextlib.closing(sqlite3.connect(airflow_home(installation.settings) / "airflow.db", timeout=1)) as database, database:
        for table, column in (("job", "latest_heartbeat"), ("task_instance", "last_heartbeat_at")):
            rows = database.execute(f"SELECT id, {column} FROM {table} WHERE state = 'running' AND {column} IS NOT NULL").fetchall()  # noqa: S608
            assert rows, f"nothing runs in {table}"
            for number, text in rows:
                aged = (datetime.fromisoformat(text) - by).isoformat(" ")
                database.execute(f"UPDATE {table} SET {column} = ? WHERE id = ?", (aged, number))  # noqa: S608


def longest_threshold_seconds(installation: Installation) -> float:
    """Return the longest silence that anything here, on one machine, takes for a death, if it measures it while it is stopped itself."""
    health = float(airflow_settings(installation.settings)["AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD"])
    # It imports Airflow, whose settings the unit tests have to make first where all tests are collected by one process.
    from devstack.executor import SILENCE_SECONDS

    return max(health, LEASE_TTL_SECONDS, SILENCE_SECONDS, TORCHRUN_KEEP_ALIVE_SECONDS)


def test_sleep_longer_than_every_threshold_resets_no_running_task(installation: Installation) -> None:
    run_id = installation.trigger(PIPELINE, LONG_TRAINING)
    installation.until(lambda: steps_done(installation, run_id) > FIRST_EPOCH_STEPS, "training well under way", timeout_seconds=RUN_SECONDS)
    before = {process.pid for process in stage_processes(installation, run_id)}
    pid = component(installation, "scheduler").pid
    with asleep(installation):
        slept_at = time.monotonic()
        age_heartbeats(installation, NIGHT)
        installation.until(
            lambda: time.monotonic() - slept_at > longest_threshold_seconds(installation) + 2,
            "longer than every threshold",
            timeout_seconds=longest_threshold_seconds(installation) + 60,
        )
    assert {process.pid for process in stage_processes(installation, run_id)} == before
    installation.until(lambda: installation.api.health()["scheduler"] == "healthy", "the scheduler's heartbeat")

    assert installation.wait(PIPELINE, run_id, timeout_seconds=RUN_SECONDS) == "success", installation.why(PIPELINE, run_id)
    assert {name: task["try_number"] for name, task in installation.tasks(PIPELINE, run_id).items() if task["try_number"] != 1} == {}
    assert installation.result(PIPELINE, run_id, "train").attempts == 1
    assert component(installation, "scheduler").pid == pid
    assert f"run_id={run_id}" not in "".join(line for line in scheduler_log(installation).splitlines() if "orphaned TaskInstances" in line)
