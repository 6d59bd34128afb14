"""The executor's part in the scheduler's loop: when it waits, and which runs the next loop examines first."""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
from airflow.models.dag import DagModel  # noqa: TID251 - a part of the scheduler, no DAG
from airflow.models.dagrun import DagRun  # noqa: TID251
from airflow.models.taskinstance import TaskInstance  # noqa: TID251
from sqlalchemy import insert, select, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, sessionmaker

from devstack import executor as module
from devstack.executor import SleepTolerantLocalExecutor
from tests.unit.devstack.test_executor import START, airflow_database, executor, note_task, queue, states_of, sync_until

__all__ = ["airflow_database", "executor"]


def test_scheduler_waits_for_its_database_only_while_there_is_nothing_to_run_or_to_report(
    executor: SleepTolerantLocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[int] = []
    monkeypatch.setattr(executor._idle_wait, "wait", lambda: waits.append(1))
    queue(executor, "one", "two", "three")
    executor.sync()
    assert not waits
    sync_until(executor, lambda: len(executor.event_buffer) == 3)
    assert not waits
    executor.sync()
    assert waits == [1]


def test_scheduler_waits_for_the_end_of_a_running_task_after_a_loop_in_which_none_began_or_ended(
    executor: SleepTolerantLocalExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    real = multiprocessing.connection.wait

    def wait(readers: Any, seconds: float) -> object:
        if seconds:  # not a look at whether there is a result
            waits.append(seconds)
            os.close(os.open(tmp_path / "lasts", os.O_WRONLY))
        return real(readers, seconds)

    os.mkfifo(tmp_path / "lasts")
    monkeypatch.setattr(module, "LOOK_SECONDS", 3600.0)
    monkeypatch.setattr("multiprocessing.connection.wait", wait)
    queue(executor, "lasts")
    executor.sync()
    assert not waits, "there may be more to begin"
    executor.sync()
    assert waits == [module.MAX_WAIT_SECONDS]
    sync_until(executor, lambda: bool(executor.event_buffer))
    assert states_of(executor) == {"lasts": "success"}


def test_end_or_death_of_a_worker_ends_the_wait_for_its_task(executor: SleepTolerantLocalExecutor, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lasts")
    queue(executor, "lasts")
    worker = next(worker for worker in executor.workers.values() if worker.workload is not None)
    assert not multiprocessing.connection.wait([worker.results_reader], 0)
    worker.kill()
    assert multiprocessing.connection.wait([worker.results_reader], 60)


def note_runs(database: sessionmaker[Session], *, is_paused: bool = False, **states: str) -> None:
    """Write runs of the DAG `p`: name to state."""
    same = {"dag_id": "p", "run_type": "manual", "run_after": START, "last_scheduling_decision": START, "clear_number": 0}
    rows = [{"run_id": name, "state": state, "log_template_id": 1, "triggered_by": "CLI", **same} for name, state in states.items()]
    flags = ("is_stale", "has_task_concurrency_limits", "has_import_errors", "fail_fast", "timetable_periodic", "timetable_partitioned")
    counts = {"max_active_tasks": 1, "max_consecutive_failed_dag_runs": 1, "exceeds_max_non_backfill": False}
    dag = {"dag_id": "p", "bundle_name": "b", "is_paused": is_paused, **dict.fromkeys(flags, False), **counts}
    with database.begin() as session:
        session.execute(insert(DagModel.__table__).values(**dag))  # type: ignore[arg-type]
        session.execute(insert(DagRun.__table__), rows)  # type: ignore[arg-type]


def examined_of(database: sessionmaker[Session]) -> dict[str, datetime | None]:
    runs: Any = DagRun.__table__
    with database() as session:
        return {name: instant for name, instant in session.execute(select(runs.c.run_id, runs.c.last_scheduling_decision))}


@pytest.mark.parametrize("state", ["running", "success"])
def test_run_whose_task_ended_is_examined_as_early_as_one_that_never_was(
    state: str, executor: SleepTolerantLocalExecutor, airflow_database: sessionmaker[Session]
) -> None:
    note_runs(airflow_database, r=state, other="running")
    queue(executor, "one")
    sync_until(executor, lambda: bool(executor.event_buffer))
    assert examined_of(airflow_database) == {"r": None if state == "running" else START, "other": START}


def test_run_whose_tasks_a_look_left_out_is_examined_again_without_a_wait(
    executor: SleepTolerantLocalExecutor, airflow_database: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[int] = []
    monkeypatch.setattr(executor._idle_wait, "wait", lambda: waits.append(1))
    note_runs(airflow_database, r="running", other="running")
    note_task(airflow_database, "prepare", "upstream_failed")
    changes: Any = update(TaskInstance.__table__)  # type: ignore[arg-type]
    for seconds, expected in ((1, None), (-1, START)):
        waits.clear()
        with airflow_database.begin() as session:
            session.execute(changes.values(updated_at=START + timedelta(seconds=seconds)))
        executor.sync()
        assert examined_of(airflow_database) == {"r": expected, "other": START}
        assert bool(waits) is (seconds < 0)
        executor.sync()
        assert waits, "a run that waits for its look is marked once"
        with airflow_database.begin() as session:
            session.execute(update(DagRun.__table__).values(last_scheduling_decision=START))  # type: ignore[arg-type]


def set_of_run(database: sessionmaker[Session], run_id: str, **values: datetime | None) -> None:
    with database.begin() as session:
        runs: Any = DagRun.__table__
        session.execute(update(runs).where(runs.c.run_id == run_id).values(**values))


@pytest.mark.parametrize("examined", [START, None], ids=["before", "between its end and the next look"])
def test_run_whose_task_ended_while_its_pipeline_was_paused_is_ended_by_the_scheduler(
    examined: datetime | None, executor: SleepTolerantLocalExecutor, airflow_database: sessionmaker[Session]
) -> None:
    note_runs(airflow_database, is_paused=True, r="running")
    note_task(airflow_database, "one", "success")
    set_of_run(airflow_database, "r", last_scheduling_decision=examined)
    queue(executor, "one")
    sync_until(executor, lambda: bool(executor.event_buffer))
    found: list[str] = []
    scheduler = Mock(_stamp_team_names=lambda runs, _session: found.extend(run.run_id for run in runs))
    with airflow_database() as session:
        DagRun.metadata.create_all(session.get_bind())
        SchedulerJobRunner._update_dag_run_state_for_paused_dags(scheduler, session=session)
    assert found == ["r"]


def test_run_with_a_logical_date_in_the_future_is_behind_all_others_until_then(
    executor: SleepTolerantLocalExecutor, airflow_database: sessionmaker[Session]
) -> None:
    note_runs(airflow_database, early="running", new="running", late="running")
    set_of_run(airflow_database, "early", last_scheduling_decision=None, logical_date=(then := datetime(2999, 1, 1, tzinfo=UTC)))
    set_of_run(airflow_database, "new", last_scheduling_decision=None, logical_date=START)
    executor.sync()
    assert examined_of(airflow_database) == {"early": then, "new": None, "late": START}


def test_locked_database_delays_the_mark_of_a_run_and_does_not_end_the_scheduler(
    executor: SleepTolerantLocalExecutor, airflow_database: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    note_runs(airflow_database, r="running")
    opened: list[int] = []

    @contextlib.contextmanager
    def locked() -> Iterator[Session]:
        if executor._ended and not opened:
            opened.append(1)
            raise OperationalError("UPDATE dag_run", None, Exception("database is locked"))
        with airflow_database.begin() as session:
            yield session

    monkeypatch.setattr(module, "LOOK_SECONDS", 3600.0)
    executor._look_at = executor._clock() + 3600
    monkeypatch.setattr(module, "create_session", locked)
    queue(executor, "one")
    sync_until(executor, lambda: bool(executor.event_buffer))
    assert examined_of(airflow_database) == {"r": START}
    executor.sync()
    assert examined_of(airflow_database) == {"r": None}
