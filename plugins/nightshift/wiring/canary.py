"""A canary's DAG: champion and canary score what arrived since the canary was made; the canary serves no requests.

The first run starts when a version becomes canary. A run that leaves the canary open makes the next one (`next_look`), which waits
in the state queued until the next slot of `promote.canary.schedule`. Without a canary there are no runs.
A schedule of Airflow's would make a run at each slot, with or without a canary, or read the database in the scheduler and at each parse.
"""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import DAG

from nightshift.airflow_ext.assets import CANARY, model_asset
from nightshift.execution.retries import TaskArguments
from nightshift.operators.canary_runs import NextCanaryRunOperator
from nightshift.operators.promotion import CanaryDecisionOperator
from nightshift.operators.resolve_canary import ResolveCanary
from nightshift.slots import CPU
from nightshift.wiring.chain import first_tasks, stage_tasks
from nightshift.wiring.task_classes import task_class
from nightshift.wiring.trigger_params import param_of, set_params
from training.spec import PipelineSpec
from training.spec.rules.names import CANARY_SUFFIX, HELPER_TAG
from training.spec.trigger_form import as_of_schema
from training.stage_table import CANARY as STAGE
from training.stage_table import upstream


def canary_dag(spec: PipelineSpec, spec_path: Path, common: TaskArguments) -> DAG:
    """Return `<pipeline>.canary`.

    Args:
        common: arguments of every operator of the pipeline.
    """
    rules = spec.promote.canary
    if rules is None:
        raise ValueError(f"{spec.name} has no canaries")
    dag = DAG(
        dag_id=f"{spec.name}{CANARY_SUFFIX}",
        description=f"Helper of {spec.name}: judges the canary of {spec.promote.model} on what arrives",
        doc_md=__doc__,
        schedule=[model_asset(spec.promote.model, CANARY)],
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=False,
        tags=[*spec.tags, "canary", HELPER_TAG],
    )
    with dag:
        first = first_tasks(spec, spec_path, common, operator=ResolveCanary, model=spec.promote.model)
        look = stage_tasks(spec, (*upstream(STAGE), STAGE), common, after=first)
        deciding, arguments = task_class(CanaryDecisionOperator, "promote", spec)
        promote = deciding(task_id="promote", model=spec.promote.model, alerts=spec.alerts, pool=CPU, **arguments, **common)
        next_look = NextCanaryRunOperator(
            task_id="next_look", model=spec.promote.model, schedule=rules.schedule, timezone=spec.timezone, pool=CPU, **common
        )
        look >> promote >> next_look
        # Runs after a failed look too, or one that a user ended, and a run's state is that of the look.
        next_look.as_teardown()
    set_params(dag, {"as_of": param_of({**as_of_schema(spec), "description": "The run uses data from before this time only. Empty: now."})})
    return dag
