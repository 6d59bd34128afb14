"""The laptop's executor: Airflow's LocalExecutor that knows which tasks are its own, and that counts only the time it was awake.

Airflow judges by the age of heartbeats in its database. When a laptop sleeps, every heartbeat is old on waking, the scheduler's own
included, and whichever check runs first resets or fails healthy tasks. On one machine no guess is needed: the executor is the parent
of the processes that run the tasks.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow.executors.local_executor import LocalExecutor
from airflow.jobs.job import Job, JobState
from airflow.models.taskinstance import TaskInstance  # noqa: TID251 - a part of the scheduler, no DAG
from airflow.models.taskinstancekey import TaskInstanceKey  # noqa: TID251
from airflow.utils.session import create_session
from airflow.utils.state import TaskInstanceState
from sqlalchemy import select, update

from nightshift.services.processes import MARK
from training.awake import AwakeClock

if TYPE_CHECKING:
    from datetime import datetime

    from airflow.executors.workloads import ExecutorWorkload
    from airflow.executors.workloads.types import WorkloadKey, WorkloadState

logger = logging.getLogger(__name__)

SILENCE_SECONDS: Final = 90.0
"""A task whose heartbeat did not change for so long, while the scheduler was awake, is lost. Tasks send one every 5 s, to the api-server:
while that is started again, which on a loaded machine takes longer than half a minute, no task can, and all of them would be failed."""
LOOK_SECONDS: Final = 5.0


class HeartbeatWatch:
    """Finds tasks whose heartbeat does not change any more, by one's own clock: the age in the database is never read."""

    def __init__(self, clock: Callable[[], float], *, silence_seconds: float = SILENCE_SECONDS) -> None:
        self._clock = clock
        self._silence_seconds = silence_seconds
        self._seen: dict[TaskInstanceKey, tuple[datetime | None, float]] = {}

    def silent(self, beats: Mapping[TaskInstanceKey, datetime | None]) -> list[TaskInstanceKey]:
        """Return the tasks of `beats` (last heartbeat by running task) that have been silent for too long."""
        now = self._clock()
        last = {key: self._seen.get(key) for key in beats}
        self._seen = {key: seen if (seen := last[key]) and seen[0] == beat else (beat, now) for key, beat in beats.items()}
        return [key for key, (_, since) in self._seen.items() if now - since >= self._silence_seconds]


class SleepTolerantLocalExecutor(LocalExecutor):
    """LocalExecutor for an installation with one scheduler, under Nightshift's supervisor."""

    def start(self) -> None:
        """Start the workers, and end the job of the scheduler before this one: its tasks are then reset by the first check."""
        super().start()
        self._own: set[WorkloadKey] = set()
        self._clock = AwakeClock()
        self._watch = HeartbeatWatch(self._clock)
        self._look_at = 0.0
        # The supervisor ends whatever an earlier scheduler left before it starts this one. A scheduler started by hand cannot know.
        if os.environ.get(MARK):
            self._end_earlier_jobs()

    def try_adopt_task_instances(self, tis: Sequence[TaskInstance]) -> Sequence[TaskInstance]:
        """Return the tasks that are not this executor's: those of a scheduler that died, to be reset."""
        lost = [ti for ti in tis if ti.key not in self._own and ti.key not in self.queued_tasks]
        if len(lost) < len(tis):
            logger.info("%d tasks looked orphaned and are this scheduler's own; kept", len(tis) - len(lost))
        return lost

    def change_state(self, key: WorkloadKey, state: WorkloadState, info: Any = None, remove_running: bool = True) -> None:
        """Note a workload's end. A task reports nothing before its end."""
        self._own.discard(key)
        super().change_state(key, state, info, remove_running)

    def sync(self) -> None:
        """Read results, and fail the tasks that are lost. Called in every loop of the scheduler."""
        super().sync()
        if self._clock() < self._look_at:
            return
        self._look_at = self._clock() + LOOK_SECONDS
        for key in self._watch.silent(self._heartbeats()):
            logger.error("%s sent no heartbeat for %.0f s; failed", key, SILENCE_SECONDS)
            self.fail(key, info=f"the task sent no heartbeat for {SILENCE_SECONDS:.0f} s: its process is gone or hangs")

    def _process_workloads(self, workload_list: Sequence[ExecutorWorkload]) -> None:
        # LocalExecutor leaves `running` empty: it forgets what it has handed to its workers.
        self._own.update(workload.key for workload in workload_list)
        super()._process_workloads(workload_list)  # type: ignore[no-untyped-call]

    def _heartbeats(self) -> dict[TaskInstanceKey, datetime | None]:
        running = (TaskInstanceState.RUNNING, TaskInstanceState.RESTARTING)
        columns = (TaskInstance.dag_id, TaskInstance.task_id, TaskInstance.run_id, TaskInstance.try_number, TaskInstance.map_index)
        query = select(*columns, TaskInstance.last_heartbeat_at).where(
            TaskInstance.state.in_(running), TaskInstance.queued_by_job_id == self.job_id
        )
        with create_session() as session:
            return {TaskInstanceKey(*row[:-1]): row[-1] for row in session.execute(query)}

    def _end_earlier_jobs(self) -> None:
        earlier = (Job.job_type == "SchedulerJob", Job.state == JobState.RUNNING, Job.id != self.job_id)
        with create_session() as session:
            session.execute(update(Job).where(*earlier).values(state=JobState.FAILED))
