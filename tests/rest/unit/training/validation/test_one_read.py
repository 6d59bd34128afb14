"""Validation reads the rows in chunks, and finds what it found when it held whole tables."""

from __future__ import annotations

import json
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.training.validation.damaged_snapshots import DAMAGES, SUITE, TYPES, open_views, rules
from training.data.snapshot import parquet_parts
from training.validation import snapshot_view
from training.validation.all_checks import validate_snapshot
from training.validation.results import Findings
from training.validation.snapshot_view import ColumnSource, MergedParts, ParquetParts, TableView

RECORDED = Path(__file__).with_name("recorded_findings.json")
"""Of commit 8920f5a, which read whole tables by DuckDB and pandas; but for two numbers: `psi` of damaged_values' facts.y, where DuckDB
took NaN for a number, because the statistics of Parquet files leave NaN out; and `psi` of columns with more different numbers than a
histogram has bins (`x`, `big`), by at most 5 %: a decile is the upper end of its bin."""


@dataclass
class CountingSource:
    """Counts how often each column is read, and the rows of it that are in memory at a time."""

    source: ColumnSource
    reads: Counter[str] = field(default_factory=Counter)
    most_rows: int = 0
    _alive: list[weakref.ref[pa.Table]] = field(default_factory=list)

    def chunks(self, types: Mapping[str, str]) -> Iterator[pa.Table]:
        self.reads.update(types.keys())
        for chunk in self.source.chunks(types):
            self._alive = [*(alive for alive in self._alive if alive() is not None), weakref.ref(chunk)]
            rows = sum(alive.num_rows for alive in (reference() for reference in self._alive) if alive is not None)
            self.most_rows = max(self.most_rows, rows)
            yield chunk

    def relation(self) -> str:
        return self.source.relation()

    def paths(self) -> list[Path]:
        return self.source.paths()


def counted(folder: Path, damage: str, suite: dict[str, Any] = SUITE) -> tuple[list[CountingSource], Findings]:
    opened, suites = open_views(folder, damage)
    (suites / "damaged.json").write_text(json.dumps(suite))
    views: list[TableView] = [replace(view, source=CountingSource(view.source)) for view in opened]
    findings = validate_snapshot(views, rules(), None, on_table=lambda done, total: None, suites_path=suites)
    return [view.source for view in views if isinstance(view.source, CountingSource)], findings


def assert_recorded(findings: Findings, damage: str) -> None:
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))["sound" if damage == "encoded" else damage]
    found = findings.to_json()
    # No check of them asks a person.
    assert [list(check.values()) for check in found["checks"]] == [[*check, False] for check in recorded["checks"]]
    assert found["statistics"] == recorded["statistics"]
    assert found["rows_per_day"] == recorded["rows_per_day"]


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_findings_are_those_of_whole_tables(tmp_path: Path, damage: str) -> None:
    assert_recorded(counted(tmp_path, damage)[1], damage)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["sound", "damaged_values"])
def test_chunks_of_a_few_rows_and_one_column_give_the_same_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    for module in (parquet_parts, snapshot_view):
        monkeypatch.setattr(module, "CHUNK_ROWS", 37)
    monkeypatch.setattr(snapshot_view, "GROUP_BYTES", 1)
    sources, findings = counted(tmp_path, damage)
    assert_recorded(findings, damage)
    # One that is looked at, and one that is being read.
    assert [source.most_rows for source in sources] == [2 * 37] * 2


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_many_small_files_are_merged_with_the_same_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    monkeypatch.setattr(snapshot_view, "KEPT_FOOTERS", 5)
    sources, findings = counted(tmp_path, damage)
    assert [type(source.source) for source in sources] == [MergedParts, ParquetParts]
    assert_recorded(findings, damage)


@pytest.mark.slow
def test_the_columns_of_a_suite_that_is_met_are_read_once(tmp_path: Path) -> None:
    numbers = [check for check in SUITE["expectations"] if check["kwargs"].get("column") in ("id", "part", "y", "short", "flag", "word")]
    met = [check for check in numbers if "quantile" not in check["type"] and "type_" not in check["kwargs"]]
    sources, findings = counted(tmp_path, "sound", {"name": "damaged", "expectations": met})
    assert len(met) >= 6
    assert {check.status for check in findings.checks if check.code == "expectation.failed"} == {"passed"}
    read = {name for name, kind in TYPES.items() if kind not in ("string", "boolean")}
    # The event time says of each number whether it is an older one; the order of the keys, and of the ids that the suite wants unique,
    # shows that they are unique, in a pass that ends where they fall; DuckDB counts texts and truth values.
    assert [source.reads for source in sources] == [Counter(read) + Counter(["at", "id", *key]) for key in (["id", "part"], ["id"])]
