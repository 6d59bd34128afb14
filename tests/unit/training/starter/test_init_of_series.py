"""`nightshift init` for series: their keys, steps, and lags of the label; rows at any time are none."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.commands import command
from tests.unit.training.starter.orders_bench import NUM_ROWS, ROWS, START, checked_with_data, csv_of, found

main = command("init")


def test_series_has_lags_of_its_label_that_are_known_one_step_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"ordered_at": (START + timedelta(minutes=30 * step)).isoformat(), "shop": shop, "outcome": round(10 + step % 48 + place + 0.1, 1)}
        for step in range(1000)
        for place, shop in enumerate(("north", "south"))
    ]
    file = csv_of(rows, tmp_path / "demand.csv")
    result = found(file, capsys, to=tmp_path / "to")
    assert (result["label"]["task"], result["key"]) == ("regression", ["shop", "ordered_at"])
    yaml = Path(result["written"]["yaml"]).read_text(encoding="utf-8")
    assert "last_value: {kind: lag, column: outcome, by: [shop], rows: 1, available_after: 30m}" in yaml
    assert "day_before: {kind: lag, column: outcome, by: [shop], time: 1d, tolerance: 30m, available_after: 30m}" in yaml
    assert checked_with_data(result, file, tmp_path / "to", monkeypatch) == 0


def written(result: dict[str, Any]) -> str:
    return Path(result["written"]["yaml"]).read_text(encoding="utf-8")


def demand(*, minutes: int = 30, areas: Sequence[dict[str, Any]] = ({},), count: int = 1000) -> list[dict[str, Any]]:
    """Return half-hourly rows of some areas, numbered as pandas and R write them."""
    random = np.random.default_rng(1)
    rows = [
        {"ordered_at": (START + timedelta(minutes=minutes * step)).isoformat(), **area, "outcome": round(10 + step % 48 + place + noise, 2)}
        for step, noise in enumerate(random.normal(size=count))
        for place, area in enumerate(areas)
    ]
    return [{"rownames": number, **row} for number, row in enumerate(rows, start=1)]


@pytest.mark.parametrize(
    ("areas", "key"),
    [
        ([{}], ["ordered_at"]),
        ([{"shop": "north"}, {"shop": "south"}], ["shop", "ordered_at"]),
        ([{"shop": shop, "item": item} for shop in "ab" for item in (7, 8, 9)], ["shop", "item", "ordered_at"]),
    ],
    ids=["one series", "by shop", "by shop and item"],
)
def test_number_of_a_row_is_passed_over_as_the_key_of_a_series(
    areas: list[dict[str, Any]], key: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = csv_of(demand(areas=areas), tmp_path / "demand.csv")
    result = found(file, capsys, to=tmp_path / "to")
    assert result["key"] == key
    assert "rownames" not in result["features"]
    by = ", ".join(key[:-1])
    assert f"last_value: {{kind: lag, column: outcome, by: [{by}], rows: 1, available_after: 30m}}" in written(result)
    assert checked_with_data(result, file, tmp_path / "to", monkeypatch) == 0
    # An id that is named stays.
    assert found(file, capsys, "--force", "--key", "rownames", to=tmp_path / "to")["key"] == ["rownames"]


@pytest.mark.parametrize("share", [0.02, 0.6])
def test_series_may_have_gaps_and_a_few_rows_off_its_step(share: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(3)
    rows = [row for row in demand() if random.random() > 0.2]
    for row in rows:
        # Such a row puts two gaps off the step.
        if random.random() < share:
            row["ordered_at"] = (datetime.fromisoformat(row["ordered_at"]) + timedelta(seconds=int(random.integers(1, 1700)))).isoformat()
    result = found(csv_of(rows, tmp_path / "demand.csv"), capsys, to=tmp_path / "to")
    assert result["key"] == (["ordered_at"] if share < 0.1 else ["rownames"])


@pytest.mark.parametrize("months", [1, 3, 12])
def test_months_quarters_and_years_are_steps_of_a_series(
    months: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    instants = [f"{1990 + number * months // 12}-{number * months % 12 + 1:02d}-01" for number in range(30)]
    rows = [
        {"ordered_at": instant, "country": country, "outcome": round(place * 7 + number * 1.3 + number**2 % 11, 2)}
        for number, instant in enumerate(instants)
        for place, country in enumerate(("nl", "de", "fr"))
    ]
    file = csv_of([{"rownames": number, **row} for number, row in enumerate(rows)], tmp_path / "yearly.csv")
    result = found(file, capsys, "--timezone", "Europe/Berlin", to=tmp_path / "to")
    assert result["key"] == ["country", "ordered_at_at"]
    assert ("ordered_at_at: {transform: datetime, parts: [month, day_of_year]}" in written(result)) == (months < 12)
    assert ("transform: datetime" in written(result)) == (months < 12)
    days = {1: 28, 3: 90, 12: 365}[months]
    shortest = f"{days}d" if months == 12 else f"{days * 24 - (months > 1)}h" if months > 1 else "28d"
    assert f"last_value: {{kind: lag, column: outcome, by: [country], rows: 1, available_after: {shortest}}}" in written(result)
    assert checked_with_data(result, file, tmp_path / "to", monkeypatch) == 0


def test_rows_of_the_newest_year_are_test_rows_until_the_next_ones_come(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"rownames": 40 * wave + number, "ordered_at": f"{2018 + wave}-07-01", "x": number % 9 + 0.5, "outcome": number * 7 % 13 + 0.5}
        for wave in range(6)
        for number in range(40)
    ]
    file = csv_of(rows, tmp_path / "waves.csv")
    result = found(file, capsys, to=tmp_path / "to")
    assert result["night"] == "2023-07-02"
    assert "test: 366d" in written(result)
    for night in ("2023-07-02", "2024-06-30"):
        assert checked_with_data({**result, "night": night}, file, tmp_path / "to", monkeypatch) == 0


def test_parts_of_a_time_that_are_the_same_in_all_rows_are_no_features(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Two rows between 9 and 10 on the days of each June.
    moments = [
        START.replace(year=year, month=6, day=day, hour=9, minute=m) for year in range(2020, 2026) for day in range(1, 31) for m in (0, 30)
    ]
    rows = [{"ordered_at": at.isoformat(), "outcome": round(number % 11 + 0.5, 1)} for number, at in enumerate(moments)]
    text = written(found(csv_of(rows, tmp_path / "june.csv"), capsys, to=tmp_path / "to"))
    assert "ordered_at: {transform: datetime, parts: [day_of_week, day_of_year]}" in text


def test_orders_at_distinct_seconds_are_no_series_and_the_output_names_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = np.random.default_rng(2).choice(40 * 86_400, NUM_ROWS, replace=False)
    rows = [
        {**row, "ordered_at": (START + timedelta(seconds=int(second))).isoformat(), "outcome": round(9.5 + number % 37 * 1.25, 2)}
        for number, (row, second) in enumerate(zip(ROWS, sorted(seconds), strict=True))
    ]
    file = csv_of(rows, tmp_path / "orders.csv")
    result = found(file, capsys, to=tmp_path / "to")
    assert (result["label"]["task"], result["key"]) == ("regression", ["order_id"])
    assert "windows:" not in written(result)
    assert any("no regular step" in note and "data.windows" in note for note in result["notes"])
    assert checked_with_data(result, file, tmp_path / "to", monkeypatch) == 0


@pytest.mark.parametrize(("classes", "id_column"), [(("rain", "sun", "fog"), {}), ((0, 1), {"station_id": 7})])
def test_values_measured_with_a_class_are_named(
    classes: tuple[Any, ...], id_column: dict[str, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random = np.random.default_rng(4)
    rows = [
        {**row, **id_column, "humidity": number % 37, "outcome": classes[random.integers(len(classes))]}
        for number, row in enumerate(demand(count=600))
    ]
    result = found(csv_of(rows, tmp_path / "weather.csv"), capsys, to=tmp_path / "to")
    assert [note for note in result["notes"] if note.startswith("humidity must be known before the label of their row")]
    assert "windows:" not in written(result)


def test_label_far_from_all_others_and_values_measured_with_it_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{**row, "humidity": number % 37} for number, row in enumerate(demand(count=1200))]
    named = "humidity must be known before the label of their row"
    notes = found(csv_of(rows, tmp_path / "demand.csv"), capsys, to=tmp_path / "to")["notes"]
    assert [note for note in notes if note.startswith(named)]
    assert not [note for note in notes if "far from the median" in note]
    rows[700]["outcome"] = 5000.5
    notes = found(csv_of(rows, tmp_path / "wrong.csv"), capsys, to=tmp_path / "to")["notes"]
    (note,) = (note for note in notes if "far from the median" in note)
    assert note.startswith("5,000.5 in outcome is 1")
    assert 'data.source.where: {sql: "outcome <> 5000.5", because: …}' in note
