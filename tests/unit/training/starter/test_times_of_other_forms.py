"""`nightshift init` of times that are numbers, in two columns or finer than microseconds, and of values in several spellings."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.training.starter.orders_bench import ROWS, START, checked_with_data, csv_of, found

MOMENTS = [START + timedelta(hours=2 * number, seconds=7) for number in range(len(ROWS))]


def rows_with(times: list[Any]) -> list[dict[str, Any]]:
    return [{**row, "ordered_at": time} for row, time in zip(ROWS, times, strict=True)]


@pytest.mark.parametrize(
    ("factor", "options", "sql"),
    [
        (1, (), 'to_timestamp("ordered_at")'),
        (1, ("--time-format", "%s"), 'to_timestamp("ordered_at")'),
        (1.0, (), 'to_timestamp("ordered_at")'),
        (10**3, (), "timezone('UTC', epoch_ms(CAST(\"ordered_at\" AS BIGINT)))"),
        (10**6, (), "timezone('UTC', make_timestamp(CAST(\"ordered_at\" AS BIGINT)))"),
        (10**9, (), "timezone('UTC', make_timestamp(CAST(\"ordered_at\" AS BIGINT) // 1000))"),
    ],
)
def test_numbers_since_1970_are_times(
    factor: float, options: tuple[str, ...], sql: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = csv_of(rows_with([int(moment.timestamp()) * factor for moment in MOMENTS]), tmp_path / "orders.csv")
    result = found(file, capsys, *options, to=tmp_path / "to")
    assert result["time"] == {"column": "ordered_at", "sql": sql}
    assert result["night"] == f"{MOMENTS[-1] + timedelta(days=1):%Y-%m-%d}"
    assert checked_with_data(result, file, tmp_path / "to", monkeypatch) == 0


@pytest.mark.parametrize(("day", "clock"), [("%Y-%m-%d", "%H:%M:%S"), ("%m/%d/%Y", "%H:%M")])
def test_day_and_time_of_day_in_two_columns_are_one_time(
    day: str, clock: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{**row, "ordered_at": f"{at:{day}}", "clock": f"{at:{clock}}"} for row, at in zip(ROWS, MOMENTS, strict=True)]
    file = csv_of(rows, tmp_path / "orders.csv")
    result = found(file, capsys, "--time", "ordered_at,clock", to=tmp_path / "to")
    assert "clock" not in result["features"]
    assert result["night"] == f"{MOMENTS[-1] + timedelta(days=1):%Y-%m-%d}"
    assert checked_with_data(result, file, tmp_path / "to", monkeypatch) == 0


@pytest.mark.parametrize(("fraction", "kind"), [("1234567Z", "csv"), ("123456789+00:00", "parquet"), ("1234567", "csv")])
def test_seconds_of_seven_and_nine_digits_are_read(
    fraction: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_with([f"{at:%Y-%m-%dT%H:%M:%S}.{fraction}" for at in MOMENTS])
    file = tmp_path / f"orders.{kind}"
    if kind == "csv":
        csv_of(rows, file)
    else:
        pq.write_table(pa.Table.from_pylist(rows), file)
    result = found(file, capsys, to=tmp_path / "to")
    assert 'CAST("ordered_at" AS TIMESTAMP' in result["time"]["sql"]
    assert checked_with_data(result, file, tmp_path / "to", monkeypatch) == 0


def test_spellings_of_one_value_are_named_with_the_expression_that_makes_one_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    labels, cities = ("Yes", "yes ", "Yes.", "no"), ("K\u00f6ln", "Ko\u0308ln", "Bonn")
    rows = [{**row, "outcome": labels[number % 4], "country": cities[number % 3]} for number, row in enumerate(ROWS)]
    file = csv_of(rows, tmp_path / "orders.csv")
    result = found(file, capsys, to=tmp_path / "to")
    notes = [note for note in result["notes"] if "several spellings" in note]
    assert notes[0].startswith("outcome has one value in several spellings, 'Yes', 'Yes.', 'yes ': use instead, in data.source.derive, ")
    assert notes[1].startswith("country has one value in several spellings")
    yaml = Path(result["written"]["yaml"])
    derived = notes[0].split("data.source.derive, ")[1]
    label = 'label: {column: outcome_plain, positive: "yes"}'
    text = yaml.read_text(encoding="utf-8").replace("  label: {column: outcome}", f"    derive: {{{derived}}}\n  {label}")
    text = text.replace("task: multiclass", "task: binary").replace("primary: log_loss", "primary: auc")
    yaml.write_text(text, encoding="utf-8")
    assert checked_with_data(result, file, tmp_path / "to", monkeypatch) == 0


@pytest.mark.parametrize(
    ("form", "is_time"), [("%Y/%m/%d", True), ("%b %d %Y", True), ("%d.%m.%Y %H:%M", True), ("1/%m", False), ("order of %Y/%m/%d", False)]
)
def test_a_text_that_is_a_time_is_no_feature_and_is_named_where_rows_have_no_time(
    form: str, is_time: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = csv_of(rows_with([(START + timedelta(days=number % 90)).strftime(form) for number in range(len(ROWS))]), tmp_path / "orders.csv")
    result = found(file, capsys, "--time", "", to=tmp_path / "to")
    assert any("--time COLUMN" in note and "ordered_at" in note for note in result["notes"]) == is_time
    assert ("ordered_at" in result["features"]) != is_time


def test_a_text_of_parquet_that_is_a_day_is_no_feature(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_with([f"{START + timedelta(days=number % 90):%Y-%m-%d}" for number in range(len(ROWS))])
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "orders.parquet")
    assert "ordered_at" not in found(tmp_path / "orders.parquet", capsys, "--time", "", to=tmp_path / "to")["features"]
