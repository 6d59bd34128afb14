"""In what order tasks of many pipelines get the slots, by Airflow's own scheduler and pools.

The scheduler is real: it examines the runs, and chooses what it queues by weights and pools in its database. Only the processes are not:
a task of any kind takes one round of the scheduler, so that the order is the same on each machine. How long stages take, and how busy the
slots are, is measured by benchmarks/due_at_once.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.api.common.delete_dag import delete_dag
from airflow.executors.base_executor import BaseExecutor
from airflow.jobs.job import Job
from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
from airflow.models import DagModel, DagRun, Pool, TaskInstance  # noqa: TID251 - of the scheduler, which is tested
from airflow.models.serialized_dag import SerializedDagModel  # noqa: TID251 - as above
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, TaskInstanceState
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from sqlalchemy import delete, select, update

from nightshift.slots import CPU, TRAIN, machine_slots
from nightshift.wiring.pipeline import build_dag
from tests.unit.plugins.airflow_dags import write_dag
from training.runtime.provenance import CHECKOUT
from training.spec import parse_spec

EXAMPLE = CHECKOUT / "docs" / "examples" / "cancelled_orders" / "cancelled_orders.yaml"
GIB = 2**30
NIGHT = datetime(2026, 3, 17, tzinfo=UTC)
Ended = Mapping[tuple[str, str], int]
"""Pipeline and task to the round in which it ended."""


class Processes(BaseExecutor):
    """Takes whatever it is given."""

    def _process_workloads(self, workload_list: Sequence[Any]) -> None:
        for workload in workload_list:
            self.queued_tasks.pop(workload.ti.key)


@pytest.fixture
def night(airflow_dags: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Ended]]:
    """Return `night(priorities, cpu=…, train=…)`, which runs a pipeline for each priority, all due together."""
    monkeypatch.setenv("ORDERS_URI", "file:///orders")
    monkeypatch.setenv("NIGHTSHIFT_PLACES", "ORDERS_URI")
    names: list[str] = []

    def run(priorities: Sequence[int], **slots: int) -> Ended:
        monkeypatch.setenv("NIGHTSHIFT_SLOTS", ",".join(f"{name}:{number}" for name, number in slots.items()))
        for number, priority in enumerate(priorities):
            names.append(f"orders_{number:02}")
            text = EXAMPLE.read_text().replace("name: cancelled_orders", f"name: {names[-1]}\npriority: {priority}")
            write_dag(build_dag(parse_spec(text.encode()), EXAMPLE))
        queue_runs(names)
        return rounds(names)

    with create_session() as session:
        session.execute(delete(DagRun))
        session.execute(delete(Pool).where(Pool.pool != Pool.DEFAULT_POOL_NAME))
    yield run
    with create_session() as session:
        session.execute(delete(DagRun))
        session.execute(delete(Pool).where(Pool.pool != Pool.DEFAULT_POOL_NAME))
    for name in names:
        delete_dag(name)


def queue_runs(names: Sequence[str]) -> None:
    with create_session() as session:
        session.execute(update(DagModel).where(DagModel.dag_id.in_(names)).values(is_paused=False))
        for name in names:
            dag = SerializedDagModel.get_dag(name, session=session)
            assert dag is not None
            dag.create_dagrun(
                run_id="night",
                run_after=NIGHT,
                logical_date=None,
                data_interval=None,
                run_type=DagRunType.MANUAL,
                triggered_by=DagRunTriggeredByType.REST_API,
                state=DagRunState.QUEUED,
                session=session,
            )


def rounds(names: Sequence[str]) -> Ended:
    """Let the scheduler start what it would, and end all that has started, until every run has ended."""
    executor = Processes(parallelism=64)
    scheduler = SchedulerJobRunner(job=Job(), executors=[executor])
    ended: dict[tuple[str, str], int] = {}
    while len(ended) < 7 * len(names):
        number = len(set(ended.values()))
        with create_session() as session:
            scheduler._do_scheduling(session)
            executor.heartbeat()
            started = session.scalars(select(TaskInstance).where(TaskInstance.state == TaskInstanceState.QUEUED)).all()
            assert started, f"nothing starts in round {number}"
            for task in started:
                task.state = TaskInstanceState.SUCCESS
                ended[task.dag_id, task.task_id] = number
    return ended


def rounds_of(ended: Ended, task_id: str) -> list[int]:
    return sorted(number for (_, task), number in ended.items() if task == task_id)


def test_of_ten_runs_due_together_the_first_decision_comes_before_the_fifth_ingest(night: Callable[..., Ended]) -> None:
    ended = night([1] * 10, **machine_slots(cores=2, memory_bytes=24 * GIB))
    assert rounds_of(ended, "promote")[0] < rounds_of(ended, "ingest")[4]


def test_the_training_slots_are_never_empty_while_a_training_waits(night: Callable[..., Ended]) -> None:
    ended = night([1] * 10, cpu=2, train=1)
    running = defaultdict(list)
    for (pipeline, task), number in ended.items():
        if task == "train":
            running[number].append(pipeline)
    prepared = {pipeline: number for (pipeline, task), number in ended.items() if task == "prepare"}
    for number in range(max(ended.values())):
        waiting = [name for name, at in prepared.items() if at < number <= ended[name, "train"]]
        assert bool(waiting) == bool(running[number]), f"round {number}"


def test_runs_of_a_pipeline_with_priority_are_decided_first(night: Callable[..., Ended]) -> None:
    ended = night([1, 1, 1, 1, 20, 1, 1, 1, 20, 1], cpu=1, train=1)
    first = sorted((number, pipeline) for (pipeline, task), number in ended.items() if task == "promote")[:2]
    assert {pipeline for _, pipeline in first} == {"orders_04", "orders_08"}


def test_slots_follow_cores_and_memory() -> None:
    assert machine_slots(16, 64 * GIB) == {CPU: 12, TRAIN: 4}
    assert machine_slots(64, 512 * GIB) == {CPU: 48, TRAIN: 16}
    assert sum(machine_slots(64, 8 * GIB).values()) == 8
    assert machine_slots(1, GIB) == {CPU: 1, TRAIN: 1}
