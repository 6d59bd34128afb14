"""The runs of a canary's DAG: each one that leaves the canary open starts the next, at the next slot of `promote.canary.schedule`.

Airflow holds the next run in its database, queued until its time: a pause of the DAG or a crash of the scheduler delays
it and loses nothing. Where it was lost all the same (the event of a new canary while the DAG was paused, a run that a user deleted), the
hourly housekeeping starts one. Without a canary there is no run.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from zoneinfo import ZoneInfo

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowRuntimeError, AirflowSkipException, ErrorType

from nightshift.open_canary import OpenCanary, open_canary
from nightshift.settings import Settings
from training.process.waiting import waiting_for_database
from training.spec.rules.names import CANARY_SUFFIX
from training.spec.schedule.instants import next_slot

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

    from training.registry.ledger.ledger import Ledger

START_TIME: Final = timedelta(minutes=10)
"""How long Airflow may take from a new canary to its first run, before housekeeping starts one."""
UNFINISHED: Final = ("queued", "running")


class NextCanaryRunOperator(BaseOperator):
    """Starts the next run, however this one ended; skipped where it has settled the canary."""

    def __init__(self, *, model: str, schedule: str, timezone: str, **kwargs: Any) -> None:
        """Take what settles the next run.

        Args:
            schedule: cron line of the runs.
            timezone: of the pipeline; the schedule is in its wall clock.
        """
        super().__init__(**kwargs)
        self.model = model
        self.schedule = schedule
        self.timezone = timezone

    @waiting_for_database()
    def execute(self, context: Context) -> str:
        """Return the id of the next run.

        Raises:
            AirflowSkipException: the model has no canary, or another pipeline judges it.
        """
        dag_id = context["dag_run"].dag_id
        settings = Settings.from_environment()
        found = open_canary(settings.ledger(), self.model, pipeline=dag_id.removesuffix(CANARY_SUFFIX))
        if found is None or found.dag_id != dag_id:
            raise AirflowSkipException(f"{self.model} has no canary of this pipeline: there is no next run")
        if found.simulated_at(settings.home) is not None:
            raise AirflowSkipException("its time is simulated: the next night of `make run` looks at it")
        local = next_slot(self.schedule, ZoneInfo(self.timezone), datetime.now(UTC)).astimezone(ZoneInfo(self.timezone))
        return start_canary_run(dag_id, local, note=f"waits until {local:%Y-%m-%d %H:%M} ({self.timezone}) to score the canary")


class MissedCanaryRunsOperator(BaseOperator):
    """Housekeeping's task: a run for each open canary that has none to come."""

    @waiting_for_database()
    def execute(self, context: Context) -> list[str]:
        """Return the DAGs of which a run was started."""
        started, settings = [], Settings.from_environment()
        for found in _open_canaries(settings.ledger()):
            if found.simulated_at(settings.home) is not None or context["ti"].get_dr_count(dag_id=found.dag_id, states=list(UNFINISHED)):
                continue
            self.log.warning("no run of %s is to score the canary of %s: one is started", found.dag_id, found.model)
            try:
                start_canary_run(found.dag_id, datetime.now(UTC), note="started by housekeeping: no run was to score the canary")
            except AirflowRuntimeError as err:
                # The pipeline's file may be gone, or not be readable now; the other canaries get their runs.
                self.log.error("%s could not be started, housekeeping tries again in an hour: %s", found.dag_id, err)
            else:
                started.append(found.dag_id)
        return started


def start_canary_run(dag_id: str, at: datetime, *, note: str) -> str:
    """Make the run that scores a canary at an instant (aware), unless it is there; return its id.

    Raises:
        AirflowRuntimeError: Airflow refused it, or does not answer.
    """
    # Here, as DAG files import this module and need none of it.
    from airflow.sdk.execution_time.comms import ErrorResponse, TriggerDagRun
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

    run_id = f"look-{at.isoformat(timespec='minutes')}"
    answer = SUPERVISOR_COMMS.send(TriggerDagRun(dag_id=dag_id, run_id=run_id, run_after=at.astimezone(UTC), note=note))
    if isinstance(answer, ErrorResponse) and answer.error is not ErrorType.DAGRUN_ALREADY_EXISTS:
        raise AirflowRuntimeError(answer)
    return run_id


def _open_canaries(ledger: Ledger) -> Iterator[OpenCanary]:
    """Yield the canaries that Airflow has had the time to start a run for, of pipelines that are known."""
    for model in ledger.models():
        found = open_canary(ledger, model)
        if found is None or not found.pipeline:
            continue
        if found.holder.since and datetime.now(UTC) - datetime.fromisoformat(found.holder.since) < START_TIME:
            continue
        yield found
