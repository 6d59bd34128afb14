"""`make run`, a manual run and Airflow's timetable give one night one `as_of`, also where the clock changes."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pendulum
import pytest
from airflow.timetables.base import DataInterval, TimeRestriction
from airflow.timetables.trigger import CronTriggerTimetable

from devstack.next_night import next_night
from nightshift.airflow_ext.timetables import CronTimetable
from training.runtime.provenance import CHECKOUT
from training.spec import PipelineSpec, load_spec, settle_as_of, slot_of_day
from training.spec.schedule.instants import last_slot, next_slot

ZONES = ("America/New_York", "Europe/Berlin", "Australia/Lord_Howe")
NIGHTLY = ("0 2 * * *", "30 2 * * *", "30 1 * * *")
FIRST, LAST = date(2025, 1, 1), date(2026, 12, 31)
DAYS = [FIRST + timedelta(days=number) for number in range((LAST - FIRST).days + 1)]


def spec_of(schedule: str, zone: str) -> PipelineSpec:
    ranking = load_spec(CHECKOUT / "dags" / "pipelines" / "search_ranking.yaml")
    return ranking.model_copy(update={"schedule": schedule, "timezone": zone})


def started_by(timetable: CronTriggerTimetable, first: date = FIRST, last_day: date = LAST) -> Iterator[datetime]:
    """Yield the logical dates that a scheduler gives the runs of the two years."""
    zone = timetable._timezone
    start = pendulum.datetime(first.year, first.month, first.day, tz=zone)
    end = pendulum.datetime(last_day.year, last_day.month, last_day.day, 23, 59, 59, tz=zone)
    restriction, last = TimeRestriction(start, end, True), None
    while info := timetable.next_dagrun_info(last_automated_data_interval=last, restriction=restriction):
        last = DataInterval.exact(info.run_after)
        yield datetime.fromisoformat(info.logical_date.isoformat()).astimezone(UTC)


@pytest.mark.slow
@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("schedule", NIGHTLY)
def test_every_night_of_two_years_has_one_as_of_however_it_is_started(schedule: str, zone: str) -> None:
    spec, changes = spec_of(schedule, zone), changes_of(ZoneInfo(zone))
    by_day = dict(zip(DAYS, started_by(CronTimetable(schedule, timezone=zone)), strict=True))
    assert list(by_day.values()) == list(started_by(CronTriggerTimetable(schedule, timezone=zone)))
    for day, slot in by_day.items():
        assert slot.astimezone(ZoneInfo(zone)).date() == day
        # make run and make backfill name it by its day.
        assert next_night(spec, [], wanted=day, now=slot).as_of == slot, day
        # A run by hand takes the last slot.
        near = any((day + timedelta(days=offset)) in changes for offset in (-1, 0, 1))
        for late in (timedelta(0), *((timedelta(minutes=1), timedelta(minutes=59), timedelta(minutes=61), timedelta(hours=3)) * near)):
            assert settle_as_of(spec, parameter=None, logical_date=None, run_after=slot + late) == slot, (day, late)
        early = settle_as_of(spec, parameter=None, logical_date=None, run_after=slot - timedelta(microseconds=1))
        assert early == by_day.get(day - timedelta(days=1), early)


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("schedule", ["0 * * * *", "15,45 * * * *", "10,30 1-3 * * *", "30 2 * * 0"])
def test_last_slot_is_one_that_the_scheduler_started(schedule: str, zone: str) -> None:
    tz, week = ZoneInfo(zone), timedelta(days=8)
    for day in changes_of(tz)[:2]:
        slots = list(started_by(CronTimetable(schedule, timezone=zone), day - week, day + week))
        assert slots == sorted(set(slots))
        instant = _midnight(day, tz).astimezone(UTC)
        for _step in range(0, 6 * 60, 10):
            instant += timedelta(minutes=10)
            assert last_slot(schedule, tz, instant) == max(slot for slot in slots if slot <= instant), instant
            assert next_slot(schedule, tz, instant) == min(slot for slot in slots if slot > instant), instant


def test_day_that_the_schedule_leaves_out_has_no_slot() -> None:
    weekly = spec_of("0 2 * * 1", "Europe/Berlin")
    assert slot_of_day(weekly, date(2026, 2, 10)) is None
    assert slot_of_day(weekly, date(2026, 2, 16)) == datetime(2026, 2, 16, 1, tzinfo=UTC)


def _midnight(day: date, zone: ZoneInfo) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=zone)


def changes_of(zone: ZoneInfo) -> list[date]:
    """Return the days on which the clock changes."""
    found = [day for day in DAYS if _midnight(day, zone).utcoffset() != _midnight(day + timedelta(days=1), zone).utcoffset()]
    assert len(found) == 4
    return found
