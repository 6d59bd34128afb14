"""The deadline of a run: a time of day, not a number of hours after something."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import TYPE_CHECKING, ClassVar, Self
from zoneinfo import ZoneInfo

from airflow.sdk.definitions.deadline import BaseDeadlineReference

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


@dataclass(frozen=True)
class TimeOfDayDeadline(BaseDeadlineReference):
    """The first time that a wall clock shows `at` after a run begins.

    Counted from `run_after`: the slot of a run that the schedule starts, the moment of the trigger for one started by hand.
    The runs of a backfill are long past every deadline: they have none.
    """

    at: str = "07:00"
    """HH:MM."""
    timezone: str = "UTC"

    required_kwargs: ClassVar[set[str]] = {"dag_id", "run_id"}

    def serialize_reference(self) -> dict[str, str]:
        """Return what `deserialize_reference` reads."""
        return {"reference_type": self.reference_name, "at": self.at, "timezone": self.timezone}

    @classmethod
    def deserialize_reference(cls, reference_data: dict[str, str]) -> Self:
        """Return the reference that `serialize_reference` wrote."""
        return cls(at=reference_data["at"], timezone=reference_data["timezone"])

    def _evaluate_with(self, *, session: Session, dag_id: str, run_id: str) -> datetime | None:
        # In Airflow's own process, which has its database; a DAG file never comes here.
        from airflow.models import DagRun  # noqa: TID251 - as above
        from sqlalchemy import select

        statement = select(DagRun.run_after, DagRun.run_type).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
        run = session.execute(statement).one_or_none()
        if run is None or run.run_type == "backfill":
            return None
        return next_time(run.run_after, at=time.fromisoformat(self.at), zone=ZoneInfo(self.timezone))


def next_time(after: datetime, *, at: time, zone: ZoneInfo) -> datetime:
    """Return the first instant later than `after`, in UTC, at which a clock in `zone` shows `at`."""
    local = after.astimezone(zone)
    today = datetime.combine(local.date(), at, tzinfo=zone).astimezone(UTC)
    if today > after:
        return today
    return datetime.combine(local.date() + timedelta(days=1), at, tzinfo=zone).astimezone(UTC)
