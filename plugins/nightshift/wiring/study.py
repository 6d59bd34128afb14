"""A study in a pipeline's DAG: `tune_plan` settles how many workers there are, `trials` has one task for each, `tune` sums up.

A worker does one trial after the other until the study is full. Each trial is a stage with its own work, placed as the training is:
its lease, its checkpoints and its relaunches are those of any stage. Workers, and not one task for each trial, because what is deferred to
the triggerer counts for no limit of Airflow's: a worker has one trial under way, so all have at most `tune.gpus`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, BaseOperator, Param

from nightshift.airflow_ext.pools import pool_of
from nightshift.execution.retries import TaskArguments
from nightshift.operators.study import PLAN, TRIALS, TUNE, PlanOperator, TrialsOperator, TuneOperator
from nightshift.slots import CPU
from nightshift.wiring.chain import first_tasks, stage_tasks
from nightshift.wiring.task_classes import task_class
from nightshift.wiring.trigger_params import set_params
from training.spec import PipelineSpec
from training.spec.rules.names import HELPER_TAG, TUNE_SUFFIX
from training.stage_table import TRIAL, upstream


def study_tasks(spec: PipelineSpec, common: TaskArguments, *, after: Any) -> BaseOperator:
    """Make the tasks of a study in the DAG that is open; return the last of them.

    Args:
        common: arguments of every operator of the pipeline.
        after: task that they come after.
    """
    plan = PlanOperator(task_id=PLAN, pool=CPU, **common)
    worker, arguments = task_class(TrialsOperator, TRIAL, spec)
    trials = worker.partial(task_id=TRIALS, pool=pool_of(spec, TRIAL), **arguments, **common).expand(worker=plan.output)
    summing, arguments = task_class(TuneOperator, TUNE, spec)
    tune = summing(task_id=TUNE, pool=CPU, **arguments, **common)
    after >> plan >> trials >> tune
    return tune


def tune_dag(spec: PipelineSpec, spec_path: Path, common: TaskArguments, params: Mapping[str, Param]) -> DAG:
    """Return `<pipeline>.tune`: a study alone, triggered with its own space and objective; it trains no candidate."""
    dag = DAG(
        dag_id=f"{spec.name}{TUNE_SUFFIX}",
        description=f"Helper of {spec.name}: searches settings for {spec.promote.model}",
        doc_md=__doc__,
        schedule=None,
        catchup=False,
        max_active_runs=1,
        # It runs only when a user starts it: a paused DAG would leave that run queued until another user unpauses it.
        is_paused_upon_creation=False,
        tags=[*spec.tags, "tune", HELPER_TAG],
    )
    with dag:
        study_tasks(spec, common, after=stage_tasks(spec, upstream(TUNE), common, after=first_tasks(spec, spec_path, common)))
    set_params(dag, params)
    return dag
