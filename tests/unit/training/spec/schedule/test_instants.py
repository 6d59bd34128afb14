"""Which instant's past a run may see, and which rows and days that is; also on the days on which the clock changes."""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.errors import SpecError
from training.spec import PipelineSpec, partitions, settle_as_of, window

Accept = Callable[..., PipelineSpec]

R, F = "search_ranking", "flight_delay"
ZONE = ("timezone: UTC", "timezone: America/New_York")
NOW = datetime(2026, 7, 8, 14, 3, 2, 987654, tzinfo=UTC)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def settled(spec: PipelineSpec, run_after: datetime) -> str:
    return settle_as_of(spec, parameter=None, logical_date=None, run_after=run_after).isoformat()


@pytest.mark.parametrize(
    ("parameter", "expected"),
    [
        ("2026-01-31T02:00:00+00:00", "2026-01-31T02:00:00+00:00"),
        ("2026-01-31T02:00:00Z", "2026-01-31T02:00:00+00:00"),
        ("2026-01-31T02:00:00-05:00", "2026-01-31T07:00:00+00:00"),
        ("2026-01-31", "2026-01-31T05:00:00+00:00"),
        ("2026-07-31", "2026-07-31T04:00:00+00:00"),
    ],
)
def test_parameter_comes_first_and_is_settled_in_utc(flights: PipelineSpec, parameter: str, expected: str) -> None:
    assert settle_as_of(flights, parameter=parameter, logical_date=NOW, run_after=NOW).isoformat() == expected


@pytest.mark.parametrize(
    "parameter", ["yesterday", "", "2026-01-31T02:00:00", "2026-02-30", "1900-01-01", "2026-01-31T02:00:00+00:00" + "0" * 40, "{{ ds }}"]
)
def test_parameter_that_is_no_time_is_refused(flights: PipelineSpec, parameter: str) -> None:
    with pytest.raises(SpecError) as caught:
        settle_as_of(flights, parameter=parameter, logical_date=NOW, run_after=NOW)
    assert (caught.value.code, caught.value.problems[0].field) == ("as_of.invalid", "as_of")


def test_parameter_that_is_no_time_is_refused_in_words(flights: PipelineSpec) -> None:
    with pytest.raises(SpecError) as caught:
        settle_as_of(flights, parameter="yesterday", logical_date=None, run_after=NOW)
    hint = "write a day, 2026-01-31, or a time with its offset, 2026-01-31T02:00:00+00:00"
    assert caught.value.message == f"trigger: as_of: [as_of.invalid] 'yesterday' is not a time ({hint})"


def test_logical_date_comes_before_the_schedule(flights: PipelineSpec) -> None:
    logical_date = at("2026-07-01T02:00:00-04:00")
    assert settle_as_of(flights, parameter=None, logical_date=logical_date, run_after=NOW) == logical_date


def test_naive_dates_are_refused(flights: PipelineSpec) -> None:
    naive = datetime(2026, 1, 1)
    for logical_date, run_after in ((naive, NOW), (None, naive)):
        with pytest.raises(SpecError, match="has no offset from UTC"):
            settle_as_of(flights, parameter=None, logical_date=logical_date, run_after=run_after)


@pytest.mark.parametrize(
    ("run_after", "slot"),
    [
        ("2026-07-08T14:03:02.987654+00:00", "2026-07-08T06:00:00+00:00"),
        ("2026-07-08T06:00:00+00:00", "2026-07-08T06:00:00+00:00"),
        ("2026-07-08T05:59:59.999999+00:00", "2026-07-07T06:00:00+00:00"),
        ("2026-01-08T14:00:00+00:00", "2026-01-08T07:00:00+00:00"),
        # 8 March 2026: 02:00 is left out, its slot comes at 03:00 EDT.
        ("2026-03-08T06:59:00+00:00", "2026-03-07T07:00:00+00:00"),
        ("2026-03-08T07:00:00+00:00", "2026-03-08T07:00:00+00:00"),
    ],
)
def test_manual_run_takes_the_last_slot_of_the_schedule(flights: PipelineSpec, run_after: str, slot: str) -> None:
    assert settled(flights, at(run_after)) == slot


def test_two_triggers_of_one_night_share_their_as_of(ranking: PipelineSpec) -> None:
    assert settled(ranking, NOW) == settled(ranking, NOW + timedelta(microseconds=1)) == "2026-07-08T02:00:00+00:00"


@pytest.mark.parametrize(
    ("run_after", "slot"),
    [
        # 1 November 2026: 01:30 comes twice, at 05:30 and 06:30 UTC; as in Airflow the second is the slot.
        ("2026-11-01T06:29:00+00:00", "2026-10-31T05:30:00+00:00"),
        ("2026-11-01T06:30:00+00:00", "2026-11-01T06:30:00+00:00"),
        ("2026-11-01T12:00:00+00:00", "2026-11-01T06:30:00+00:00"),
    ],
)
def test_slot_in_the_hour_that_comes_twice_is_its_second_coming(accept: Accept, run_after: str, slot: str) -> None:
    assert settled(accept(R, ZONE, ('"0 2 * * *"', '"30 1 * * *"')), at(run_after)) == slot


@pytest.mark.parametrize("hour", [4, 5, 6, 7, 8])
def test_hourly_slots_come_in_both_hours_of_one_name(accept: Accept, hour: int) -> None:
    spec = accept(R, ZONE, ('"0 2 * * *"', '"15 * * * *"'))
    for minute in ("15:00", "20:00"):
        assert settled(spec, at(f"2026-11-01T0{hour}:{minute}+00:00")) == f"2026-11-01T0{hour}:15:00+00:00"


def test_without_a_schedule_it_is_the_last_midnight_of_the_time_zone(accept: Accept) -> None:
    spec = accept(R, ZONE, ('schedule: "0 2 * * *"\n', ""))
    assert settled(spec, at("2026-07-08T03:59:00+00:00")) == "2026-07-07T04:00:00+00:00"
    assert settled(spec, at("2026-07-08T04:00:00+00:00")) == "2026-07-08T04:00:00+00:00"


@given(st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC)))
@settings(max_examples=60)
def test_slot_is_at_most_a_day_and_an_hour_old_and_never_to_come(flights: PipelineSpec, run_after: datetime) -> None:
    slot = settle_as_of(flights, parameter=None, logical_date=None, run_after=run_after)
    assert timedelta(0) <= run_after - slot <= timedelta(hours=25)


def test_window_ends_at_as_of_and_counts_days_by_the_calendar(flights: PipelineSpec) -> None:
    start, end = window(flights, at("2026-04-01T02:00:00-04:00"))
    assert (start, end) == (at("2026-01-31T02:00:00-05:00"), at("2026-04-01T02:00:00-04:00"))
    assert start.utcoffset() == timedelta(0)


def test_window_of_hours_counts_hours(accept: Accept) -> None:
    spec = accept(F, ("window: 60d", "window: 36h"), ("validation: 7d, test: 7d", "validation: 6h, test: 6h"))
    start, end = window(spec, at("2026-03-08T12:00:00-04:00"))
    assert end - start == timedelta(hours=36)


def test_window_of_partitions_is_whole_partitions(ranking: PipelineSpec) -> None:
    as_of = at("2026-02-01T02:00:00+00:00")
    days = partitions(ranking, as_of)
    assert (len(days), days[0], days[-1]) == (30, date(2026, 1, 2), date(2026, 1, 31))
    assert window(ranking, as_of) == (at("2026-01-02T00:00:00+00:00"), at("2026-02-01T00:00:00+00:00"))


@pytest.mark.parametrize(
    ("as_of", "last"),
    [
        ("2026-02-01T00:00:00+00:00", date(2026, 1, 30)),
        ("2026-02-01T04:59:59+00:00", date(2026, 1, 30)),
        ("2026-02-01T05:00:00+00:00", date(2026, 1, 31)),
    ],
)
def test_last_partition_is_the_last_whole_day_of_the_time_zone(accept: Accept, as_of: str, last: date) -> None:
    assert partitions(accept(R, ZONE), at(as_of))[-1] == last


def test_window_of_partitions_has_no_gap_where_the_clock_changes(accept: Accept) -> None:
    spec = accept(R, ZONE, ("window: 30d", "window: 4d"))
    start, end = window(spec, at("2026-03-10T06:00:00+00:00"))
    assert (start, end) == (at("2026-03-06T00:00:00-05:00"), at("2026-03-10T00:00:00-04:00"))


def test_source_without_partitions_has_none(flights: PipelineSpec) -> None:
    with pytest.raises(ValueError, match="table flights has no daily parts"):
        partitions(flights, NOW)
