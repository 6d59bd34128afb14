"""Columns of a row's history in a dataset: made by prepare, seen by the features, and the same bytes from any order of files."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from devstack.shop import write_day
from tests.golden.synthetic_flights import write_flights
from tests.unit.training.stages.test_prepare import Prepared, load, run
from training.data.join.engines import duckdb as duckdb_engine
from training.data.join.engines import duckdb_windows, scratch_frame
from training.sources.listing import missing_partitions
from training.spec import window
from training.sql import expressions

AS_OF = datetime(2013, 5, 1, 6, tzinfo=UTC)
WINDOWS = """  windows:
    last_delay: {kind: lag, column: arr_delay, by: [carrier], rows: 1}
    late_share: {kind: rolling, function: mean, column: arr_delay, by: [origin], time: 3d}
    departures: {kind: rolling, function: count, by: [origin], time: 6h}
    wind_mean: {kind: rolling, function: mean, table: weather, column: wind_speed, time: 12h}
    wind_day_before: {kind: lag, table: weather, column: wind_speed, time: 1d, tolerance: 1h}
    since_late: {kind: since_last, by: [tailnum], where: "arr_delay > 15", known_at: landed_at}
"""
FEATURES = "".join(
    f"    {name}: {{transform: number}}\n"
    for name in ("last_delay", "late_share", "departures", "wind_mean", "wind_day_before", "since_late")
)
CHANGES = {
    "  label: {column: arr_delay": WINDOWS + "  label: {column: arr_delay",
    "    carrier: {transform: category}\n": "    carrier: {transform: category}\n" + FEATURES,
}

SHOWN = {
    "window: 30d": "window: 4d\n    history: 3d",
    "  label: {column: clicked}": (
        "  windows:\n    shown: {kind: rolling, function: count, by: [category_id], time: 3d}\n  label: {column: clicked}"
    ),
}


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flights") / "source"
    write_flights(folder, date(2013, 3, 11), 52)
    return folder


@pytest.fixture(scope="module")
def prepared(flights: Path, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return run(tmp_path_factory.mktemp("windows"), load("flight_delay", {"FLIGHTS_URI": flights.as_uri()}, CHANGES), AS_OF)


def test_columns_stand_after_the_joined_ones_and_before_the_label(prepared: Prepared) -> None:
    names = list(prepared.frame.columns)
    assert names[-7:] == ["last_delay", "late_share", "departures", "wind_mean", "wind_day_before", "since_late", "label"]
    assert names.index("seats") < names.index("last_delay")
    transforms = json.loads(prepared.read("transforms.json"))
    assert "late_share" in json.dumps(transforms)


def test_columns_are_what_the_rows_known_at_each_decision_say(prepared: Prepared, flights: Path) -> None:
    frame = prepared.frame
    weather = pd.read_csv(flights / "weather.csv")
    weather["time"] = pd.to_datetime(weather["time_hour"], utc=True)
    checked = 0
    for number in range(0, len(frame), 97):
        row = frame.iloc[number]
        decided = row["scheduled_departure"] - timedelta(hours=2)
        past = frame[frame["landed_at"] <= decided]
        assert_same(row["last_delay"], newest_known(past[past["carrier"] == row["carrier"]]))
        recent = past[(past["origin"] == row["origin"]) & (past["scheduled_departure"] >= decided - timedelta(days=3))]
        assert_same(row["late_share"], recent["arr_delay"].mean())
        at = frame[(frame["origin"] == row["origin"]) & (frame["scheduled_departure"] <= decided)]
        assert row["departures"] == (at["scheduled_departure"] >= decided - timedelta(hours=6)).sum()
        late = past[(past["tailnum"] == row["tailnum"]) & (past["arr_delay"] > 15)]["scheduled_departure"]
        assert_same(row["since_late"], (decided - late.max()).total_seconds() if len(late) else np.nan)
        here = weather[weather["origin"] == row["origin"]].set_index("time")["wind_speed"]
        told = here[(here.index <= decided - timedelta(hours=1)) & (here.index >= decided - timedelta(hours=12))]
        assert_same(row["wind_mean"], told.mean())
        before = row["scheduled_departure"] - timedelta(days=1)
        same_hour = here[(here.index <= before) & (here.index >= before - timedelta(hours=1))]
        assert_same(row["wind_day_before"], same_hour.sort_index().iloc[-1] if len(same_hour) else np.nan)
        checked += 1
    assert checked > 20
    assert frame[["last_delay", "late_share", "wind_mean", "wind_day_before", "since_late"]].notna().mean().min() > 0.5


def newest_known(past: pd.DataFrame) -> Any:
    order = ["landed_at", "scheduled_departure", "carrier", "flight", "origin"]
    return past.sort_values(order)["arr_delay"].iloc[-1] if len(past) else np.nan


def assert_same(found: Any, expected: Any) -> None:
    assert found == pytest.approx(expected, rel=1e-12, nan_ok=True)


def test_missing_history_is_null_and_a_count_of_none_is_zero(prepared: Prepared) -> None:
    first = prepared.frame.iloc[0]
    assert first[["last_delay", "late_share", "since_late"]].isna().all()
    assert first["departures"] == 0


def test_blocks_threads_and_a_frame_on_disk_make_the_same_bytes(
    prepared: Prepared, flights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duckdb_windows, "BLOCK_ROWS", 50)
    monkeypatch.setattr(duckdb_windows, "BATCH_ROWS", 33)
    monkeypatch.setattr(scratch_frame, "MEMORY_BYTES", 0)
    monkeypatch.setattr(
        duckdb_engine, "hardened", lambda folders, memory_limit: expressions.hardened(folders, threads=1, memory_limit="64MB")
    )
    again = run(tmp_path, prepared.spec, AS_OF)
    assert again.outcome.digest == prepared.outcome.digest


def test_history_before_the_window_fills_its_first_rows_and_is_in_no_split(prepared: Prepared, flights: Path, tmp_path: Path) -> None:
    change = {**CHANGES, "    window: 60d\n": "    window: 30d\n    history: 30d\n"}
    shorter = run(tmp_path, load("flight_delay", {"FLIGHTS_URI": flights.as_uri()}, change), AS_OF)
    start = window(shorter.spec, AS_OF)[0]
    expected = prepared.frame[prepared.frame["scheduled_departure"] >= start].reset_index(drop=True)
    # Where the first row has a value too, whole numbers are integers.
    pd.testing.assert_frame_equal(shorter.frame, expected, check_dtype=False)
    assert len(prepared.frame) > len(shorter.frame) == shorter.outcome.scalars["rows"] > 0
    assert shorter.manifest.meta["bounds"]["train"][0] == start.isoformat()
    assert shorter.frame["late_share"].notna().all()


def test_days_of_the_history_are_read_and_none_of_them_is_waited_for(tmp_path: Path) -> None:
    last, as_of = date(2026, 1, 31), datetime(2026, 2, 1, 2, tzinfo=UTC)
    for back in (0, 1, 2, 3, 5):
        write_day(tmp_path / "shop", last - timedelta(days=back), searches=30)
    spec = load("search_ranking", {"SHOP_URI": (tmp_path / "shop").as_uri()}, SHOWN)
    assert missing_partitions(spec, as_of) == []
    prepared = run(tmp_path, spec, as_of)
    frame, days = prepared.frame, prepared.frame["shown_at"].dt.date
    assert sorted(set(days)) == [last - timedelta(days=back) for back in (3, 2, 1, 0)]
    # The day before the window is missing; of the one before that, the first rows see the last hours.
    first = frame[days == last - timedelta(days=3)]
    assert first["shown"].iloc[0] > 0


def test_a_day_of_the_window_is_waited_for_although_there_is_a_history(tmp_path: Path) -> None:
    last, as_of = date(2026, 1, 31), datetime(2026, 2, 1, 2, tzinfo=UTC)
    write_day(tmp_path / "shop", last, searches=3)
    spec = load("search_ranking", {"SHOP_URI": (tmp_path / "shop").as_uri()}, SHOWN)
    (missing,) = missing_partitions(spec, as_of)
    assert missing.names == [str(last - timedelta(days=back)) for back in (3, 2, 1)]
