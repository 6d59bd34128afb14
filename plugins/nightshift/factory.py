"""From a pipeline's YAML to its DAG: a pure function of the file, so that parsing twice gives the same serialised DAG."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from airflow.sdk import DAG, CronTriggerTimetable, Param
from airflow.sdk.definitions.callback import SyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

from nightshift.alerts import deadline_missed, run_alert
from nightshift.pools import CPU, pool_of
from nightshift.resolve import RESOLVE, WAIT, ResolveOperator, WaitForData
from nightshift.retries import BudgetRetryPolicy
from nightshift.stages import StageOperator
from training.contracts import STAGES
from training.spec import PipelineSpec, load_spec, params_schema

POKE_SECONDS: Final = (2.0, 60.0)
POKES_PER_WAIT: Final = 60


def pipeline_dag(dag_file: str) -> DAG:
    """Return the DAG of `pipelines/<stem>.yaml` beside a DAG file.

    Args:
        dag_file: the DAG file's `__file__`.

    Raises:
        SpecError: the YAML is wrong; Airflow shows it as this file's import error, and loads the others.
    """
    file = Path(dag_file)
    path = file.parent / "pipelines" / f"{file.stem}.yaml"
    return build_dag(load_spec(path), path)


def build_dag(spec: PipelineSpec, spec_path: Path) -> DAG:
    """Return the DAG of a spec that was read from `spec_path`."""
    dag = DAG(
        dag_id=spec.name,
        description=spec.description.strip().splitlines()[0] if spec.description else None,
        doc_md=_document(spec, spec_path),
        schedule=_schedule(spec),
        # No start date: with one, the first unpause makes a run for a slot that is past. Backfills name their own dates.
        catchup=False,
        max_active_runs=1,
        tags=list(spec.tags),
        params=_params(spec),
        default_args={"owner": spec.owner, "retry_delay": spec.retries.backoff},
        deadline=_deadline(spec),
        on_failure_callback=_callback(spec, "failure"),
        on_success_callback=_callback(spec, "success"),
    )
    with dag:
        previous: Any = ResolveOperator(task_id=RESOLVE, spec_path=str(spec_path), pool=CPU.name)
        if spec.data.source.partition is not None:
            previous = previous >> _wait(spec)
        for stage in STAGES:
            previous = previous >> _stage(spec, stage)
    return dag


def _stage(spec: PipelineSpec, stage: str) -> StageOperator:
    retries = spec.retries
    return StageOperator(
        task_id=stage,
        stage=stage,
        pool=pool_of(spec, stage),
        # The sum of both budgets; the policy ends the task when the user's part is spent.
        retries=retries.failures + retries.infrastructure,
        retry_policy=BudgetRetryPolicy(failures=retries.failures, backoff=retries.backoff),
    )


def _wait(spec: PipelineSpec) -> WaitForData:
    wait_seconds = spec.data.source.wait.total_seconds()
    poke_seconds = min(max(wait_seconds / POKES_PER_WAIT, POKE_SECONDS[0]), POKE_SECONDS[1])
    return WaitForData(task_id=WAIT, mode="reschedule", poke_interval=poke_seconds, timeout=wait_seconds, pool=CPU.name)


def _schedule(spec: PipelineSpec) -> CronTriggerTimetable | None:
    if spec.schedule is None:
        return None
    # A buffer of no time at all: unpausing waits for the next slot, instead of running the one before (False means "if recent").
    return CronTriggerTimetable(spec.schedule, timezone=spec.timezone, run_immediately=timedelta(0))


def _params(spec: PipelineSpec) -> dict[str, Param]:
    params = {}
    for name, schema in params_schema(spec).items():
        rest = {key: value for key, value in schema.items() if key not in ("default", "description")}
        params[name] = Param(schema["default"], description=schema.get("description"), **rest)
    return params


def _deadline(spec: PipelineSpec) -> list[DeadlineAlert] | None:
    if spec.deadline is None or "deadline" not in spec.alerts.on:
        return None
    kwargs = {"pipeline": spec.name, "deadline": str(spec.deadline), "webhook": spec.alerts.webhook}
    return [
        DeadlineAlert(
            # Queued at the slot by the schedule, at the trigger by hand: a manual run has no logical date to count from.
            reference=DeadlineReference.DAGRUN_QUEUED_AT,
            interval=_until_deadline(spec),
            callback=SyncCallback(deadline_missed, kwargs=kwargs),
            name=f"not done by {spec.deadline}",
        )
    ]


def _until_deadline(spec: PipelineSpec) -> timedelta:
    """Return the time from the schedule's slot to the deadline; a day for schedules that are not one slot a day."""
    fields = (spec.schedule or "").split()
    if spec.deadline is None or len(fields) != 5 or not (fields[0].isdigit() and fields[1].isdigit()):
        return timedelta(days=1)
    day = datetime(2000, 1, 1)
    slot = day.replace(hour=int(fields[1]), minute=int(fields[0]))
    hour, minute = (int(part) for part in str(spec.deadline).split(":")[:2])
    until = day.replace(hour=hour, minute=minute) - slot
    return until if until > timedelta(0) else until + timedelta(days=1)


def _callback(spec: PipelineSpec, kind: Any) -> Any:
    return run_alert(kind, spec.alerts.webhook) if kind in spec.alerts.on else None


def _document(spec: PipelineSpec, spec_path: Path) -> str:
    text = spec_path.read_text(encoding="utf-8-sig")
    return f"{spec.description.strip()}\n\n```yaml\n{text.strip()}\n```\n"
