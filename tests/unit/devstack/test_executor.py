"""The laptop's executor: which tasks it keeps, and which it takes for lost."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from multiprocessing import SimpleQueue
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.executors.base_executor import BaseExecutor, ExecutorConf
from airflow.jobs.job import Job
from airflow.models import import_all_models  # noqa: TID251 - a part of the scheduler, no DAG
from airflow.models.dag import DagModel  # noqa: TID251
from airflow.models.dagrun import DagRun  # noqa: TID251
from airflow.models.taskinstance import TaskInstance  # noqa: TID251
from airflow.models.taskinstancekey import TaskInstanceKey  # noqa: TID251
from sqlalchemy import create_engine, insert, select, update
from sqlalchemy.orm import Session, sessionmaker

from devstack import executor as module
from devstack.executor import SILENCE_SECONDS, HeartbeatWatch, SleepTolerantLocalExecutor
from devstack.scheduler_wakeup import IdleWait
from devstack.workers import Worker
from training.process.running_time import AwakeClock

START = datetime(2026, 1, 1, tzinfo=UTC)


def key_of(task_id: str, try_number: int = 1) -> TaskInstanceKey:
    return TaskInstanceKey("p", task_id, "r", try_number, -1)


def task(task_id: str, try_number: int = 1) -> Any:
    return SimpleNamespace(key=key_of(task_id, try_number), id=f"{task_id}-{try_number}")


def started(monkeypatch: pytest.MonkeyPatch, *, job_id: int = 3, mark: str = "") -> SleepTolerantLocalExecutor:
    """Return an executor that has no worker, of a scheduler by hand or, with a mark, of the supervisor's."""
    monkeypatch.setattr(SleepTolerantLocalExecutor, "_spawn_workers_with_gc_freeze", lambda _self, _count: None)
    monkeypatch.setenv("NIGHTSHIFT_SERVICE", mark)
    executor = SleepTolerantLocalExecutor(parallelism=1)
    executor.job_id = job_id
    executor.start()
    executor._idle_wait = IdleWait("sqlite://")
    return executor


def test_orphan_check_keeps_the_executors_own_tasks_and_resets_those_of_a_scheduler_that_died(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = started(monkeypatch)
    for task_id in ("train", "prepare", "evaluate"):
        executor.queued_tasks[key_of(task_id)] = SimpleNamespace(key=key_of(task_id))  # type: ignore[assignment]
    executor._process_workloads([executor.queued_tasks[key_of(task_id)] for task_id in ("train", "prepare")])
    executor.success(key_of("prepare"))
    lost = [task("ingest"), task("train", try_number=2), task("prepare")]
    assert executor.try_adopt_task_instances([task("train"), task("evaluate"), *lost]) == lost
    assert started(monkeypatch).try_adopt_task_instances([task("train")]) == [task("train")]


def test_process_that_ends_after_its_deferred_task_was_resumed_does_not_end_the_resumed_task(monkeypatch: pytest.MonkeyPatch) -> None:
    executor, ask = started(monkeypatch), task("ask")
    executor._process_workloads([ask])
    executor._process_workloads([ask])  # resumed: the same key, in another process

    executor.success(ask.key)  # the process that deferred it

    # The scheduler fails a queued or running task that ended here, unless the executor still has it.
    assert executor.has_task(ask)
    assert executor.try_adopt_task_instances([ask]) == []
    executor.success(ask.key)
    assert not executor.has_task(ask)
    executor.success(ask.key)
    assert not executor.has_task(ask)


def test_task_that_is_failed_for_its_missing_heartbeats_is_not_held_by_the_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    executor, train = started(monkeypatch), task("train")
    executor._process_workloads([train])
    assert executor.has_task(train)

    executor.fail(train.key, info="no heartbeat")

    assert not executor.has_task(train)


def test_task_whose_heartbeat_does_not_change_while_the_scheduler_is_awake_is_lost() -> None:
    now = [0.0]
    watch = HeartbeatWatch(lambda: now[0], silence_seconds=30)
    beats = {key_of("silent"): START, key_of("never"): None, key_of("alive"): START}
    for second in range(0, 30, 5):
        now[0] = second
        beats[key_of("alive")] = START + timedelta(seconds=second)
        assert watch.silent(beats) == []
    now[0] = 30.0
    assert watch.silent(beats) == [key_of("silent"), key_of("never")]
    # A retry begins with a whole limit of its own.
    assert watch.silent({key_of("silent", 2): START}) == []


def test_restart_of_the_api_server_that_takes_a_minute_fails_no_task() -> None:
    now = [0.0]
    watch = HeartbeatWatch(lambda: now[0])
    beats: dict[TaskInstanceKey, datetime | None] = {key_of("train"): START}
    assert watch.silent(beats) == []
    now[0] = 60.0
    assert watch.silent(beats) == []


def test_sleep_of_any_length_makes_no_task_silent_and_a_jump_of_the_wall_clock_does_not_either() -> None:
    now = [0.0]
    clock = AwakeClock(clock=lambda: now[0])
    watch = HeartbeatWatch(clock, silence_seconds=30)
    beats: dict[TaskInstanceKey, datetime | None] = {key_of("train"): START}
    assert watch.silent(beats) == []
    now[0] += 1_000_000
    assert watch.silent(beats) == []
    now[0] += 2
    beats[key_of("train")] = START + timedelta(days=3650)
    assert watch.silent(beats) == []
    for _ in range(28):
        now[0] += 1
        assert watch.silent(beats) == []


@pytest.fixture
def airflow_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> sessionmaker[Session]:
    """Return sessions of a database with the tables of Airflow's that the executor uses."""
    import_all_models()
    engine = create_engine(f"sqlite:///{tmp_path}/airflow.db")
    Job.metadata.create_all(engine, tables=[Job.__table__, TaskInstance.__table__, DagRun.__table__, DagModel.__table__])  # type: ignore[list-item]
    sessions = sessionmaker(engine)

    @contextlib.contextmanager
    def session() -> Iterator[Session]:
        with sessions.begin() as opened:
            yield opened

    monkeypatch.setattr(module, "create_session", session)
    return sessions


def test_start_under_the_supervisor_ends_the_jobs_of_earlier_schedulers_alone(
    airflow_database: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = {1: "SchedulerJob", 2: "TriggererJob", 3: "SchedulerJob", 4: "SchedulerJob"}
    with airflow_database.begin() as session:
        rows = [{"id": number, "job_type": kind, "state": "success" if number == 4 else "running"} for number, kind in kinds.items()]
        session.execute(insert(Job.__table__), rows)  # type: ignore[arg-type]

    def states() -> dict[int, str]:
        with airflow_database() as session:
            return dict(session.execute(select(Job.__table__.c.id, Job.__table__.c.state)).all())  # type: ignore[arg-type]

    started(monkeypatch, job_id=3)
    assert states() == {1: "running", 2: "running", 3: "running", 4: "success"}
    started(monkeypatch, job_id=3, mark="scheduler:token:/home")
    assert states() == {1: "failed", 2: "running", 3: "running", 4: "success"}


def test_running_task_of_this_scheduler_without_a_new_heartbeat_is_failed_and_no_other(
    airflow_database: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"silent": ("running", 3), "alive": ("running", 3), "elsewhere": ("running", 1), "waiting": ("queued", 3)}
    with airflow_database.begin() as session:
        for number, (task_id, (state, job_id)) in enumerate(names.items()):
            row = {"id": uuid.UUID(int=number), "dag_id": "p", "task_id": task_id, "run_id": "r", "try_number": 1, "map_index": -1}
            more = {"state": state, "queued_by_job_id": job_id, "last_heartbeat_at": START, "pool": "train", "pool_slots": 1}
            session.execute(insert(TaskInstance.__table__).values(**row, **more))  # type: ignore[arg-type]
    executor = started(monkeypatch, job_id=3)
    now = [0.0]
    executor._clock = AwakeClock(clock=lambda: now[0])
    executor._watch = HeartbeatWatch(executor._clock)
    for second in range(int(SILENCE_SECONDS) + 15):
        now[0] = second
        with airflow_database.begin() as session:
            beat = update(TaskInstance.__table__).where(TaskInstance.__table__.c.task_id == "alive")  # type: ignore[arg-type]
            session.execute(beat.values(last_heartbeat_at=START + timedelta(seconds=second)))
        executor.sync()
        assert second >= SILENCE_SECONDS or not executor.event_buffer
    assert {key: state for key, (state, _) in executor.event_buffer.items()} == {key_of("silent"): "failed"}


@dataclass
class Work:
    """A workload of LocalExecutor's, as far as the executor and its workers look at it."""

    key: TaskInstanceKey
    running_state: None = None
    success_state: str = "success"
    failure_state: str = "failed"

    @property
    def display_name(self) -> str:
        return self.key.task_id


@pytest.fixture
def executor(
    airflow_database: sessionmaker[Session], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SleepTolerantLocalExecutor]:
    """Return an executor with two real workers; what a workload does is chosen by the start of its name."""
    monkeypatch.setenv("NIGHTSHIFT_SERVICE", "")
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)

    def run_workload(workload: Work, **_arguments: Any) -> int:
        name = workload.key.task_id
        with (tmp_path / f"{name}.starts").open("a") as file:
            file.write(f"{os.getpid()}\n")
        is_first = len((tmp_path / f"{name}.starts").read_text().split()) == 1
        if name.startswith("deadly") or (name.startswith("dies-once") and is_first):
            os.kill(os.getpid(), signal.SIGKILL)
        if name.startswith("lasts"):
            os.open(tmp_path / name, os.O_RDONLY)  # until the test opens the other end
        if name.startswith("fails"):
            raise RuntimeError("as the test wants it")
        return 0

    monkeypatch.setattr(BaseExecutor, "run_workload", staticmethod(run_workload))
    made = SleepTolerantLocalExecutor(parallelism=2)
    made.job_id = 3
    made.start()
    made._idle_wait = IdleWait("sqlite://")
    yield made
    for worker in made.workers.values():
        worker.kill()
        worker.join()


def queue(executor: SleepTolerantLocalExecutor, *task_ids: str) -> None:
    for task_id in task_ids:
        executor.queued_tasks[key_of(task_id)] = Work(key_of(task_id))  # type: ignore[assignment]
    executor._process_workloads([executor.queued_tasks[key_of(task_id)] for task_id in task_ids])


def sync_until(executor: SleepTolerantLocalExecutor, is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not is_done():
        executor.sync()
        assert time.monotonic() < deadline, f"not done; event buffer {executor.event_buffer}"
        time.sleep(0.01)


def note_task(database: sessionmaker[Session], task_id: str, state: str) -> None:
    row = {"id": uuid.uuid4(), "dag_id": "p", "task_id": task_id, "run_id": "r", "try_number": 1, "map_index": -1}
    more = {"state": state, "queued_by_job_id": 3, "last_heartbeat_at": START, "pool": "train", "pool_slots": 1}
    with database.begin() as session:
        session.execute(insert(TaskInstance.__table__).values(**row, **more))  # type: ignore[arg-type]


def states_of(executor: SleepTolerantLocalExecutor) -> dict[str, str]:
    return {key.task_id: str(state) for key, (state, _) in executor.event_buffer.items() if isinstance(key, TaskInstanceKey)}


def test_more_workloads_than_workers_all_run_and_report_their_ends(executor: SleepTolerantLocalExecutor) -> None:
    names = ["one", "two", "three", "fails"]
    queue(executor, *names)
    assert not executor.queued_tasks
    sync_until(executor, lambda: len(executor.event_buffer) == 4)
    assert states_of(executor) == {"one": "success", "two": "success", "three": "success", "fails": "failed"}


def test_killed_idle_workers_are_replaced_and_a_queued_workload_is_still_executed(executor: SleepTolerantLocalExecutor) -> None:
    queue(executor, "first", "second")
    sync_until(executor, lambda: len(executor.event_buffer) == 2)
    before = list(executor.workers.values())
    for worker in before:
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
    queue(executor, "third")
    sync_until(executor, lambda: "third" in states_of(executor))
    assert states_of(executor)["third"] == "success"
    assert len(executor.workers) == 2
    assert not set(before) & set(executor.workers.values())


def test_workload_whose_worker_died_before_the_task_began_is_given_to_another_worker(
    executor: SleepTolerantLocalExecutor, airflow_database: sessionmaker[Session], tmp_path: Path
) -> None:
    note_task(airflow_database, "dies-once", "queued")
    queue(executor, "dies-once")
    sync_until(executor, lambda: bool(executor.event_buffer))
    assert states_of(executor) == {"dies-once": "success"}
    assert len(set((tmp_path / "dies-once.starts").read_text().split())) == 2


def test_workload_that_loses_two_workers_before_the_task_began_is_failed(
    executor: SleepTolerantLocalExecutor, airflow_database: sessionmaker[Session], tmp_path: Path
) -> None:
    note_task(airflow_database, "deadly", "queued")
    queue(executor, "deadly", "other")
    sync_until(executor, lambda: len(executor.event_buffer) == 2)
    assert states_of(executor) == {"deadly": "failed", "other": "success"}
    assert len((tmp_path / "deadly.starts").read_text().split()) == 2


def test_task_that_had_begun_when_its_worker_died_is_left_to_its_heartbeats(
    executor: SleepTolerantLocalExecutor, airflow_database: sessionmaker[Session], tmp_path: Path
) -> None:
    note_task(airflow_database, "deadly", "running")
    queue(executor, "deadly")
    sync_until(executor, lambda: bool(executor._lost_workers) and not executor._interrupted)
    queue(executor, "other")
    sync_until(executor, lambda: bool(executor.event_buffer))
    assert states_of(executor) == {"other": "success"}
    assert len((tmp_path / "deadly.starts").read_text().split()) == 1


def test_end_waits_for_the_running_workload_and_reports_it(executor: SleepTolerantLocalExecutor) -> None:
    queue(executor, "one", "two", "three")
    executor.end()
    assert states_of(executor) == {"one": "success", "two": "success"}
    assert not executor.workers


def test_worker_is_forked_without_the_connection_of_the_idle_wait(
    airflow_database: sessionmaker[Session], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = started(monkeypatch)
    executor._idle_wait = IdleWait(f"sqlite:///{tmp_path}/airflow.db")
    executor._idle_wait.wait()
    assert executor._idle_wait._connection is not None
    seen = []
    monkeypatch.setattr(Worker, "start", lambda _self: seen.append(executor._idle_wait._connection))
    executor._spawn_worker()
    assert seen == [None]


def test_report_that_a_kill_cuts_in_the_middle_does_not_block_the_scheduler() -> None:
    worker = Worker("test", ExecutorConf())
    worker._target, worker._kwargs = report_for_ever, {"output": worker._output}  # type: ignore[attr-defined]
    worker.start()
    try:
        assert worker._output._reader.poll(30)  # type: ignore[attr-defined]
    finally:
        worker.kill()
        worker.join()

    # The pipe holds the beginning of a message that nobody will end.
    assert list(worker.results()) == []
    worker.close()


def report_for_ever(output: SimpleQueue[object]) -> None:
    output.put(("key", "state", ValueError("x" * 10_000_000)))
