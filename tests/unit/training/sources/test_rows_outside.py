"""Rows outside of the window are counted with their times, and fail a night where they show that times are wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from training.contracts import microseconds_of
from training.errors import DataError
from training.sources.interface import SourceWindow
from training.sources.rows_outside import RowsOutside, is_warning, outside_lines
from training.spec import parse_spec, resolve_uris
from training.stages.check_data import check_data

START, END = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 4, 30, tzinfo=UTC)
WINDOW = SourceWindow(START, END, END)
NOW = datetime(2026, 5, 2, 12, tzinfo=UTC)
SPEC = """
name: times
owner: a
data:
  source:
    table: orders
    kind: csv
    uri: "${TIMES_URI}/orders.csv"
    event_time: at
    window: 60d
    key: [id]
    columns: {id: {type: int64}, at: {type: timestamp}, x: {type: double}, late: {type: boolean, known: after}}
  label: {column: late}
  split: {by: time, validation: 9d, test: 9d}
validate: {empty_days: allow}
prepare: {features: {x: {transform: number}}}
train: {model: boosted_trees, epochs: 3, learning_rate: 0.1}
evaluate: {task: binary, primary: auc, improvement: {absolute: 0.0}}
promote: {model: times, approval: automatic}
"""


def counted(*moments: str, factor: float = 1, lead: timedelta = timedelta()) -> RowsOutside:
    """Return what is counted of a hundred rows of the window, and of these."""
    inside = [START + timedelta(hours=number) for number in range(100)]
    us = [microseconds_of(moment) for moment in [*inside, *map(datetime.fromisoformat, moments)]]
    outside = RowsOutside(NOW, lead)
    # In two parts.
    for part in (us[:50], us[50:]):
        outside.add(np.array([round(value * factor) for value in part]), WINDOW)
    return outside


def test_rows_before_and_after_are_said_with_their_times_and_those_of_missing_ones_named() -> None:
    found = counted("1970-01-01T00:00:00Z", "1970-01-01T00:00:00+02:00", "2026-02-01T00:00:00Z", "2026-04-30T00:00:00Z")
    found.check(WINDOW, table="orders", limit=0)
    assert list(outside_lines(found.scalars())) == [
        "3 of 104 rows are before the window: 1969-12-31T22:00:00Z to 2026-02-01T00:00:00Z",
        "1 of 104 rows are after the window: 2026-04-30T00:00:00Z",
        "times that often stand for a missing one: 2 at 1970-01-01",
    ]
    assert counted().scalars() == {}


@pytest.mark.parametrize(("first", "step", "is_named"), [(1960, 1, False), (1950, 10, False), (1970, 1, False), (1950, 20, True)])
def test_years_around_1970_are_not_named_as_missing_times(first: int, step: int, is_named: bool) -> None:
    moments = [f"{year}-01-01T00:00:00Z" for year in range(first, 2020, step) for _country in range(2)]
    assert ("placeholder_times" in counted(*moments).scalars()) == is_named


def test_a_day_that_the_window_is_near_to_is_not_named_as_missing_times() -> None:
    found = RowsOutside(NOW)
    window = SourceWindow(datetime(1970, 1, 4, tzinfo=UTC), datetime(1980, 1, 2, tzinfo=UTC), None)
    found.add(np.array([microseconds_of(datetime(year, 1, 1, tzinfo=UTC)) for year in (1970, 1970, 1971)]), window)
    assert (found.scalars()["rows_before_window"], "placeholder_times" in found.scalars()) == (2, False)


def test_line_of_rows_later_than_the_clock_alone_is_a_warning() -> None:
    found = counted("2026-02-01T00:00:00Z", "2026-05-01T00:00:00Z", "2062-04-01T00:00:00Z")
    assert [is_warning(line) for line in outside_lines(found.scalars())] == [False, False, True]


@pytest.mark.parametrize(("hours", "is_late"), [(1, False), (1.001, True)])
def test_rows_later_than_the_clock_and_an_hour_fail_above_the_limit(hours: float, is_late: bool) -> None:
    moment = (NOW + timedelta(hours=hours)).isoformat()
    found = counted(moment)
    found.check(WINDOW, table="orders", limit=0.01)
    assert ("rows_after_now" in found.scalars()) == is_late
    if is_late:
        with pytest.raises(DataError, match="2 of 102 rows") as caught:
            counted(moment, moment).check(WINDOW, table="orders", limit=0.01)
        assert caught.value.code == "data.future_rows"


def test_rows_that_lie_ahead_by_the_decision_lead_only_warn() -> None:
    moment = (NOW + timedelta(days=7)).isoformat()
    found = counted(moment, moment, lead=timedelta(days=7))
    found.check(WINDOW, table="orders", limit=0.01)
    assert found.scalars()["rows_after_now"] == 2
    with pytest.raises(DataError, match=r"by more than decision_lead \(6d\)") as caught:
        counted(moment, moment, lead=timedelta(days=6)).check(WINDOW, table="orders", limit=0.01)
    assert "as bookings do, set validate.future_rows: 1" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("factor", "hint"),
    [
        (1000, "milliseconds read as seconds?"),
        (1e-3, "seconds read as milliseconds?"),
        (1.1, "correct the times, data.source.window, or the time that the run is as of"),
    ],
)
def test_window_without_rows_says_what_was_read_and_the_unit_that_fits(factor: float, hint: str) -> None:
    with pytest.raises(DataError, match="none of the 100 rows of table 'orders'") as caught:
        counted(factor=factor).check(WINDOW, table="orders", limit=0.01)
    assert (caught.value.code, caught.value.hint) == ("data.empty", hint)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("1970-01-01T00:00:00Z", "30 of 600 rows are before the window: 1970-01-01T00:00:00Z"),
        ("2062-04-01T00:00:00Z", "[data.future_rows] 30 of 600 rows"),
    ],
)
def test_check_of_the_data_says_it_and_no_manifest_does(wrong: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = [wrong if number % 20 == 0 else (START + timedelta(hours=2.3 * number)).isoformat() for number in range(600)]
    rows = [f"{number},{at},{number % 7}.5,{str(number % 3 == 0).lower()}" for number, at in enumerate(times)]
    (tmp_path / "orders.csv").write_text("\n".join(["id,at,x,late", *rows]) + "\n")
    spec = resolve_uris(parse_spec(SPEC.encode()), {"TIMES_URI": tmp_path.as_uri()})
    seen = []
    monkeypatch.setattr("training.stages.ingest._log_rows", lambda manifest: seen.append(str(manifest.meta)))
    lines: list[str] = []
    check_data(spec, END, size_bytes=2**28, say=lines.append)
    assert any(words in line for line in lines), lines
    assert all("before" not in meta and "1970" not in meta for meta in seen)
