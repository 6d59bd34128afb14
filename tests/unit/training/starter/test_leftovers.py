"""`nightshift init` on the folder of a job that wrote several files: markers, checksums, empty files and header lines are no rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.training.starter.orders_bench import NUM_ROWS, ROWS, checked_with_data, csv_of, found, init


def test_folder_of_a_job_is_read_without_its_leftovers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "orders").mkdir()
    whole = csv_of(ROWS[::2], folder / "part-0.csv").read_text(encoding="utf-8")
    csv_of(ROWS[1::2], folder / "part-1.csv")
    (folder / "part-2.csv").write_text(whole.partition("\n")[0] + "\n", encoding="utf-8")
    for name in ("part-3.csv", "_SUCCESS", ".part-0.csv.crc", "part-0.csv.md5"):
        (folder / name).touch()
    result = found(folder, capsys, to=tmp_path / "to")
    assert (result["rows"], result["files"]) == (NUM_ROWS, 3)
    assert checked_with_data(result, folder, tmp_path / "to", monkeypatch) == 0
    assert "600 rows" in capsys.readouterr().out
    assert init(folder, "--force", to=tmp_path / "to") == 0
    assert "1 file of 0 bytes is passed over" in capsys.readouterr().out


def test_json_lines_with_a_byte_order_mark_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8-sig")
    result = found(file, capsys, to=tmp_path / "to")
    assert (result["rows"], result["names"]["order_id"]) == (NUM_ROWS, "order_id")
    assert checked_with_data(result, file, tmp_path / "to", monkeypatch) == 0
