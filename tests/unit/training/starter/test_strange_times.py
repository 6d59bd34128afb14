"""`nightshift init` names times that stand for a missing one or are later than now, and makes the window for the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.training.starter.orders_bench import ROWS, checked_with_data, csv_of, found, init, with_column


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("1970-01-01T00:00:00Z", "60 rows have a time at 1970-01-01, which often stands for a missing one"),
        ("2962-01-03T05:00:00Z", "60 rows have times later than now, 2962-01-03T05:00:00Z to 2962-01-03T05:00:00Z"),
    ],
)
def test_window_is_made_for_the_times_that_may_be_right(wrong: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = with_column("ordered_at", lambda number, row: wrong if number % 10 == 5 else row["ordered_at"])
    result = found(csv_of(rows, tmp_path / "orders.csv"), capsys, to=tmp_path / "wrong")
    right = found(csv_of(ROWS, tmp_path / "orders.csv"), capsys, to=tmp_path / "right")
    assert words in "\n".join(result["notes"])
    texts = [Path(each["written"]["yaml"]).read_text() for each in (result, right)]
    windows = [[line for line in text.splitlines() if line.startswith("    window:")] for text in texts]
    assert windows[0] == windows[1] != []
    assert result["night"] == right["night"]


def test_every_fifth_year_has_no_time_that_stands_for_a_missing_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = with_column("ordered_at", lambda number, _row: 1950 + number % 14 * 5)
    assert not [note for note in found(csv_of(rows, tmp_path / "orders.csv"), capsys, to=tmp_path)["notes"] if "1970" in note]


def test_table_of_the_future_is_refused_with_the_unit_that_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = with_column("ordered_at", lambda number, _row: f"9026-02-{number % 28 + 1:02d}T05:00:00Z")
    assert init(csv_of(rows, tmp_path / "orders.csv"), to=tmp_path) == 65
    assert "[data.future_rows]" in capsys.readouterr().err


def test_a_table_of_earlier_years_has_the_first_night_there_is_or_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = csv_of(
        with_column("ordered_at", lambda number, _row: f"{1965 + number % 4}-03-{number % 28 + 1:02d}T05:00:00Z"), tmp_path / "a.csv"
    )
    result = found(file, capsys, to=tmp_path / "to")
    assert result["night"] == "1971-01-02"
    assert checked_with_data(result, file, tmp_path / "to", monkeypatch) == 0
    old = csv_of(with_column("ordered_at", lambda number, _row: f"18{number % 40:02d}-03-01T05:00:00Z"), tmp_path / "b.csv")
    capsys.readouterr()
    assert init(old, to=tmp_path / "old") == 65
    assert (
        "b.csv is of 1839-03-01, and a run as of 1971-01-02, the first there is, has 36500 days (leave --time out"
        in capsys.readouterr().err
    )
