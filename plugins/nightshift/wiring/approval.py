"""A person's approval: a separate DAG, so that it never delays the next run.

`ask` is Airflow's human-in-the-loop operator. What a person answers reaches it from Airflow's own record of the response, and goes into the
ledger in the transaction that moves the standing. `promote` always runs and reads the ledger: a task that was marked as done, or an XCom
that a user wrote, answers nothing, and is recorded as a bypass.

The form says who may answer. Where Airflow knows that (a list of approvers, or the users of its simple auth manager), it refuses any
other answer itself. An answer that is refused later fails that try of `ask`, with the reason in its log, and the next try asks again.
"""

from __future__ import annotations

from typing import Final

from airflow.sdk import DAG, Param, TriggerRule

from nightshift.airflow_ext.assets import REQUESTED, model_asset
from nightshift.execution.retries import TaskArguments
from nightshift.operators.approval import AnswerOperator, AskOperator, with_refusals
from nightshift.queries.approval_question import ASK
from nightshift.slots import CPU
from nightshift.wiring.task_classes import task_class
from training.spec import PipelineSpec
from training.spec.rules.names import APPROVAL_SUFFIX, HELPER_TAG
from training.stage_table import STAGES

MAX_RUNS: Final = 16
"""Requests that may be open at a time: older ones are superseded within seconds, so there are never many."""


def approval_dag(spec: PipelineSpec, common: TaskArguments) -> DAG:
    """Return `<pipeline>.approval`, started by the event that a candidate waits for a person.

    Args:
        common: arguments of every operator of the pipeline.
    """
    model = spec.promote.model
    dag = DAG(
        dag_id=f"{spec.name}{APPROVAL_SUFFIX}",
        description=f"Helper of {spec.name}: asks whether a candidate of {model} may be promoted",
        doc_md=__doc__,
        schedule=[model_asset(model, REQUESTED)],
        catchup=False,
        max_active_runs=MAX_RUNS,
        is_paused_upon_creation=False,
        tags=[*spec.tags, "approval", HELPER_TAG],
        params={"request": Param(None, type=["null", "string"], description="Key of the request in the ledger; empty: the newest one.")},
    )
    with dag:
        # A person waits: with this weight, its tasks are next to those that end a run.
        common = {**common, "priority_weight": spec.priority * len(STAGES)}
        ask = AskOperator(task_id=ASK, spec=spec, pool=CPU, **with_refusals(common))
        answering, arguments = task_class(AnswerOperator, "promote", spec)
        ask >> answering(
            task_id="promote",
            model=model,
            alerts=spec.alerts,
            pool=CPU,
            trigger_rule=TriggerRule.ALL_DONE,
            spec=spec,
            **arguments,
            **common,
        )
    return dag
