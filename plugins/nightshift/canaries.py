"""A canary's DAG: champion and canary score what arrived since the canary was made; nobody is served by it meanwhile.

Started when a version becomes canary, and then on `promote.canary.schedule`. Without a canary a run is over at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import DAG, AssetOrTimeSchedule, CronTriggerTimetable, Param
from airflow.sdk.exceptions import AirflowSkipException

from nightshift.assets import CANARY, model_asset
from nightshift.pools import CPU, pool_of
from nightshift.promotion import CanaryDecisionOperator
from nightshift.resolve import RESOLVE, WAIT, ResolveOperator, WaitForData
from nightshift.settings import Settings
from nightshift.stages import StageOperator
from nightshift.trigger_params import set_params
from training.patience import waiting_for_database
from training.spec import PipelineSpec
from training.spec.names import CANARY_SUFFIX
from training.spec.trigger_form import as_of_schema

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

STAGES: Final = ("ingest", "validate", "prepare", "canary")


def canary_dag(spec: PipelineSpec, spec_path: Path, common: Mapping[str, Any]) -> DAG:
    """Return `<pipeline>.canary`.

    Args:
        common: arguments of every operator of the pipeline.
    """
    rules = spec.promote.canary
    if rules is None:
        raise ValueError(f"{spec.name} has no canaries")
    dag = DAG(
        dag_id=f"{spec.name}{CANARY_SUFFIX}",
        description=f"Judges the canary of {spec.promote.model} on what arrives",
        doc_md=__doc__,
        schedule=AssetOrTimeSchedule(
            timetable=CronTriggerTimetable(rules.schedule, timezone=spec.timezone), assets=[model_asset(spec.promote.model, CANARY)]
        ),
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=False,
        tags=[*spec.tags, "canary"],
    )
    with dag:
        previous: Any = ResolveCanary(task_id=RESOLVE, spec_path=str(spec_path), model=spec.promote.model, pool=CPU.name, **common)
        if spec.data.source.partition is not None:
            previous = previous >> WaitForData(task_id=WAIT, wait=spec.data.source.wait, pool=CPU.name, **common)
        for stage in STAGES:
            previous = previous >> StageOperator(task_id=stage, stage=stage, pool=pool_of(spec, stage), **common)
        previous >> CanaryDecisionOperator(task_id="promote", model=spec.promote.model, alerts=spec.alerts, pool=CPU.name, **common)
    set_params(dag, {"as_of": Param(**{**as_of_schema(), "description": "The instant whose past may be seen; empty: now."})})
    return dag


class ResolveCanary(ResolveOperator):
    """Skips the run where there is no canary."""

    def __init__(self, *, model: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.model = model

    @waiting_for_database()
    def execute(self, context: Context) -> dict[str, Any]:
        from training.registry.ledger import Ledger

        ledger = Ledger(Settings.from_environment().database_url)
        canary = ledger.standing(self.model).canary
        if canary is None:
            raise AirflowSkipException(f"{self.model} has no canary")
        made = ledger.decision(self.model, canary.decision_key)
        pipeline = context["dag_run"].dag_id.removesuffix(CANARY_SUFFIX)
        if made is not None and made.evidence.get("pipeline", pipeline) != pipeline:
            # Two pipelines may make one model; each judges its own canaries, by its own rules.
            raise AirflowSkipException(f"{made.evidence['pipeline']}{CANARY_SUFFIX} judges it")
        self.log.info("version %s has been canary since %s", canary.semantic_version or canary.version, canary.since)
        return super().execute(context)

    def as_of(self, context: Context, spec: PipelineSpec, parameter: str | None) -> datetime:
        """Return now, whatever the pipeline's schedule: a canary is judged by what has arrived."""
        if parameter is not None:
            return super().as_of(context, spec, parameter)
        run = context["dag_run"]
        return (run.logical_date or run.run_after).astimezone(UTC)
