"""What `init` says of numbers that stand for missing ones, and of classes that a part of the split lacks."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.training.starter.orders_bench import NUM_ROWS, ROWS, checked_with_data, csv_of, found, with_column
from training.contracts import ExitCode


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_number_that_may_stand_for_a_missing_one_is_named(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = with_column("items", lambda number, row: -999 if number % 50 == 0 else row["items"])
    rows = [{**row, "value": 999.0 if number == 7 else row["value"]} for number, row in enumerate(rows)]
    file = csv_of(rows, tmp_path / "orders.csv")
    if form == "jsonl":
        file = tmp_path / "orders.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    notes = [note for note in found(file, capsys, to=tmp_path / "to")["notes"] if "may stand for" in note]
    remedy = (
        'missing: ["-999"], nullable: true in its column' if form == "csv" else "a column with nullif(items, -999) in data.source.derive"
    )
    assert notes == [f"-999 in items (12 rows) may stand for a missing value and is read as a number; if so, {remedy}"]


def test_infinite_numbers_are_named_with_the_code_of_their_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = with_column("value", lambda number, row: "1e400" if number % 50 == 0 else row["value"])
    file = csv_of(rows, tmp_path / "orders.csv")
    result = found(file, capsys, to=tmp_path / "to")
    (note,) = [note for note in result["notes"] if "infinite" in note]
    assert note.startswith("[data.nonfinite] value is infinite in 12 rows, which validate refuses: ")
    assert checked_with_data(result, file, tmp_path / "to", monkeypatch) == ExitCode.BAD_DATA
    assert re.search(r"\[data.nonfinite\] \w+\.value: no infinite numbers", capsys.readouterr().out)
    yaml = next((tmp_path / "to").rglob("*.yaml"))
    column = next(line for line in yaml.read_text(encoding="utf-8").splitlines() if line.strip().startswith("value:"))
    assert column.rstrip().endswith("}"), column
    yaml.write_text(
        yaml.read_text(encoding="utf-8").replace(column, column.rstrip()[:-1] + ', missing: ["1e400"], nullable: true}'), encoding="utf-8"
    )
    assert checked_with_data(result, file, tmp_path / "to", monkeypatch) == 0


def test_infinite_numbers_of_parquet_have_a_remedy_that_passes_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, file = with_column("value", lambda number, row: math.inf if number % 50 == 0 else row["value"]), tmp_path / "orders.parquet"
    pq.write_table(pa.Table.from_pylist(rows), file)
    result = found(file, capsys, to=tmp_path / "to")
    (note,) = [note for note in result["notes"] if "infinite" in note]
    (rule,) = re.findall(r"data\.source\.(where: \{.*\}) leaves", note)
    assert checked_with_data(result, file, tmp_path / "to", monkeypatch) == ExitCode.BAD_DATA
    yaml = next((tmp_path / "to").rglob("*.yaml"))
    text = yaml.read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if line.strip().startswith("event_time:"))
    indent = line[: len(line) - len(line.lstrip())]
    yaml.write_text(text.replace(line, f"{line}\n{indent}{rule.replace('…', 'sensor')}"), encoding="utf-8")
    assert checked_with_data(result, file, tmp_path / "to", monkeypatch) == 0


def single_class(first: int) -> list[dict[str, Any]]:
    """Return rows of which those from the first on have one class."""
    return [{**row, "outcome": "kept" if number >= first else row["outcome"]} for number, row in enumerate(ROWS)]


def test_newest_rows_of_one_class_are_no_test_split(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = csv_of(single_class(NUM_ROWS * 3 // 4), tmp_path / "orders.csv")
    result = found(file, capsys, to=tmp_path / "to")
    assert result["split"].startswith("{by: stratified")
    assert "all test rows of a split by time have outcome = 'kept': rows are divided at random by class" in result["notes"]
    assert checked_with_data(result, file, tmp_path / "to", monkeypatch) == 0
    capsys.readouterr()
    fixed = found(file, capsys, "--split", "time", "--force", to=tmp_path / "to")
    (note,) = [note for note in fixed["notes"] if "[label.missing_in_split]" in note]
    assert "outcome = 'kept', which prepare refuses" in note
    assert checked_with_data(fixed, file, tmp_path / "to", monkeypatch) == ExitCode.BAD_DATA


def test_a_class_of_few_rows_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{**row, "outcome": "cancelled" if number in (3, 99, 200) else "kept"} for number, row in enumerate(ROWS)]
    result = found(csv_of(rows, tmp_path / "orders.csv"), capsys, to=tmp_path / "to")
    few = "3 rows with outcome = 'cancelled' may leave a part of the split without one"
    assert f"[label.missing_in_split] {few}, which prepare refuses: bring more rows" in result["notes"]
