"""The tasks that every DAG of stages has in common: `resolve`, `wait` where the data comes in partitions, and one task per stage."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator

from nightshift.airflow_ext.pools import pool_of
from nightshift.execution.retries import TaskArguments
from nightshift.operators.resolve import ResolveOperator
from nightshift.operators.stage import StageOperator
from nightshift.operators.wait import WAIT, WaitForData
from nightshift.resolved_run import RESOLVE
from nightshift.slots import CPU
from nightshift.wiring.task_classes import task_class
from training.spec import PipelineSpec


def first_tasks(
    spec: PipelineSpec, spec_path: Path, common: TaskArguments, *, operator: type[ResolveOperator] = ResolveOperator, **arguments: Any
) -> BaseOperator:
    """Make `resolve` and `wait` in the DAG that is open; return the last of them.

    Args:
        common: arguments of every operator of the pipeline.
        operator: of `resolve`, with its further `arguments`.
    """
    last: BaseOperator = operator(task_id=RESOLVE, spec_path=str(spec_path), pool=CPU, **arguments, **common)
    if spec.data.has_partitions:
        wait = WaitForData(task_id=WAIT, wait=spec.data.source.wait, pool=CPU, **common)
        last >> wait
        last = wait
    return last


def stage_tasks(spec: PipelineSpec, stages: Iterable[str], common: TaskArguments, *, after: BaseOperator) -> BaseOperator:
    """Make a task for each of `stages`, one after the other, in the DAG that is open; return the last of them.

    Args:
        common: arguments of every operator of the pipeline.
        after: task that they come after.
    """
    last = after
    for stage in stages:
        kind, arguments = task_class(StageOperator, stage, spec)
        task = kind(task_id=stage, stage=stage, pool=pool_of(spec, stage), **arguments, **common)
        last >> task
        last = task
    return last
