"""Deadlines at a time of day."""

from datetime import UTC, datetime, time
from zoneinfo import ZoneInfo

import pytest
from airflow.models import DagRun  # noqa: TID251 - what Airflow itself hands to a deadline
from airflow.serialization.decoders import decode_deadline_reference
from airflow.serialization.encoders import encode_deadline_reference
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from nightshift.airflow_ext.deadlines import TimeOfDayDeadline, next_time


@pytest.mark.parametrize(
    ("after", "zone", "expected"),
    [
        ("2026-02-03T02:00:00", "UTC", "2026-02-03T07:00:00"),
        ("2026-02-03T07:00:00", "UTC", "2026-02-04T07:00:00"),
        ("2026-02-03T23:30:00", "UTC", "2026-02-04T07:00:00"),
        ("2026-02-03T02:00:00", "America/New_York", "2026-02-03T12:00:00"),
        # The clocks change between the run and its deadline: 07:00 is 07:00.
        ("2026-03-08T06:30:00", "America/New_York", "2026-03-08T11:00:00"),
        # 23:00 in Tokyo is the day before, in UTC.
        ("2026-02-03T14:00:00", "Asia/Tokyo", "2026-02-03T22:00:00"),
    ],
)
def test_the_next_time_that_the_clock_shows_it(after: str, zone: str, expected: str) -> None:
    found = next_time(datetime.fromisoformat(after).replace(tzinfo=UTC), at=time(7), zone=ZoneInfo(zone))
    assert found == datetime.fromisoformat(expected).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("run_type", "expected"), [("scheduled", "2026-02-03T07:00:00+00:00"), ("manual", "2026-02-03T07:00:00+00:00"), ("backfill", None)]
)
def test_every_run_but_a_backfills_has_one(run_type: str, expected: str | None) -> None:
    engine = create_engine("sqlite://")
    DagRun.metadata.create_all(engine, tables=[DagRun.metadata.tables[name] for name in ("dag_run", "log_template")])
    # As the scheduler has it: out of the stored DAG, through the plugin.
    reference = decode_deadline_reference(encode_deadline_reference(TimeOfDayDeadline(at="07:00", timezone="UTC")))
    with Session(engine) as session:
        session.add(DagRun(dag_id="d", run_id="r", run_after=datetime(2026, 2, 3, 2, tzinfo=UTC), run_type=run_type))
        session.flush()
        found = reference._evaluate_with(session=session, dag_id="d", run_id="r")
        assert (found and found.isoformat()) == expected
        assert reference._evaluate_with(session=session, dag_id="d", run_id="another") is None
