"""What a task waits for that could start: a slot of its pool, or a process that runs it."""

from __future__ import annotations

from airflow.models import Pool, TaskInstance
from airflow.utils.state import TaskInstanceState
from sqlalchemy import func, select
from sqlalchemy.orm import Session


def awaited_by(session: Session, task: TaskInstance) -> str | None:
    """Return what a task waits for, in words; None: it has started, or waits for the tasks before it."""
    if task.state == TaskInstanceState.QUEUED:
        return "a process that runs it"
    if task.state != TaskInstanceState.SCHEDULED:
        return None
    pool = session.scalar(select(Pool).where(Pool.pool == task.pool))
    if pool is None:
        return f"the pool {task.pool}, which does not exist"
    if pool.open_slots(session=session) > 0:
        return "the scheduler, which starts it next"
    ahead = (
        TaskInstance.pool == task.pool,
        TaskInstance.state == TaskInstanceState.SCHEDULED,
        TaskInstance.priority_weight > task.priority_weight,
    )
    before = session.scalar(select(func.count()).select_from(TaskInstance).where(*ahead))
    return f"one of {pool.slots} slots of the pool {task.pool}; tasks that go before it: {before}"
