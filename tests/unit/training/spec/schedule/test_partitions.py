"""Which hours, days and months are over, and when each begins and ends, against a loop over minutes; and the rules of the key."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from training.errors import SpecError
from training.runtime.provenance import CHECKOUT
from training.sources.listing import missing_partitions, windows_of
from training.spec import PipelineSpec, load_spec, resolve_uris, spec_part, window
from training.spec.schedule.partitions import (
    FORMS,
    Grain,
    bounds_of,
    folder_of,
    grain_of,
    partition_fault,
    partitions_between,
    partitions_until,
)

ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "America/Santiago", "Africa/Cairo"]
AS_OF = datetime(2026, 2, 1, 2, 20, tzinfo=UTC)
LENGTHS = {Grain.HOUR: timedelta(hours=5), Grain.DAY: timedelta(days=2), Grain.MONTH: timedelta(days=20)}


def minute_by_minute(grain: Grain, zone: ZoneInfo, until: datetime, back: timedelta) -> dict[str, list[datetime]]:
    """Return the minutes before `until` by the name that their wall clock gives, without that of `until` itself."""
    minutes: dict[str, list[datetime]] = {}
    moment = until.replace(second=0, microsecond=0) - back
    while moment < until:
        minutes.setdefault(moment.astimezone(zone).strftime(FORMS[grain]), []).append(moment)
        moment += timedelta(minutes=1)
    minutes.pop(until.astimezone(zone).strftime(FORMS[grain]), None)
    return minutes


@settings(max_examples=60)
@given(
    grain=st.sampled_from([Grain.HOUR, Grain.DAY]),
    zone=st.sampled_from(ZONES).map(ZoneInfo),
    until=st.datetimes(datetime(2026, 1, 1), datetime(2026, 12, 31)).map(lambda at: at.replace(second=0, microsecond=0, tzinfo=UTC)),
)
@example(grain=Grain.HOUR, zone=ZoneInfo("Europe/Berlin"), until=datetime(2026, 10, 25, 1, 30, tzinfo=UTC))
@example(grain=Grain.HOUR, zone=ZoneInfo("Europe/Berlin"), until=datetime(2026, 10, 25, 3, 30, tzinfo=UTC))
@example(grain=Grain.HOUR, zone=ZoneInfo("Europe/Berlin"), until=datetime(2026, 3, 29, 3, 0, tzinfo=UTC))
@example(grain=Grain.HOUR, zone=ZoneInfo("Australia/Lord_Howe"), until=datetime(2026, 4, 4, 17, 0, tzinfo=UTC))
@example(grain=Grain.HOUR, zone=ZoneInfo("Australia/Lord_Howe"), until=datetime(2026, 10, 3, 18, 0, tzinfo=UTC))
def test_partitions_are_those_of_a_loop_over_minutes(grain: Grain, zone: ZoneInfo, until: datetime) -> None:
    found = partitions_until(grain, zone, until, length=LENGTHS[grain])
    minutes = minute_by_minute(grain, zone, until, 2 * LENGTHS[grain] + timedelta(days=1))
    assert [part.name for part in found] == list(minutes)[-len(found) :]
    for part in found:
        assert (
            (part.start, part.end) == (minutes[part.name][0], minutes[part.name][-1] + timedelta(minutes=1)) == bounds_of(part.name, zone)
        )
    assert all(earlier.end == later.start for earlier, later in pairwise(found))
    assert found[-1].end - found[0].start >= LENGTHS[grain] > found[-1].end - found[0].end


@pytest.mark.parametrize(
    ("until", "length", "names"),
    [
        (datetime(2026, 3, 1, tzinfo=UTC), 28, ["2026-02"]),
        (datetime(2026, 3, 1, tzinfo=UTC), 30, ["2026-01", "2026-02"]),
        (datetime(2026, 3, 31, 23, tzinfo=UTC), 60, ["2025-12", "2026-01", "2026-02"]),
    ],
)
def test_whole_months_have_at_least_the_length(until: datetime, length: int, names: list[str]) -> None:
    found = partitions_until(Grain.MONTH, ZoneInfo("UTC"), until, length=timedelta(days=length))
    assert [part.name for part in found] == names
    assert [bounds_of(part.name, ZoneInfo("UTC")) for part in found] == [(part.start, part.end) for part in found]


def test_partitions_between_are_those_that_have_a_part_of_the_time_and_are_over() -> None:
    first, last = datetime(2026, 1, 31, 22, 30, tzinfo=UTC), datetime(2026, 2, 1, 1, tzinfo=UTC)
    for until, names in ((AS_OF, ["31T22", "31T23", "01T00", "01T01"]), (AS_OF - timedelta(hours=1), ["31T22", "31T23", "01T00"])):
        found = partitions_between(Grain.HOUR, ZoneInfo("UTC"), first, last, until)
        assert [part.name[-5:] for part in found] == names


@pytest.mark.parametrize(
    ("partition", "grain", "name", "folder"),
    [
        ("dt={date}", Grain.DAY, "2026-01-31", "dt=2026-01-31"),
        ("dt={date}/hour={hour}", Grain.HOUR, "2026-01-31T06", "dt=2026-01-31/hour=06"),
        ("year=%Y/month=%m/day=%d/%H", Grain.HOUR, "2026-01-31T06", "year=2026/month=01/day=31/06"),
        ("{month}", Grain.MONTH, "2026-01", "2026-01"),
        ("%Y/%m", Grain.MONTH, "2026-01", "2026/01"),
    ],
)
def test_a_folder_is_named_after_its_time(partition: str, grain: Grain, name: str, folder: str) -> None:
    assert (partition_fault(partition), grain_of(partition), folder_of(partition, name)) == ("", grain, folder)


@pytest.mark.parametrize(
    ("partition", "fault"),
    [
        ("day", "has {date} 0 times, it needs it once"),
        ("{date}/{date}", "has {date} 2 times, it needs it once"),
        ("{date}/%m", "has %m 2 times, it needs it once"),
        ("hour={hour}", "names an hour and lacks %Y, %m, %d"),
        ("%Y/%d", "names a day and lacks %m"),
        ("%m", "names a month and lacks %Y"),
        ("/{date}", "is not a folder below uri"),
        ("{date}%s", "is not a folder below uri"),
    ],
)
def test_a_folder_without_one_time_is_refused(partition: str, fault: str) -> None:
    assert partition_fault(partition) == fault


SEARCHES, FLIGHTS = "search_ranking", "flight_delay"


def loaded(tmp_path: Path, name: str, *changes: tuple[str, str]) -> PipelineSpec:
    text = (CHECKOUT / "dags" / "pipelines" / f"{name}.yaml").read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path = tmp_path / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    return resolve_uris(load_spec(path), {"SHOP_URI": tmp_path.as_uri(), "FLIGHTS_URI": tmp_path.as_uri()})


HOURLY = ('"dt={date}"', '"dt={date}/h={hour}"')
SHORT = ("window: 30d", "window: 6h"), ("validation: 1d", "validation: 1h"), ("test: 2d", "test: 2h")


def test_a_window_of_hours_ends_with_the_last_hour_that_is_over_and_lacks_what_is_not_there(tmp_path: Path) -> None:
    spec = loaded(tmp_path, SEARCHES, HOURLY, *SHORT)
    assert window(spec, AS_OF) == (datetime(2026, 1, 31, 20, tzinfo=UTC), datetime(2026, 2, 1, 2, tzinfo=UTC))
    names = windows_of(spec, AS_OF)["clicks"].partitions
    assert names == ("2026-01-31T20", "2026-01-31T21", "2026-01-31T22", "2026-01-31T23", "2026-02-01T00", "2026-02-01T01")
    for name in names[:-1]:
        path = tmp_path / "clicks" / folder_of("dt={date}/h={hour}", name) / "part.parquet"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x")
    (missing,) = missing_partitions(spec, AS_OF)
    assert (missing.table, missing.names, missing.expected) == ("clicks", ["2026-02-01T01"], 6)
    assert missing.places == [f"{tmp_path.as_uri()}/clicks/dt=2026-02-01/h=01"]


def problems(tmp_path: Path, name: str, *changes: tuple[str, str]) -> list[str]:
    with pytest.raises(SpecError) as caught:
        loaded(tmp_path, name, *changes)
    return [f"{problem.field}: [{problem.code}] {problem.message}" for problem in caught.value.problems]


def test_a_window_that_is_not_whole_partitions_is_refused(tmp_path: Path) -> None:
    half = ("window: 30d", "window: 30m"), ("validation: 1d", "validation: 1m"), ("test: 2d", "test: 1m")
    assert problems(tmp_path, SEARCHES, HOURLY, *half) == [
        "data.source.window: [partition.window] 30m is not a whole number of hours, and the partitions are hours"
    ]
    assert problems(tmp_path, SEARCHES, ('"dt={date}"', '"{month}"'), ("window: 30d", "window: 721h")) == [
        "data.source.window: [partition.window] 721h is not a whole number of days, and the partitions are months"
    ]


def test_partitions_of_a_feature_table_reach_as_far_as_its_rows_can_be_used(tmp_path: Path) -> None:
    text = (CHECKOUT / "dags" / "pipelines" / "flight_delay.yaml").read_text(encoding="utf-8")
    at = text.index("table: weather")
    line = text[text.index("uri:", at) : text.index("\n", text.index("uri:", at))]
    spec = loaded(tmp_path, FLIGHTS, (line, f'{line}\n      partition: "{{date}}"'))
    weather = next(table for table in spec.data.features if table.table == "weather")
    assert weather.max_age is not None
    start, _ = window(spec, AS_OF)
    found = windows_of(spec, AS_OF)["weather"]
    oldest = start - spec.data.source.decision_lead - weather.max_age
    zone = ZoneInfo(spec.timezone)
    assert bounds_of(found.partitions[0], zone)[0] <= oldest < bounds_of(found.partitions[0], zone)[1]
    assert bounds_of(found.partitions[-1], zone)[1] <= AS_OF - weather.available_after
    assert [missing.table for missing in missing_partitions(spec, AS_OF)] == ["weather"]
    plain = loaded(tmp_path, FLIGHTS)
    assert spec_part(spec, "ingest") != spec_part(plain, "ingest")


def test_no_partition_of_a_feature_table_is_needed_whose_rows_no_prediction_can_see(tmp_path: Path) -> None:
    text = (CHECKOUT / "dags" / "pipelines" / "flight_delay.yaml").read_text(encoding="utf-8")
    at = text.index("table: weather")
    line = text[text.index("uri:", at) : text.index("\n", text.index("uri:", at))]
    spec = loaded(tmp_path, FLIGHTS, (line, f'{line}\n      partition: "{{date}}/%H"'))
    # The last flight is decided two hours before it, and a row is known an hour after its time.
    newest = window(spec, AS_OF)[1] - timedelta(hours=3)
    begin, end = bounds_of(windows_of(spec, AS_OF)["weather"].partitions[-1], ZoneInfo(spec.timezone))
    assert begin <= newest < end


def test_partitions_of_a_dimension_are_refused(tmp_path: Path) -> None:
    text = (CHECKOUT / "dags" / "pipelines" / "flight_delay.yaml").read_text(encoding="utf-8")
    at = text.index("table: planes")
    line = text[text.index("uri:", at) : text.index("\n", text.index("uri:", at))]
    (problem,) = problems(tmp_path, FLIGHTS, (line, f'{line}\n      partition: "{{date}}"'))
    assert problem.endswith("[field.conflict] partition needs an event_time and a max_age: they say which partitions of planes are needed")
