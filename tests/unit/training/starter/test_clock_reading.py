"""`nightshift init` of the times of a clock: both hours that it shows twice, and the one that it never shows, stay a series."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.commands import command
from tests.unit.training.starter.orders_bench import checked_with_data, csv_of, found

main = command("init")


def demand(areas: str, *, start: str = "2025-10-05", end: str = "2025-11-05", drop: str = "never") -> list[dict[str, Any]]:
    """Return half-hourly rows by the clock of Berlin."""
    at = pd.date_range(start, end, freq="30min", tz="Europe/Berlin", inclusive="left")
    return [
        {"ordered_at": f"{moment:%Y-%m-%d %H:%M}", "area": area, "outcome": 100 + 7 * (number % 48) + number % 5}
        for number, moment in enumerate(at)
        for area in areas
        if f"{moment:%z}" != drop or f"{moment:%d %H}" != "26 02"
    ]


@pytest.mark.parametrize(("areas", "keys"), [("n", "twice: in_order"), ("ns", "twice: in_order, by: [area]")])
def test_series_by_the_clock_keeps_its_lags_across_the_change(
    areas: str, keys: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = csv_of(sorted(demand(areas), key=lambda row: str(row["area"])), tmp_path / "demand.csv")
    result = found(file, capsys, "--timezone", "Europe/Berlin", to=tmp_path / "to")
    yaml = Path(result["written"]["yaml"]).read_text(encoding="utf-8")
    assert f'ordered_at_at: {{type: timestamp, local: ordered_at, zone: "Europe/Berlin", {keys}}}\n' in yaml
    assert {"last_value", "day_before", "week_before"} <= set(result["features"])
    assert result["key"] == [*(["area"] if len(areas) > 1 else []), "ordered_at_at"]
    assert any("times are shown twice, and rows are in order" in note for note in result["notes"])
    assert checked_with_data(result, file, tmp_path / "to", monkeypatch) == 0


def test_hour_that_the_file_has_once_is_read_as_the_first_and_a_time_that_is_never_shown_is_moved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = demand("n", drop="+0100")
    file = csv_of(rows, tmp_path / "demand.csv")
    result = found(file, capsys, "--timezone", "Europe/Berlin", to=tmp_path / "to")
    assert "twice: first}" in Path(result["written"]["yaml"]).read_text(encoding="utf-8")
    assert checked_with_data(result, file, tmp_path / "to", monkeypatch) == 0
    spring = [{**row, "ordered_at": row["ordered_at"].replace("2025-10-26 01", "2025-03-30 02")} for row in rows]
    spring = [row for row in spring if row["ordered_at"] < "2025-10-26 02"]
    result = found(csv_of(spring, tmp_path / "demand.csv"), capsys, "--timezone", "Europe/Berlin", "--force", to=tmp_path / "to")
    assert "missing: shift}" in Path(result["written"]["yaml"]).read_text(encoding="utf-8")
    assert any("2 times are never shown by the clock" in note for note in result["notes"])


def test_next_change_of_the_clock_is_named_where_rows_would_be_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = csv_of(demand("n", start="2025-06-01", end="2025-07-01"), tmp_path / "demand.csv")
    result = found(file, capsys, "--timezone", "Europe/Berlin", to=tmp_path / "to")
    year = datetime.now(UTC).year
    (note,) = (note for note in result["notes"] if "rows of that hour are refused" in note)
    assert f"at {year}-10-" in note or f"at {year + 1}-10-" in note
    assert not [note for note in found(file, capsys, "--force", to=tmp_path / "to")["notes"] if "rows of that hour" in note]
