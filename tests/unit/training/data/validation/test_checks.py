"""Checks that always run, on numbers of a table alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from training.data.validation.checks import check_complete, check_volume
from training.sources.table_contract import Column, TableContract

CONTRACT = TableContract(
    name="orders",
    kind="csv",
    columns={name: Column(type="int64", nullable=name != "strict") for name in ("id", "at", "label", "strict", "free")},
    key=("id",),
    event_time="at",
)


def view(rows: int = 100, days: dict[str, int] | None = None) -> Any:
    parts = {f"orders/{day}": {"rows": count, "partition": day} for day, count in (days or {}).items()}
    contract = SimpleNamespace(columns=CONTRACT.columns, key=CONTRACT.key, event_time="at", known_at=None, partitioned=bool(days))
    return SimpleNamespace(name="orders", contract=contract, facts={"rows": rows, "parts": parts})


@pytest.mark.parametrize(("rows", "passes"), [(80, True), (120, True), (79, False), (121, False), (0, False), (1000, False)])
def test_fewer_and_more_rows_than_before_are_held_to_the_same_limit(rows: int, *, passes: bool) -> None:
    previous: Any = {"as_of": "2026-01-01", "tables": {"orders": {"rows": 100}}}
    daily = view(days={"2026-01-01": 500, "2026-01-02": 100, "2026-01-03": rows})
    for found in (check_volume(view(rows), previous, 0.2), check_volume(daily, None, 0.2)):
        assert [(check.code, check.status == "passed") for check in found] == [("volume.change", passes)]
    assert check_volume(view(rows), previous, None) == []


def test_key_event_time_and_label_are_complete_although_they_are_declared_nullable() -> None:
    statistics: Any = {name: {"rows": 10, "nulls": 1} for name in CONTRACT.columns}
    found = check_complete(view(), statistics, label="label")
    assert {check.column: (check.code, check.status) for check in found} == {
        "id": ("data.nulls", "failed"),
        "at": ("data.nulls", "failed"),
        "label": ("label.nulls", "failed"),
        "strict": ("data.nulls", "failed"),
    }
