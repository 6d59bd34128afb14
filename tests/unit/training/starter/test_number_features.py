"""`nightshift init` writes a transform that keeps the digits of numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.training.starter.orders_bench import checked_with_data, csv_of, found, with_column


def test_numbers_that_cells_of_32_bits_would_round_have_their_mean_subtracted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = with_column("session", lambda number, _row: "" if number % 50 == 0 else 1_770_000_000 + number % 64)
    file = csv_of(rows, tmp_path / "orders.csv")
    result = found(file, capsys, to=tmp_path / "to")
    yaml = Path(result["written"]["yaml"]).read_text(encoding="utf-8")
    assert "    session: {transform: standard, fill: keep}\n" in yaml
    assert "    items: {transform: number}\n" in yaml
    assert checked_with_data(result, file, tmp_path / "to", monkeypatch) == 0
