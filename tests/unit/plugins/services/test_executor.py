"""The laptop's executor: which tasks it keeps, and which it takes for lost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.models.taskinstancekey import TaskInstanceKey  # noqa: TID251 - a part of the scheduler, no DAG

from nightshift.services.executor import HeartbeatWatch, SleepTolerantLocalExecutor
from training.awake import AwakeClock

START = datetime(2026, 1, 1, tzinfo=UTC)


def key_of(task_id: str, try_number: int = 1) -> TaskInstanceKey:
    return TaskInstanceKey("p", task_id, "r", try_number, -1)


def task(task_id: str, try_number: int = 1) -> Any:
    return SimpleNamespace(key=key_of(task_id, try_number))


def started(monkeypatch: pytest.MonkeyPatch) -> SleepTolerantLocalExecutor:
    """Return an executor that has no worker."""
    monkeypatch.setattr(SleepTolerantLocalExecutor, "_spawn_workers_with_gc_freeze", lambda _self, _count: None)
    monkeypatch.delenv("NIGHTSHIFT_SERVICE", raising=False)
    executor = SleepTolerantLocalExecutor(parallelism=1)
    executor.start()
    return executor


def test_orphan_check_keeps_the_executors_own_tasks_and_resets_those_of_a_scheduler_that_died(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = started(monkeypatch)
    executor.activity_queue = SimpleNamespace(put=lambda _workload: None, empty=lambda: True)  # type: ignore[assignment]
    for task_id in ("train", "prepare", "evaluate"):
        executor.queued_tasks[key_of(task_id)] = SimpleNamespace(key=key_of(task_id))  # type: ignore[assignment]
    executor._process_workloads([executor.queued_tasks[key_of(task_id)] for task_id in ("train", "prepare")])
    executor.success(key_of("prepare"))
    lost = [task("ingest"), task("train", try_number=2), task("prepare")]
    assert executor.try_adopt_task_instances([task("train"), task("evaluate"), *lost]) == lost
    assert started(monkeypatch).try_adopt_task_instances([task("train")]) == [task("train")]


def test_task_whose_heartbeat_stands_still_while_the_scheduler_is_awake_is_lost() -> None:
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
