"""From a pipeline's YAML to its DAG: a pure function of the file and the installation: parsed twice, it is serialised alike."""

from __future__ import annotations

from datetime import datetime, time, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from airflow.sdk import DAG, WeightRule
from airflow.sdk.definitions.callback import SyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert

from nightshift.airflow_ext.alerts import deadline_missed, run_succeeded, task_failed
from nightshift.airflow_ext.assets import CHAMPION, model_asset
from nightshift.airflow_ext.deadlines import TimeOfDayDeadline
from nightshift.airflow_ext.pools import pool_of
from nightshift.airflow_ext.run_ends import run_ended
from nightshift.airflow_ext.timetables import CronTimetable
from nightshift.execution.retries import BudgetRetryPolicy, TaskArguments
from nightshift.operators.promotion import PromoteOperator
from nightshift.operators.stage import StageOperator, TrainOperator
from nightshift.operators.study import TUNE
from nightshift.pipeline_files import yaml_of
from nightshift.wiring.chain import first_tasks
from nightshift.wiring.study import study_tasks, tune_dag
from nightshift.wiring.task_classes import task_class
from nightshift.wiring.trigger_params import params_of, set_params
from training.errors import SpecError
from training.spec import PipelineSpec, load_spec
from training.spec.rules.names import PIPELINE_TAG
from training.stage_table import TRAININGS


def pipeline_dag(dag_file: str) -> DAG:
    """Return the DAG of `pipelines/<stem>.yaml` next to a DAG file; the DAGs of its decisions register themselves.

    Args:
        dag_file: the DAG file's `__file__`.

    Raises:
        SpecError: the YAML is wrong; Airflow shows it as this file's import error, and loads the others.
    """
    path = yaml_of(Path(dag_file))
    spec = _load(path)
    # Airflow registers every DAG that a file opens as a context: those of the decisions need no name in the file.
    decision_dags(spec, path)
    return build_dag(spec, path)


def _load(path: Path) -> PipelineSpec:
    try:
        return load_spec(path)
    except SpecError as err:
        # `airflow dags list-import-errors` takes `[code]` for markup and prints nothing in its place: the codes stand once more without it.
        err.add_note("codes: " + ", ".join(f"{problem.code} (line {problem.line})" for problem in err.problems))
        raise


def build_dag(spec: PipelineSpec, spec_path: Path) -> DAG:
    """Return the DAG of a spec that was read from `spec_path`."""
    alerts = spec.alerts
    dag = DAG(
        dag_id=spec.name,
        description=spec.description.strip().splitlines()[0] if spec.description.strip() else None,
        doc_md=_document(spec, spec_path),
        schedule=None if spec.schedule is None else CronTimetable(spec.schedule, timezone=spec.timezone, pipeline=spec.name),
        start_date=None if spec.start is None else datetime.combine(spec.start, time(), tzinfo=ZoneInfo(spec.timezone)),
        # Missed slots are left to a backfill, which names its dates; only the latest one is run automatically.
        catchup=False,
        max_active_runs=1,
        tags=[*spec.tags, PIPELINE_TAG],
        deadline=_deadline(spec),
        on_success_callback=[run_ended("success"), *([run_succeeded(alerts)] if "success" in alerts.on else [])],
        on_failure_callback=run_ended("failed"),
    )
    common = _of_all_tasks(spec)
    with dag:
        previous: Any = first_tasks(spec, spec_path, common)
        for stage in spec.stages:
            if stage == TUNE:
                previous = study_tasks(spec, common, after=previous)
            else:
                previous = previous >> _stage(spec, stage, common)
    set_params(dag, params_of(spec))
    return dag


def decision_dags(spec: PipelineSpec, spec_path: Path) -> list[DAG]:
    """Return the further DAGs of a pipeline: `<name>.approval` where a person may be asked, `<name>.canary`, `<name>.tune`."""
    common, found = _of_all_tasks(spec), []
    # Imported where they are needed: the human-in-the-loop operator alone costs a tenth of a second in every parse.
    if asks_people(spec):
        from nightshift.wiring.approval import approval_dag

        found.append(approval_dag(spec, common))
    if spec.promote.canary is not None:
        from nightshift.wiring.canary import canary_dag

        found.append(canary_dag(spec, spec_path, common))
    if spec.tune is not None:
        found.append(tune_dag(spec, spec_path, common, params_of(spec)))
    return found


def asks_people(spec: PipelineSpec) -> bool:
    """Return whether a run of the pipeline may need a person's approval."""
    return spec.promote.approval == "required" or "approve" in spec.evaluate.severity.values() or spec.validate_.drift.may_ask


def _stage(spec: PipelineSpec, stage: str, common: TaskArguments) -> StageOperator:
    kinds: dict[str, type[StageOperator]] = {"promote": PromoteOperator, **dict.fromkeys(TRAININGS, TrainOperator)}
    of_the_stage: dict[str, Any] = {}
    if stage == "promote":
        of_the_stage = {"model": spec.promote.model, "alerts": spec.alerts}
    elif stage == "evaluate":
        # It is measured against the champion; and so Airflow shows the model's asset before anything is scheduled on it.
        of_the_stage = {"inlets": [model_asset(spec.promote.model, CHAMPION)]}
    placed, arguments = task_class(kinds.get(stage, StageOperator), stage, spec)
    return placed(task_id=stage, stage=stage, pool=pool_of(spec, stage), **of_the_stage, **arguments, **common)


def _of_all_tasks(spec: PipelineSpec) -> TaskArguments:
    """Return arguments of every operator. Not the DAG's default arguments: those are serialised, and these objects have no stable text."""
    retries, alerts = spec.retries, spec.alerts
    return {
        "owner": spec.owner,
        # Runs that are nearly done go first: a decision is worth more than one more run that has begun.
        "weight_rule": WeightRule.UPSTREAM,
        "priority_weight": spec.priority,
        # The sum of both budgets; the policy ends the task when the user's part is spent.
        "retries": retries.failures + retries.infrastructure,
        "retry_delay": retries.backoff,
        "retry_policy": BudgetRetryPolicy(failures=retries.failures, backoff=retries.backoff),
        "on_failure_callback": task_failed(alerts) if "failure" in alerts.on else None,
    }


def _deadline(spec: PipelineSpec) -> list[DeadlineAlert] | None:
    if spec.deadline is None or "deadline" not in spec.alerts.on:
        return None
    at = f"{spec.deadline:%H:%M}"
    kwargs = {"pipeline": spec.name, "deadline": f"{at} {spec.timezone}", "alerts": spec.alerts.model_dump(mode="json")}
    return [
        DeadlineAlert(
            reference=TimeOfDayDeadline(at=at, timezone=spec.timezone),
            interval=timedelta(),
            callback=SyncCallback(deadline_missed, kwargs=kwargs),
            name=f"not done by {at}",
        )
    ]


def _document(spec: PipelineSpec, spec_path: Path) -> str:
    text = spec_path.read_text(encoding="utf-8-sig")
    return f"{spec.description.strip()}\n\n```yaml\n{text.strip()}\n```\n"
