"""When nights begin."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from pathlib import Path

import pendulum
import pytest
from airflow.models.dag import DagModel  # noqa: TID251 - what the scheduler gives
from airflow.timetables import trigger
from airflow.timetables.base import DataInterval, TimeRestriction, Timetable

from nightshift.airflow_ext import timetables
from nightshift.airflow_ext.schedule_hold import PAUSED_BEFORE, hold_path
from nightshift.airflow_ext.timetables import CronTimetable

NOON = "2026-02-03T12:00:00+00:00"
TODAY, TOMORROW = "2026-02-03T02:00:00+00:00", "2026-02-04T02:00:00+00:00"


def instant(text: str) -> pendulum.DateTime:
    return pendulum.instance(datetime.fromisoformat(text))


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Set Airflow's clock."""
    return lambda text: monkeypatch.setattr(trigger, "utcnow", lambda: instant(text))


def following(*, last: str | None = None, start: str | None = None, catchup: bool = False, end: str | None = None) -> str | None:
    restriction = TimeRestriction(instant(start) if start else None, instant(end) if end else None, catchup)
    interval = DataInterval.exact(instant(last)) if last else None
    info = CronTimetable("0 2 * * *", timezone="UTC").next_dagrun_info(last_automated_data_interval=interval, restriction=restriction)
    if info is None:
        return None
    assert info.logical_date == info.run_after
    return info.run_after.astimezone(UTC).isoformat()


@pytest.mark.parametrize("start", [None, "2026-01-01T00:00:00+00:00"])
def test_the_first_automatic_night_is_the_next_slot(start: str | None, now: Callable[[str], None]) -> None:
    now(NOON)
    assert following(start=start) == TOMORROW


@pytest.mark.parametrize("start", [None, "2026-01-01T00:00:00+00:00"])
def test_a_parse_just_after_the_slot_does_not_skip_the_first_night(start: str | None, now: Callable[[str], None]) -> None:
    now("2026-02-03T02:00:20+00:00")
    assert following(start=start) == TODAY
    now("2026-02-03T02:02:00+00:00")
    assert following(start=start) == TOMORROW


def test_a_schedule_that_starts_later_starts_then(now: Callable[[str], None]) -> None:
    now(NOON)
    assert following(start="2026-03-01T00:00:00+00:00") == "2026-03-01T02:00:00+00:00"
    assert following(start="2026-03-01T02:00:00+00:00") == "2026-03-01T02:00:00+00:00"


def test_the_latest_missed_night_is_made_up(now: Callable[[str], None]) -> None:
    now(NOON)
    assert following(last="2026-01-30T02:00:00+00:00") == TODAY
    assert following(last=TODAY) == TOMORROW


def test_backfill_and_catch_up_have_every_slot(now: Callable[[str], None]) -> None:
    now(NOON)
    assert following(start="2026-01-01T00:00:00+00:00", catchup=True) == "2026-01-01T02:00:00+00:00"
    assert following(last="2026-01-01T02:00:00+00:00", start="2026-01-01T00:00:00+00:00", catchup=True) == "2026-01-02T02:00:00+00:00"


def test_nothing_comes_after_the_end(now: Callable[[str], None]) -> None:
    now(NOON)
    assert following(start="2026-01-01T00:00:00+00:00", end=TODAY) is None


def test_slots_are_of_the_wall_clock() -> None:
    nights = CronTimetable("0 2 * * *", timezone="America/New_York")
    restriction = TimeRestriction(instant("2026-03-07T00:00:00+00:00"), None, True)
    found, last = [], None
    for _ in range(3):
        info = nights.next_dagrun_info(last_automated_data_interval=last, restriction=restriction)
        assert info is not None
        found.append(info.run_after.astimezone(UTC).strftime("%d %H:%M"))
        last = info.data_interval
    # On 8 March 2026 the clock leaves two o'clock out.
    assert found == ["07 07:00", "08 07:00", "09 06:00"]


def test_it_survives_being_stored() -> None:
    nights = CronTimetable("0 2 * * *", timezone="Europe/Berlin")
    stored = CronTimetable.deserialize(nights.serialize())
    assert type(stored) is CronTimetable
    assert stored.serialize() == nights.serialize()


def test_held_pipeline_starts_nothing_by_schedule_and_a_backfill_has_its_slots(
    now: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_HOME", str(tmp_path))
    now(NOON)
    nights = CronTimetable("0 2 * * *", timezone="UTC", pipeline="ranking")
    stored = CronTimetable.deserialize(nights.serialize())
    last, restriction = DataInterval.exact(instant("2026-01-30T02:00:00+00:00")), TimeRestriction(None, None, False)

    def coming(timetable: Timetable, restriction: TimeRestriction) -> str | None:
        info = timetable.next_dagrun_info(last_automated_data_interval=last, restriction=restriction)
        return info and info.run_after.isoformat()

    assert coming(nights, restriction) == TODAY
    path = hold_path(tmp_path, "ranking")
    path.parent.mkdir()
    path.write_bytes(PAUSED_BEFORE)
    assert coming(stored, restriction) is None, "its command was killed"
    os.utime(path, (0, 0))
    assert coming(stored, restriction) == TODAY, "and that long ago"
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert coming(nights, restriction) is None
        assert coming(stored, restriction) is None
        assert coming(CronTimetable("0 2 * * *", timezone="UTC", pipeline="other"), restriction) == TODAY
        assert coming(stored, restriction._replace(catchup=True)) == "2026-01-31T02:00:00+00:00"


def made_now(monkeypatch: pytest.MonkeyPatch, *, planned: str, now: str, has_run: bool = False) -> str:
    """Return the slot of the run that the scheduler makes at `now`, where `planned` was worked out at the last parse."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Clock:
            return cls.fromisoformat(now)

    monkeypatch.setattr(timetables, "datetime", Clock)
    monkeypatch.setattr(timetables, "_has_run", lambda _dag, _slot: has_run)
    dag = DagModel(dag_id="d", next_dagrun=instant(planned), next_dagrun_create_after=instant(planned))
    dag.next_dagrun_data_interval = (instant(planned), instant(planned))
    info = CronTimetable("0 2 * * *", timezone="UTC").next_run_info_from_dag_model(dag_model=dag)
    assert info is not None
    assert info.logical_date == info.run_after
    assert info.data_interval == DataInterval.exact(info.run_after)
    return info.run_after.astimezone(UTC).isoformat()


def test_a_pipeline_that_was_paused_for_days_makes_up_the_latest_night_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert made_now(monkeypatch, planned="2026-01-30T02:00:00+00:00", now=NOON) == TODAY


def test_a_run_that_is_due_now_is_of_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    assert made_now(monkeypatch, planned=TODAY, now=TODAY) == TODAY


def test_a_slot_that_has_a_run_gets_no_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = "2026-01-30T02:00:00+00:00"
    assert made_now(monkeypatch, planned=planned, now=NOON, has_run=True) == planned
