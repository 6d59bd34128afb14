"""Records of runs and their stages, made of Airflow's rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from airflow.models import DagRun, Pool, TaskInstance
from airflow.utils.state import TaskInstanceState
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from nightshift.queries.schemas import Artifact, Run, RunState, StageRun
from training.contracts import ContractError, JsonObject, StageResult, require_result
from training.sanitizing import from_markdown
from training.spec.rules.names import HELPER_SUFFIXES, HOUSEKEEPING, ROLLBACK
from training.stage_table import TABLE

MAX_CONF_LEVELS: Final = 32
"""Of objects and lists in a conf that is shown."""


def run_fields(found: DagRun) -> dict[str, Any]:
    """Return the fields of `RunSummary`."""
    state: RunState = found.state.value if hasattr(found.state, "value") else found.state
    return {
        "id": f"{found.dag_id}:{found.run_id}",
        "pipeline": found.dag_id,
        "run_id": found.run_id,
        "state": state,
        "waits_for": _awaited(found) if state in ("queued", "running") else None,
        "run_type": str(found.run_type),
        "triggered_by": found.triggering_user_name,
        "queued_at": found.queued_at,
        "started_at": found.start_date,
        "ended_at": found.end_date,
        # Airflow shows it as Markdown.
        "note": None if found.note is None else from_markdown(found.note),
    }


def _awaited(found: DagRun) -> str | None:
    if found.dag_model is None or not found.dag_model.is_paused:
        return None
    is_helper = found.dag_id.endswith(HELPER_SUFFIXES) or found.dag_id in (ROLLBACK, HOUSEKEEPING)
    return f"{found.dag_id}, which is paused: " + ("unpause it in Airflow" if is_helper else f"nightshift schedule on {found.dag_id}")


def run_record(found: DagRun, settled: Any, stages: list[StageRun]) -> Run:
    """Return a run with its stages, and with what its first task has settled: the task's result, of whatever form."""
    known = settled if isinstance(settled, Mapping) else {}
    overrides = known.get("overrides")
    snapshot = overrides.get("snapshot") if isinstance(overrides, Mapping) else None
    parameters = _shallow(dict(found.conf or {}))
    given = {"as_of": known.get("as_of"), "snapshot": snapshot, "parameters": parameters, "from_checkpoint": _checkpoint(parameters)}
    return Run.model_validate({**run_fields(found), **given, "stages": stages})


def _shallow(value: Any, levels: int = MAX_CONF_LEVELS) -> Any:
    """Return a conf with what lies deeper left out: Airflow's own ways to start a run have no limit, and JSON of an answer has."""
    if not isinstance(value, dict | list):
        return value
    if levels == 0:
        return "…"
    return (
        {key: _shallow(each, levels - 1) for key, each in value.items()}
        if isinstance(value, dict)
        else [_shallow(each, levels - 1) for each in value]
    )


def _checkpoint(parameters: JsonObject) -> str | None:
    train = parameters.get("train")
    digest = train.get("from_checkpoint") if isinstance(train, Mapping) else None
    return digest if isinstance(digest, str) else None


def stage_record(session: Session, task: TaskInstance, value: Any) -> StageRun:
    """Return a stage of a run; `value` is what its task left in XCom."""
    result = stage_result(task.task_id, value)
    return StageRun(
        name=task.task_id,
        state=task.state,
        waits_for=awaited_by(session, task),
        progress=None,
        try_number=task.try_number,
        started_at=task.start_date,
        ended_at=task.end_date,
        seconds=task.duration,
        attempts=None if result is None else result.attempts,
        reused_from=None if result is None or result.reused_from is None else result.reused_from.run_id,
        artifact=None if result is None else Artifact(uri=result.artifact_uri, digest=result.digest),
        scalars={} if result is None else dict(result.scalars),
        timings={} if result is None else dict(result.timings),
        reports={} if result is None else dict(result.reports),
        usage=None if result is None or result.usage is None else asdict(result.usage),
    )


def stage_result(stage: str, value: Any) -> StageResult | None:
    """Return the result that a task left in XCom; None where the task is no stage, or left none that is valid."""
    if stage not in TABLE or value is None:
        return None
    try:
        return require_result(value, stage=stage)
    except ContractError:
        # Users of Airflow's API may write XCom: a value that is not a valid result is shown as null.
        return None


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
