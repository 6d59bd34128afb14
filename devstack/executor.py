"""The laptop's executor: Airflow's LocalExecutor that knows which tasks are its own, and that counts only the time it was awake.

Airflow judges by the age of heartbeats in its database. When a laptop sleeps, every heartbeat is old on waking, the scheduler's own
included, and whichever check runs first resets or fails healthy tasks. On one machine no guess is needed: the executor is the parent
of the processes that run the tasks.
"""

from __future__ import annotations

import logging
import multiprocessing.connection
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, cast

from airflow.configuration import conf
from airflow.executors.local_executor import LocalExecutor
from airflow.jobs.job import Job, JobState
from airflow.models.dag import DagModel  # noqa: TID251 - a part of the scheduler, no DAG
from airflow.models.dagrun import DagRun  # noqa: TID251
from airflow.models.taskinstance import TaskInstance  # noqa: TID251
from airflow.models.taskinstancekey import TaskInstanceKey  # noqa: TID251
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, TaskInstanceState
from sqlalchemy import and_, case, func, null, or_, select, tuple_, update
from sqlalchemy.exc import OperationalError

from devstack.processes import SERVICE
from devstack.scheduler_wakeup import IdleWait
from devstack.workers import Worker
from nightshift.airflow_ext.preloading import preload
from training.process.running_time import AwakeClock

if TYPE_CHECKING:
    from airflow.executors.workloads import ExecutorWorkload
    from airflow.executors.workloads.types import WorkloadKey, WorkloadState

logger = logging.getLogger(__name__)

SILENCE_SECONDS: Final = 90.0
"""A task whose heartbeat did not change for so long, while the scheduler was awake, is lost. Tasks send one every 5 s, to the api-server:
while that is started again, which on a loaded machine takes longer than half a minute, no task can, and all of them would be failed."""
LOOK_SECONDS: Final = 5.0
MAX_WAIT_SECONDS: Final = 1.0
"""For a running task to end: what others write into the database, such as a trigger, is seen so late while tasks run."""
LEFT_OUT: Final = (TaskInstanceState.UPSTREAM_FAILED, TaskInstanceState.SKIPPED)
"""States that the scheduler itself gives to tasks that are not run."""
RESPAWN_SECONDS: Final = 1.0
"""Dead workers are replaced at most so often."""
KEY_COLUMNS: Final = (TaskInstance.dag_id, TaskInstance.task_id, TaskInstance.run_id, TaskInstance.try_number, TaskInstance.map_index)
MAX_LOST_WORKERS: Final = 2
"""A workload that has lost so many workers before it began is failed."""


class HeartbeatWatch:
    """Finds tasks whose heartbeat no longer changes, by a local clock: the age in the database is never read."""

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

    workers: dict[int, Worker]  # type: ignore[assignment]

    def start(self) -> None:
        """Start the workers, and end the job of the scheduler before this one: its tasks are then reset by the first check."""
        self._waiting: deque[ExecutorWorkload] = deque()
        self._spawn_at = 0.0
        self._interrupted: dict[WorkloadKey, tuple[ExecutorWorkload, float]] = {}
        """What dead workers were to run, and when that was seen, until a look into the database shows whether it had begun."""
        self._lost_workers: Counter[WorkloadKey] = Counter()
        self._idle_wait = IdleWait(conf.get_mandatory_value("database", "sql_alchemy_conn"))
        # Each task runs in a process that a worker forks, and each worker is forked from this process.
        preload()
        super().start()
        self._own: Counter[WorkloadKey] = Counter()
        """Workloads that have been accepted and have not ended; a task that resumes has two until the process that deferred it ends."""
        self._ended: set[WorkloadKey] = set()
        """Workloads that have ended, of which the scheduler has not been informed by `_examine_first`."""
        self._has_begun = False
        """Whether a workload was accepted in this loop."""
        self._clock = AwakeClock()
        self._watch = HeartbeatWatch(self._clock)
        self._look_at = 0.0
        # The supervisor ends what an earlier scheduler left before it starts this one. Without it, other schedulers may be running.
        if SERVICE.text():
            self._end_earlier_jobs()

    def try_adopt_task_instances(self, tis: Sequence[TaskInstance]) -> Sequence[TaskInstance]:
        """Return the tasks that are not this executor's: those of a scheduler that died, to be reset."""
        lost = [ti for ti in tis if ti.key not in self._own and ti.key not in self.queued_tasks]
        if len(lost) < len(tis):
            logger.info("%d tasks looked orphaned and are this scheduler's own; kept", len(tis) - len(lost))
        return lost

    def has_task(self, task_instance: TaskInstance) -> bool:
        """Return whether a task is queued or running here. LocalExecutor forgets what it has handed to its workers.

        A process that has deferred its task ends a moment later. Where the task has been resumed by then, the scheduler would take the
        end of that process for the end of the resumed task, fail it, and lose what resumed it: a person's answer, for example.
        """
        return task_instance.key in self._own or super().has_task(task_instance)

    def change_state(self, key: WorkloadKey, state: WorkloadState, info: Any = None, remove_running: bool = True) -> None:
        """Note a workload's end. A task reports nothing before its end."""
        self._own -= Counter([key])
        self._ended.add(key)
        self._lost_workers.pop(key, None)
        super().change_state(key, state, info, remove_running)

    def sync(self) -> None:
        """Read results, replace dead workers, and fail the tasks that are lost. Called in every loop of the scheduler.

        A loop in which nothing happened is followed by a wait, a second at most: for the end of a task, or, where none runs, for
        something new in Airflow's database. A loop costs the scheduler some 10 ms for each run that it examines.
        """
        super().sync()
        if self._clock() >= self._look_at:
            self._look_for_lost_tasks()
        has_news, self._has_begun = bool(self._has_begun or self._ended), False
        has_news |= self._examine_first()
        if has_news or self._waiting or self._interrupted or self.queued_tasks or self.queued_callbacks or self.queued_connection_tests:
            return
        if busy := [worker.results_reader for worker in self.workers.values() if worker.workload is not None]:
            multiprocessing.connection.wait(busy, MAX_WAIT_SECONDS)
        else:
            self._idle_wait.wait()

    def _examine_first(self) -> bool:
        """Let the next loop examine the runs in which something happened before the others; return whether there are such runs.

        That is the end of a task, and what the scheduler itself did in the last look at a run: of the tasks after one that failed, a look
        ends only the next one. Where the database cannot be written to, the loop after that tries again.

        The time of their last examination is removed, as if they had never been examined. Each loop starts new runs, which have none:
        with an old time instead, hundreds that are due at once would all come before. Runs of paused DAGs keep a time: without it the
        scheduler never ends them. Runs with a logical date in the future, in which it starts no task yet, get that date: they come last.
        """
        runs = {(key.dag_id, key.run_id) for key in self._ended if isinstance(key, TaskInstanceKey)}
        of_run = (TaskInstance.dag_id == DagRun.dag_id, TaskInstance.run_id == DagRun.run_id)
        # Not by the index of states: a DAG's history may have thousands of these.
        is_left_out = func.coalesce(TaskInstance.state, "").in_(LEFT_OUT)
        left_out = select(TaskInstance.id).where(*of_run, is_left_out, TaskInstance.updated_at >= DagRun.last_scheduling_decision)
        changed = or_(tuple_(DagRun.dag_id, DagRun.run_id).in_(runs), left_out.exists())
        is_paused = DagRun.dag_id.in_(select(DagModel.dag_id).where(DagModel.is_paused))
        is_early = DagRun.logical_date > datetime.now(UTC)
        was_examined = DagRun.last_scheduling_decision.is_not(None)
        is_wrong = case((was_examined, and_(~is_paused, changed)), else_=or_(is_paused, is_early))
        instant = case((was_examined, null()), (is_early, DagRun.logical_date), else_=DagRun.run_after)
        try:
            with create_session() as session:
                if found := session.scalars(select(DagRun.id).where(DagRun.state == DagRunState.RUNNING, is_wrong)).all():
                    session.execute(update(DagRun.__table__).where(DagRun.id.in_(found)).values(last_scheduling_decision=instant))
        except OperationalError as err:
            logger.warning("runs in which something happened are not examined first: %s", err)
            return False
        self._ended.clear()
        return bool(found)

    def _look_for_lost_tasks(self) -> None:
        self._look_at = self._clock() + LOOK_SECONDS
        self._run_again()
        for key in self._watch.silent(self._heartbeats()):
            logger.error("%s sent no heartbeat for %.0f s; failed", key, SILENCE_SECONDS)
            self.fail(key, info=f"the task sent no heartbeat for {SILENCE_SECONDS:.0f} s: its process is gone or hangs")

    def end(self) -> None:
        """Wait for the running tasks, as LocalExecutor does; what no worker has begun is left to the next scheduler."""
        logger.info("%d workers end after the tasks that they run", len(self.workers))
        for worker in self.workers.values():
            worker.finish()
        for worker in self.workers.values():
            worker.join()
        self._read_results()
        for worker in self.workers.values():
            worker.close()
        self.workers = {}
        self._idle_wait.close()

    def _process_workloads(self, workload_list: Sequence[ExecutorWorkload]) -> None:
        # LocalExecutor leaves `running` empty: it forgets what it has handed to its workers.
        self._own.update(workload.key for workload in workload_list)
        self._has_begun = True
        for workload in workload_list:
            for queued in (self.queued_tasks, self.queued_callbacks, self.queued_connection_tests):
                cast("dict[WorkloadKey, ExecutorWorkload]", queued).pop(workload.key, None)
            self._waiting.append(workload)
        self._check_workers()

    def _spawn_worker(self) -> None:
        self._idle_wait.close()
        worker = Worker(self.log.name, self.conf)
        worker.start()
        self.workers[cast("int", worker.pid)] = worker

    def _check_workers(self) -> None:
        """Replace dead workers, and give waiting workloads to idle ones."""
        for pid, worker in [(pid, worker) for pid, worker in self.workers.items() if not worker.is_alive()]:
            self._read(worker)
            del self.workers[pid]
            what = "idle" if worker.workload is None else f"running {worker.workload.display_name}"
            logger.error("worker %d died (exit code %s) while %s; it is replaced", pid, worker.exitcode, what)
            if worker.workload is not None:
                self._lost_workers[worker.workload.key] += 1
                self._interrupted[worker.workload.key] = (worker.workload, self._clock())
            worker.close()
        if len(self.workers) < self.parallelism and time.monotonic() >= self._spawn_at:
            # On a full disk a worker may die at its first line.
            self._spawn_at = time.monotonic() + RESPAWN_SECONDS
            self._spawn_workers_with_gc_freeze(self.parallelism - len(self.workers))  # type: ignore[no-untyped-call]
        for worker in self.workers.values():
            if self._waiting and worker.workload is None:
                worker.take(self._waiting.popleft())

    def _read_results(self) -> None:
        for worker in self.workers.values():
            self._read(worker)

    def _read(self, worker: Worker) -> None:
        for key, state in worker.results():
            self.change_state(key, state)

    def _run_again(self) -> None:
        """Run what died with its worker before it began. A task that had begun is found by its heartbeats."""
        # The last request of a worker that died a moment ago may not be in the database yet.
        settled = [key for key, (_, seen_at) in self._interrupted.items() if self._clock() - seen_at >= LOOK_SECONDS]
        queued = self._queued(settled) if settled else set()
        for key in settled:
            workload, _ = self._interrupted.pop(key)
            is_task = isinstance(key, TaskInstanceKey)
            if is_task and key not in queued:
                logger.warning("%s lost its worker while it ran; failed unless it sends heartbeats", key)
            elif is_task and self._lost_workers[key] < MAX_LOST_WORKERS:
                logger.warning("%s lost its worker before it began; given to another one", key)
                self._waiting.append(workload)
            else:
                self.fail(key, info="the executor's worker process died")

    def _queued(self, keys: Collection[WorkloadKey]) -> set[WorkloadKey]:
        """Return which of these tasks have not begun."""
        query = select(*KEY_COLUMNS).where(
            TaskInstance.state == TaskInstanceState.QUEUED,
            TaskInstance.run_id.in_({key.run_id for key in keys if isinstance(key, TaskInstanceKey)}),
        )
        with create_session() as session:
            return {key for row in session.execute(query) if (key := TaskInstanceKey(*row)) in keys}

    def _heartbeats(self) -> dict[TaskInstanceKey, datetime | None]:
        running = (TaskInstanceState.RUNNING, TaskInstanceState.RESTARTING)
        query = select(*KEY_COLUMNS, TaskInstance.last_heartbeat_at).where(
            TaskInstance.state.in_(running), TaskInstance.queued_by_job_id == self.job_id
        )
        with create_session() as session:
            return {TaskInstanceKey(*row[:-1]): row[-1] for row in session.execute(query)}

    def _end_earlier_jobs(self) -> None:
        earlier = (Job.job_type == "SchedulerJob", Job.state == JobState.RUNNING, Job.id != self.job_id)
        with create_session() as session:
            session.execute(update(Job).where(*earlier).values(state=JobState.FAILED))
