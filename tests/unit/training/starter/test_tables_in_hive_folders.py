"""`nightshift init` for files in folders that name times and values: what it writes passes `check --data`."""

from __future__ import annotations

import csv
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.commands import command

NUM_ROWS = 900
START = datetime(2026, 8, 26, tzinfo=UTC)


def write(folder: Path, form: str, start: datetime = START) -> None:
    """Write 60 days of rows as `folder/FORM/part-0.csv`, the country in the path alone."""
    files: dict[Path, list[dict[str, Any]]] = {}
    for number in range(NUM_ROWS):
        at = start + timedelta(hours=1.6 * number)
        country = ("DE", "FR", "__HIVE_DEFAULT_PARTITION__")[number % 3]
        row = {"id": 5000 + number, "at": at.isoformat(), "x": number % 7 + 0.5, "late": ("no", "yes")[number * 7919 % 11 % 2]}
        files.setdefault(folder / at.strftime(form).format(country=country) / "part-0.csv", []).append(row)
    for path, rows in files.items():
        path.parent.mkdir(parents=True)
        with path.open("w", newline="", encoding="utf-8") as out:
            table = csv.DictWriter(out, rows[0], lineterminator="\n")
            table.writeheader()
            table.writerows(rows)


@pytest.mark.parametrize(
    ("form", "partition", "of_path"),
    [
        ("year=%Y/month=%-m/day=%-d", "year=%Y/month=%-m/day=%-d", []),
        ("country={country}/dt=%Y-%m-%d", "country={country}/dt={date}", ["country"]),
        ("country={country}", "", ["country"]),
    ],
)
def test_times_and_values_of_folders_are_found_and_read(
    form: str, partition: str, of_path: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "late", form)
    assert command("init")([str(tmp_path / "late"), "--label", "late", "--time", "at", "--json", "--to", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["partition"], found["of_path"], found["rows"]) == (partition, of_path, NUM_ROWS)
    text = Path(found["written"]["yaml"]).read_text()
    assert ("country: {type: string, generated: partition_value, nullable: true}" in text) == bool(of_path)
    monkeypatch.setenv("LATE_URI", tmp_path.as_uri())
    monkeypatch.setenv("NIGHTSHIFT_EXPECTATIONS", str(tmp_path / "expectations"))
    assert command("check")(["--data", "--as-of", found["night"], found["written"]["yaml"]]) == 0, capsys.readouterr().out
    assert f"ingest: {NUM_ROWS} rows" in capsys.readouterr().out


def test_placeholder_for_padded_numbers_is_refused_where_some_have_no_zeros(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "late", "year=%Y/month=%-m/day=%-d")
    assert command("init")([str(tmp_path / "late/year=%Y/month=%m/day=%d"), "--label", "late", "--to", str(tmp_path)]) == 65
    error = capsys.readouterr().err
    assert "[partition.padding]" in error
    assert "write year=%Y/month=%-m/day=%-d" in error


def test_partitions_before_the_first_night_there_is_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "late", "dt=%Y-%m-%d", START.replace(year=1965))
    assert command("init")([str(tmp_path / "late"), "--label", "late", "--time", "at", "--to", str(tmp_path)]) == 65
    assert "is before 1971-01-02, and no run is as of an earlier day" in capsys.readouterr().err
