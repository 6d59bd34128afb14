"""`nightshift init` names columns that are known only with the label: those that give it away, and later times."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from tests.unit.training.starter.orders_bench import START, checked_with_data, csv_of, found, with_column


def test_column_that_gives_the_label_away_is_named_and_declared_as_known_after(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = with_column("refund", lambda number, row: 3 if row["outcome"] == "cancelled" else None)
    rows = [{**row, "status": "C" if row["outcome"] == "cancelled" else "K", "fee": 0.1 + (row["outcome"] == "cancelled")} for row in rows]
    file = csv_of(rows, tmp_path / "orders.csv")
    result = found(file, capsys, to=tmp_path / "to")
    assert set(result["suspected"]) == {"refund", "status", "fee"}
    assert not result["suspected"].keys() & set(result["features"])
    yaml = Path(result["written"]["yaml"]).read_text(encoding="utf-8")
    assert "      status: {type: string, known: after}   # like the label" in yaml
    assert checked_with_data(result, file, tmp_path / "to", monkeypatch) == 0


def test_nearly_random_columns_are_not_suspected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(1)
    rows = with_column("noise", lambda number, _row: random.normal())
    assert found(csv_of(rows, tmp_path / "orders.csv"), capsys, to=tmp_path / "to")["suspected"] == {}


def test_column_of_later_times_is_named_as_a_candidate_for_known_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = with_column(
        "returned_at", lambda number, _row: f"{START + timedelta(hours=2 * number + 72):%Y-%m-%dT%H:%M:%SZ}" if number % 3 else None
    )
    result = found(csv_of(rows, tmp_path / "orders.csv"), capsys, to=tmp_path / "to")
    assert [note for note in result["notes"] if "known_at" in note] == [
        "returned_at is never before ordered_at: if the label is known only then, set data.label.known_at: returned_at and declare it "
        "with known: after"
    ]


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_day_that_is_named_for_known_at_is_read_as_the_note_says(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = with_column("returned", lambda number, _row: f"{START + timedelta(hours=2 * number + 72):%Y-%m-%d}" if number % 3 else None)
    file = csv_of(rows, tmp_path / f"orders.{form}")
    if form == "jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    result = found(file, capsys, to=tmp_path / "to")
    (note,) = [note for note in result["notes"] if "known_at" in note]
    yaml = Path(result["written"]["yaml"])
    text = yaml.read_text(encoding="utf-8").replace("label: {", "label: {known_at: returned, ")
    assert "returned: {type: date, " in text
    text = text.replace("returned: {type: date, ", f"returned: {{{note.split('declare it with ')[1]}, ")
    yaml.write_text(text, encoding="utf-8")
    assert checked_with_data(result, file, tmp_path / "to", monkeypatch) == 0
