"""Validation reads each column once, holds few at a time, and finds what it found when it held whole tables."""

from __future__ import annotations

import gc
import json
import weakref
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.training.data.validation.damaged_snapshots import DAMAGES, SUITE, TYPES, open_views, rules
from training.data.validation import snapshot_view
from training.data.validation.results import Findings
from training.data.validation.snapshot_checks import validate_snapshot
from training.data.validation.snapshot_view import ColumnSource, TableView

RECORDED = Path(__file__).with_name("recorded_findings.json")
"""Of commit 8920f5a, which read whole tables by DuckDB and pandas; but for one number (`damaged_values`, facts.y, psi): DuckDB took
NaN for a number there, because the statistics of Parquet files leave NaN out."""


@dataclass
class CountingSource:
    """Counts the reads of each column, and the columns that are in memory when another one is read."""

    source: ColumnSource
    reads: Counter[str] = field(default_factory=Counter)
    most_alive: int = 0
    _alive: list[weakref.ref[pa.ChunkedArray]] = field(default_factory=list)

    def read(self, column: str, kind: str) -> pa.ChunkedArray:
        gc.collect()
        self.reads[column] += 1
        values = self.source.read(column, kind)
        self._alive = [*(alive for alive in self._alive if alive() is not None), weakref.ref(values)]
        self.most_alive = max(self.most_alive, len(self._alive))
        return values

    def part_rows(self) -> list[int]:
        return self.source.part_rows()

    def size_bytes(self, column: str) -> int:
        return self.source.size_bytes(column)


def counted(folder: Path, damage: str, suite: dict[str, Any] = SUITE) -> tuple[list[CountingSource], Findings]:
    opened, suites = open_views(folder, damage)
    (suites / "damaged.json").write_text(json.dumps(suite))
    views: list[TableView] = [replace(view, source=CountingSource(view.source)) for view in opened]
    findings = validate_snapshot(views, rules(), None, on_table=lambda done, total: None, suites_path=suites)
    return [view.source for view in views if isinstance(view.source, CountingSource)], findings


def assert_recorded(findings: Findings, damage: str) -> None:
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))["sound" if damage == "encoded" else damage]
    found = findings.to_json()
    assert [list(check.values()) for check in found["checks"]] == recorded["checks"]
    assert found["statistics"] == recorded["statistics"]
    assert found["rows_per_day"] == recorded["rows_per_day"]


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_findings_are_those_of_whole_tables(tmp_path: Path, damage: str) -> None:
    assert_recorded(counted(tmp_path, damage)[1], damage)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["sound", "damaged_values"])
def test_each_column_is_read_once(tmp_path: Path, damage: str) -> None:
    sources, _ = counted(tmp_path, damage)
    assert [source.reads for source in sources] == [Counter(TYPES.keys())] * 2


@pytest.mark.slow
def test_columns_one_by_one_are_read_once_and_give_the_same_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_view, "GROUP_BYTES", 1)
    sources, findings = counted(tmp_path, "damaged_values")
    assert_recorded(findings, "damaged_values")
    assert [source.reads for source in sources] == [Counter(TYPES.keys())] * 2


@pytest.mark.slow
def test_large_columns_are_in_memory_one_at_a_time_besides_keys_and_event_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_view, "GROUP_BYTES", 1)
    alone = [
        expectation
        for expectation in SUITE["expectations"]
        if "row_condition" not in expectation["kwargs"] and not expectation["kwargs"].keys() & {"column_A", "column_list"}
    ]
    sources, findings = counted(tmp_path, "sound", {"name": "damaged", "expectations": alone})
    assert len([check for check in findings.checks if check.code == "expectation.failed"]) == 2 * len(alone)
    # orders: id, part, at; facts: id, at.
    assert [source.most_alive for source in sources] == [3 + 1, 2 + 1]
