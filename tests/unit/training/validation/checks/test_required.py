"""Checks that always run, on numbers of a table alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.training.validation.damaged_snapshots import DAMAGES, Columns, open_views, rules
from training.sources.table_contract import TableContract
from training.spec.sections.data import Column
from training.validation.checks.required import check_complete, check_freshness, check_partition_days, check_volume

AS_OF = datetime(2026, 2, 1, 2, tzinfo=UTC)
WINDOW = timedelta(days=30)
AS_OF_US = 1_769_911_200_000_000
CONTRACT = TableContract(
    name="orders",
    kind="csv",
    columns={name: Column(type="int64", nullable=name != "strict") for name in ("id", "at", "label", "strict", "free")},
    key=("id",),
    event_time="at",
)


def view(rows: int = 100, days: dict[str, int] | None = None) -> Any:
    parts = {f"orders/{day}": {"rows": count, "partition": day} for day, count in (days or {}).items()}
    contract = SimpleNamespace(
        columns=CONTRACT.columns, types=CONTRACT.types, key=CONTRACT.key, event_time="at", known_at=None, partitioned=bool(days)
    )
    return SimpleNamespace(name="orders", contract=contract, facts={"rows": rows, "parts": parts})


def earlier(days: int, hours: int = 0) -> Any:
    """Return the meta of a snapshot of a hundred rows."""
    start = AS_OF - timedelta(days=days, hours=hours)
    return {
        "as_of": AS_OF.isoformat(),
        "window": {"start": start.isoformat(), "end": AS_OF.isoformat()},
        "tables": {"orders": {"rows": 100}},
    }


@pytest.mark.parametrize(("rows", "passes"), [(80, True), (120, True), (79, False), (121, False), (0, False), (1000, False)])
def test_fewer_and_more_rows_than_before_are_held_to_the_same_limit(rows: int, *, passes: bool) -> None:
    previous = earlier(days=30)
    daily = view(days={"2026-01-01": 500, "2026-01-02": 100, "2026-01-03": rows})
    for found in (check_volume(view(rows), previous, 0.2, window=WINDOW), check_volume(daily, None, 0.2, window=WINDOW)):
        assert [(check.code, check.status == "passed") for check in found] == [("volume.change", passes)]
    assert check_volume(view(rows), previous, None, window=WINDOW) == []


@pytest.mark.parametrize(("days", "hours", "status"), [(9, 0, "warned"), (90, 0, "warned"), (30, 1, "failed"), (30, -1, "failed")])
def test_rows_of_windows_of_different_lengths_are_not_compared_whatever_the_clock_does(days: int, hours: int, status: str) -> None:
    (found,) = check_volume(view(1000), earlier(days, hours), 0.2, window=WINDOW)
    assert (found.code, found.status) == ("volume.change", status)
    assert (found.observed == "not compared") == (status == "warned")


def test_key_event_time_and_label_are_complete_although_they_are_declared_nullable() -> None:
    statistics: Any = {name: {"rows": 10, "nulls": 1} for name in CONTRACT.columns}
    found = check_complete(view(), statistics, label="label")
    assert {check.column: (check.code, check.status) for check in found} == {
        "id": ("data.nulls", "failed"),
        "at": ("data.nulls", "failed"),
        "label": ("label.nulls", "failed"),
        "strict": ("data.nulls", "failed"),
    }


def test_empty_text_is_no_label_and_stays_a_value_of_other_columns() -> None:
    texts = view()
    texts.contract.types = dict.fromkeys(CONTRACT.columns, "string")
    texts.rows = lambda query: [(3,)] if query.endswith("t.\"label\" = ''") else []
    statistics: Any = {name: {"rows": 10, "nulls": 0} for name in CONTRACT.columns}
    found = {check.column: (check.status, check.observed) for check in check_complete(texts, statistics, label="label")}
    assert found["label"] == ("failed", "3 of 10 rows (30.00%)")
    assert found["strict"] == ("passed", "0 of 10 rows")


@pytest.mark.parametrize(
    ("newest_us", "observed", "passes"),
    [
        (round((AS_OF - timedelta(hours=6)).timestamp() * 1e6), "6.0 h", True),
        (round((AS_OF - timedelta(hours=6)).timestamp() * 1e6) - 1, "6.0 h", False),
        (None, "no event time", False),
        # Years that Python does not have: 294246 and -290308.
        (2**63 - 1, f"{(AS_OF_US - 2**63 + 1) / 3.6e9:.1f} h", True),
        (-(2**63) + 1, f"{(AS_OF_US + 2**63 - 1) / 3.6e9:.1f} h", False),
    ],
)
def test_age_of_the_newest_row_is_held_to_its_limit_for_any_instant(newest_us: int | None, observed: str, *, passes: bool) -> None:
    timed = view()
    timed.sound_event_time, timed.rows = "at", lambda _query: [(newest_us,)]
    (found,) = check_freshness(timed, timedelta(hours=6), AS_OF)
    assert (found.code, found.status == "passed", found.allowed) == ("freshness.late", passes, "at most 6.0 h")
    assert found.observed == observed


def test_infinite_instants_are_outside_of_their_partition_and_missing_ones_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def infinite(day: int, columns: Columns) -> Columns:
        found = columns["at"].cast(pa.int64()).to_pylist()
        if day == 3:
            found[:3] = [2**63 - 1, -(2**63) + 1, None]
        return columns | {"at": pa.array(found, pa.int64()).cast(pa.timestamp("us", tz="UTC"))}

    monkeypatch.setitem(DAMAGES, "infinite", infinite)
    monkeypatch.setitem(DAMAGES, "utc", lambda _day, columns: columns)
    counts = {}
    for damage in ("infinite", "utc"):
        (tmp_path / damage).mkdir()
        views, _ = open_views(tmp_path / damage, damage)
        (check,) = check_partition_days(views[0], rules().zone)
        counts[damage] = int(check.observed.split()[0].replace(",", ""))
    assert counts["infinite"] == counts["utc"] + 2
