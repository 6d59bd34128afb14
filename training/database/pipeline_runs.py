"""Pipelines and their runs in our database, for SQL clients: Airflow's own tables are Airflow's, and may change with each release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import Engine, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from training.database.connect import database_faults
from training.database.schema import PipelineRecord, PipelineRun

RUNNING: Final = "running"


@dataclass(frozen=True, kw_only=True, slots=True)
class SettledRun:
    """What the first task of a run settles."""

    pipeline: str
    run_id: str
    as_of: datetime
    git_commit: str
    parameters: Mapping[str, Any]
    resource_spec: Mapping[str, Any]
    description: str
    schedule: str | None
    owner: str
    dag_config: Mapping[str, Any]


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


def _record(engine: Engine, run: SettledRun) -> None:
    now = datetime.now(UTC)
    with database_faults(), Session(engine) as session, session.begin():
        session.merge(
            PipelineRecord(
                name=run.pipeline,
                description=run.description,
                schedule=run.schedule,
                owner=run.owner,
                dag_config=dict(run.dag_config),
                updated_at=now,
            )
        )
        session.merge(
            PipelineRun(
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
    with database_faults(), Session(engine) as session:
        found: Mapping[str, Any] | None = session.scalar(select(PipelineRecord.dag_config).where(PipelineRecord.name == pipeline))
    return found


def unended_runs(engine: Engine) -> list[tuple[str, str]]:
    """Return pipeline and run id of the runs that have not ended yet, as far as this database knows."""
    with database_faults(), Session(engine) as session:
        found = session.execute(select(PipelineRun.pipeline, PipelineRun.run_id).where(PipelineRun.state == RUNNING))
        return [(pipeline, key.removeprefix(f"{pipeline}:")) for pipeline, key in found]


def end_run(engine: Engine, pipeline: str, run_id: str, state: str) -> None:
    """Note how a run has ended.

    Args:
        state: `success`, `failed` or `lost`.
    """
    wanted = PipelineRun.run_id == f"{pipeline}:{run_id}"
    with database_faults(), Session(engine) as session, session.begin():
        session.execute(update(PipelineRun).where(wanted, PipelineRun.state == RUNNING).values(state=state, ended_at=datetime.now(UTC)))
