"""The expectations that `nightshift init` writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.training.starter.orders_bench import ROWS, csv_of, found


def test_limits_of_the_suite_hold_the_rows_that_they_were_made_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{**row, "year": 2016.5 + number % 7 / 6, "price": -(10**6) - number % 3} for number, row in enumerate(ROWS)]
    found(csv_of(rows, tmp_path / "orders.csv"), capsys, to=tmp_path / "to")
    suite = json.loads((tmp_path / "to/expectations/orders/rows.json").read_text(encoding="utf-8"))
    limits = {each["kwargs"]["column"]: each["kwargs"] for each in suite["expectations"]}
    assert (limits["year"]["min_value"], limits["year"]["max_value"]) == (2016, 2018)
    assert (limits["price"]["min_value"], limits["price"]["max_value"]) == (-1000003, -999999)
