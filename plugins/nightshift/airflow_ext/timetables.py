"""When runs begin: cron, without a run for a slot that had passed before the schedule was first switched on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction, Timetable
from airflow.timetables.trigger import CronTriggerTimetable
from pendulum import instance

from nightshift.airflow_ext.schedule_hold import is_held
from training.contracts import JsonValue
from training.spec.schedule.instants import last_slot, next_slot

if TYPE_CHECKING:
    from airflow.models.dag import DagModel
    from pendulum import DateTime
    from pendulum.tz.timezone import FixedTimezone, Timezone

SLOT_STILL_NEW: Final = timedelta(minutes=1)
"""The next run is worked out at every parse, and made by the scheduler a moment after its slot: a parse in between must not skip it."""


class CronTimetable(CronTriggerTimetable):
    """Cron whose first automatic run is the next slot to come: unpausing and triggering a pipeline is one run, not two.

    Airflow's own does so only for a DAG without a start date; with one, unpausing makes a run of the latest slot at once. Later
    slots that were missed (the scheduler was down) are Airflow's to make up as ever: the latest of them. `logical_date` is the slot.
    """

    def __init__(
        self,
        cron: str,
        *,
        timezone: str | Timezone | FixedTimezone,
        interval: timedelta = timedelta(),
        run_immediately: bool | timedelta = SLOT_STILL_NEW,
        pipeline: str = "",
    ) -> None:
        """Begin a run at each slot of `cron`, in the wall clock of `timezone`.

        Args:
            pipeline: the DAG's id; none starts by schedule while `nightshift.airflow_ext.schedule_hold` holds it.
        """
        super().__init__(cron, timezone=timezone, interval=interval, run_immediately=run_immediately)
        self._pipeline = pipeline

    @classmethod
    def deserialize(cls, data: dict[str, JsonValue]) -> Timetable:
        """Return the stored timetable."""
        stored = super().deserialize(data)
        if isinstance(stored, cls):
            stored._pipeline = str(data["pipeline"])
        return stored

    def serialize(self) -> dict[str, JsonValue]:
        return {**super().serialize(), "pipeline": self._pipeline}

    def next_dagrun_info(self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction) -> DagRunInfo | None:
        """Return the next run, None after the restriction's end and while a command holds the pipeline."""
        if self._pipeline and not restriction.catchup and is_held(self._pipeline):
            return None
        first = last_automated_data_interval is None
        if restriction.catchup or not first or restriction.earliest is None:
            return super().next_dagrun_info(last_automated_data_interval=last_automated_data_interval, restriction=restriction)
        unstarted = TimeRestriction(earliest=None, latest=restriction.latest, catchup=False)
        coming = super().next_dagrun_info(last_automated_data_interval=None, restriction=unstarted)
        if coming is None or coming.run_after >= restriction.earliest:
            return coming
        # The start is still to come: its first slot.
        return super().next_dagrun_info(last_automated_data_interval=None, restriction=restriction._replace(catchup=True))

    def next_run_info_from_dag_model(self, *, dag_model: DagModel) -> DagRunInfo | None:
        """Return the run that the scheduler makes now: of the latest slot, also where the file was parsed before that slot."""
        noted = super().next_run_info_from_dag_model(dag_model=dag_model)
        slot = instance(last_slot(self._expression, self._timezone, datetime.now(UTC)))
        if noted is None or slot <= noted.run_after or _has_run(dag_model, slot):
            return noted
        return DagRunInfo.interval(slot - self._interval, slot)

    def _get_next(self, current: DateTime) -> DateTime:
        """Return the first slot after `current`; the same function gives a manual run and `make run` their `as_of`."""
        return instance(next_slot(self._expression, self._timezone, _plain(current)))

    def _get_prev(self, current: DateTime) -> DateTime:
        """Return the last slot before `current`."""
        return instance(last_slot(self._expression, self._timezone, _plain(current) - timedelta(microseconds=1)))


def _has_run(dag_model: DagModel, slot: DateTime) -> bool:
    """Return whether a DAG has a run of a slot: a second one would end the scheduler's transaction with an error."""
    # In the scheduler, which has the database; a DAG file never comes here.
    from airflow.models.dagrun import DagRun
    from sqlalchemy import select
    from sqlalchemy.orm import object_session

    session = object_session(dag_model)
    asked = select(DagRun.id).where(DagRun.dag_id == dag_model.dag_id, DagRun.logical_date == slot)
    return session is not None and session.scalar(asked) is not None


def _plain(instant: DateTime) -> datetime:
    """Return the same instant without pendulum's own arithmetic, which counts on the wall clock."""
    return datetime.fromisoformat(instant.isoformat())
