"""The first task of a canary's run: as `resolve`, and the run is over at once where the canary was settled in the meantime."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from airflow.sdk.exceptions import AirflowSkipException

from nightshift.open_canary import OpenCanary, open_canary
from nightshift.operators.failure_message import noted_failure
from nightshift.operators.resolve import ResolveOperator
from nightshift.settings import Settings
from training.contracts import JsonValue
from training.process.waiting import waiting_for_database
from training.registry.ledger.reasons import SIMULATED
from training.spec import PipelineSpec
from training.spec.rules.names import CANARY_SUFFIX
from training.spec.schedule.instants import last_slot

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context


class ResolveCanary(ResolveOperator):
    """Skips the run where there is no canary."""

    def __init__(self, *, model: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.model = model
        self.canary: OpenCanary | None = None

    @waiting_for_database()
    def execute(self, context: Context) -> dict[str, JsonValue]:
        # The reason of a skipped run is in its note, too.
        with noted_failure(context, AirflowSkipException):
            self._check_has_canary(context)
        return super().execute(context)

    def _check_has_canary(self, context: Context) -> None:
        dag_id = context["dag_run"].dag_id
        found = open_canary(Settings.from_environment().ledger(), self.model, pipeline=dag_id.removesuffix(CANARY_SUFFIX))
        if found is None:
            raise AirflowSkipException(f"{self.model} has no canary")
        if found.dag_id != dag_id:
            # Two pipelines may make one model; each judges its own canaries, by its own rules.
            raise AirflowSkipException(f"{found.dag_id} judges it")
        self.canary, canary = found, found.holder
        self.log.info("version %s has been canary since %s", canary.semantic_version or canary.version, canary.since)

    def as_of(self, context: Context, spec: PipelineSpec, parameter: str | None) -> datetime:
        """Return the present, independent of the pipeline's schedule: a canary is judged by the data that has arrived.

        Of a canary that a simulated night made, the present is the latest one of these nights.
        """
        if parameter is not None:
            return super().as_of(context, spec, parameter)
        simulated = None if self.canary is None else self.canary.simulated_at(Settings.from_environment().home)
        if simulated is not None:
            self.log.info("time is simulated: it is that of the latest night of make run")
            self.also_settled = {SIMULATED: True}
            return simulated
        run, rules = context["dag_run"], spec.promote.canary
        planned = (run.logical_date or run.run_after).astimezone(UTC)
        if run.start_date is None or rules is None:
            return planned
        # A run that waited (the DAG was paused, the scheduler down) is at the newest slot, not at the one that it was made for.
        return max(planned, last_slot(rules.schedule, ZoneInfo(spec.timezone), run.start_date))
