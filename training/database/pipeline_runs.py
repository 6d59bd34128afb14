"""Pipelines and their runs in our database, for SQL clients: Airflow's own tables are Airflow's, and may change with each release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import Engine, and_, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError

from training.contracts import JsonObject
from training.database.connect import reading, writing
from training.database.schema import PipelineRow, PipelineRunRow

QUEUED: Final = "queued"
RUNNING: Final = "running"
FAILED: Final = "failed"
LOST: Final = "lost"
"""Airflow does not have the run any more."""
CLEARED_WITHIN: Final = timedelta(days=7)
"""So long after it failed, a run is looked at again: once its tasks are cleared, it goes on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SettledRun:
    """What the first task of a run settles."""

    pipeline: str
    run_id: str
    as_of: datetime
    git_commit: str
    parameters: JsonObject
    resource_spec: JsonObject
    description: str
    schedule: str | None
    owner: str
    dag_config: JsonObject


def record_run(engine: Engine, run: SettledRun) -> None:
    """Note that a run has begun, or begun again, and how its pipeline is.

    Raises:
        UnavailableError: `database.unavailable`.
    """
    try:
        _record(engine, run)
    except IntegrityError:
        # Another run of the pipeline made its row in between.
        _record(engine, run)


def record_queued(engine: Engine, pipeline: str, run_id: str, parameters: JsonObject) -> None:
    """Note a run that a request has queued; nothing where its first task was faster.

    The row of an ended run is replaced: Airflow does not have that run any more, or it would not have queued one of its id.

    Args:
        parameters: keys that the request gave, and their values.

    Raises:
        UnavailableError: `database.unavailable`.
    """
    add = postgresql.insert if engine.dialect.name == "postgresql" else sqlite.insert
    row = {
        "pipeline": pipeline,
        "state": QUEUED,
        "as_of": None,
        "started_at": None,
        "ended_at": None,
        "git_commit": "",
        "parameters": dict(parameters),
        "resource_spec": {},
    }
    is_ended = PipelineRunRow.state.not_in((QUEUED, RUNNING))
    statement = add(PipelineRunRow).values(run_id=f"{pipeline}:{run_id}", **row)
    with writing(engine) as session:
        session.execute(statement.on_conflict_do_update(index_elements=[PipelineRunRow.run_id], set_=row, where=is_ended))


def _record(engine: Engine, run: SettledRun) -> None:
    now = datetime.now(UTC)
    with writing(engine) as session:
        session.merge(
            PipelineRow(
                name=run.pipeline,
                description=run.description,
                schedule=run.schedule,
                owner=run.owner,
                dag_config=dict(run.dag_config),
                updated_at=now,
            )
        )
        session.merge(
            PipelineRunRow(
                run_id=f"{run.pipeline}:{run.run_id}",
                pipeline=run.pipeline,
                state=RUNNING,
                as_of=run.as_of,
                started_at=now,
                ended_at=None,
                git_commit=run.git_commit,
                parameters=dict(run.parameters),
                resource_spec=dict(run.resource_spec),
            )
        )


def config_of(engine: Engine, pipeline: str) -> Mapping[str, Any] | None:
    """Return the YAML of a pipeline with its defaults, as its newest run found it; None: no run has begun yet."""
    with reading(engine) as session:
        return session.scalar(select(PipelineRow.dag_config).where(PipelineRow.name == pipeline))


def unsettled_runs(engine: Engine, *, now: datetime | None = None) -> list[tuple[str, str, str]]:
    """Return pipeline, run id and noted state of the runs whose state may change: those that are queued or run, and those that failed
    within a week."""
    begin = (now or datetime.now(UTC)) - CLEARED_WITHIN
    failed_lately = and_(PipelineRunRow.state == FAILED, PipelineRunRow.ended_at > begin)
    is_open = PipelineRunRow.state.in_((QUEUED, RUNNING))
    asked = select(PipelineRunRow.pipeline, PipelineRunRow.run_id, PipelineRunRow.state).where(or_(is_open, failed_lately))
    with reading(engine) as session:
        return [(pipeline, key.removeprefix(f"{pipeline}:"), state) for pipeline, key, state in session.execute(asked)]


def note_state(engine: Engine, pipeline: str, run_id: str, state: str, *, noted: str) -> None:
    """Note how a run has ended, or that it goes on; nothing where another state than `noted` is noted by now.

    Args:
        state: `success`, `failed`, `lost` or `running`.
    """
    wanted = PipelineRunRow.run_id == f"{pipeline}:{run_id}"
    ended_at = None if state == RUNNING else datetime.now(UTC)
    with writing(engine) as session:
        session.execute(update(PipelineRunRow).where(wanted, PipelineRunRow.state == noted).values(state=state, ended_at=ended_at))
