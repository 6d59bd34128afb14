"""Column statistics and drift, against numbers worked out by hand."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from training.data.tables import Column, TableContract, schema_of
from training.data.validation.drift import add_drift
from training.data.validation.snapshot_view import TableView, column_statistics, open_snapshot
from training.store import Manifest
from training.store.manifests import FileEntry

START = datetime(2026, 1, 1, tzinfo=UTC)
SPAN_US = (round(START.timestamp() * 1e6), round((START + timedelta(days=10)).timestamp() * 1e6))


def view(tmp_path: Path, columns: dict[str, pa.Array]) -> TableView:
    rows = len(next(iter(columns.values())))
    at = pa.array([START + timedelta(days=10) * (row / rows) for row in range(rows)], pa.timestamp("us", tz="UTC"))
    table = pa.table({"happened": at, **columns})
    (tmp_path / "t").mkdir()
    pq.write_table(table, tmp_path / "t/all.parquet")
    types = schema_of(table.schema, source="t")
    contract = TableContract(
        name="t", kind="parquet", uri="file:///t", columns={name: Column(type=kind) for name, kind in types.items()}, event_time="happened"
    )
    meta = {"tables": {"t": {"rows": rows, "schema": types, "parts": {"t/all.parquet": {"rows": rows, "partition": None}}}}}
    return open_snapshot(
        Manifest(kind="snapshot", files={"t/all.parquet": FileEntry(digest="a", size_bytes=1)}, meta=meta), tmp_path, [contract]
    )[0]


def test_statistics_keep_nan_and_infinity_out_of_the_numbers(tmp_path: Path) -> None:
    numbers = column_statistics(view(tmp_path, {"x": pa.array([1.0, 3.0, None, float("nan"), float("inf")])}))["x"]
    assert numbers == {"rows": 5, "nulls": 2, "infinite": 1, "minimum": 1.0, "maximum": 3.0, "mean": 2.0, "deviation": 1.0}


def test_a_shifted_newest_tenth_shows_in_mean_shift_and_index(tmp_path: Path) -> None:
    opened = view(tmp_path, {"x": pa.array([0.0, 1.0] * 45 + [4.5] * 10), "same": pa.array(list(range(10)) * 10)})
    statistics = column_statistics(opened)
    add_drift(opened, statistics, SPAN_US)
    assert statistics["x"]["mean_shift"] == pytest.approx((4.5 - 0.5) / 0.5)
    assert statistics["x"]["psi"] > 1
    assert statistics["same"]["psi"] == pytest.approx(0, abs=1e-9)
    assert statistics["same"]["mean_shift"] == pytest.approx(0)


def test_the_index_of_words_is_that_of_their_shares(tmp_path: Path) -> None:
    opened = view(tmp_path, {"word": pa.array((["a"] * 2 + ["b"]) * 30 + ["a"] * 5 + ["b"] * 5)})
    statistics = column_statistics(opened)
    add_drift(opened, statistics, SPAN_US)
    by_hand = (1 / 2 - 2 / 3) * math.log((1 / 2) / (2 / 3)) + (1 / 2 - 1 / 3) * math.log((1 / 2) / (1 / 3))
    assert statistics["word"]["psi"] == pytest.approx(by_hand, abs=1e-3)


def test_constants_and_the_event_time_have_no_drift(tmp_path: Path) -> None:
    opened = view(tmp_path, {"x": pa.array([7] * 20)})
    statistics = column_statistics(opened)
    add_drift(opened, statistics, SPAN_US)
    assert all("psi" not in numbers for numbers in statistics.values())


def test_number_columns_are_read_in_two_passes_whatever_their_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {f"c{number}": pa.array([float(row * number % 7) for row in range(100)]) for number in range(1, 6)}
    opened = view(tmp_path, columns)
    statistics = column_statistics(opened)
    queries: list[str] = []
    ask = TableView.rows
    monkeypatch.setattr(TableView, "rows", lambda self, query: queries.append(query) or ask(self, query))
    add_drift(opened, statistics, SPAN_US)
    assert all("psi" in statistics[name] for name in columns)
    assert len(queries) == 2


def test_nulls_are_in_no_bin_nan_has_its_own_and_infinity_is_in_the_last(tmp_path: Path) -> None:
    older = [1.0, 2.0, 3.0] * 29 + [None, float("nan"), float("inf")]
    newer = [1.0, 2.0, 3.0] * 2 + [None, float("nan"), float("nan"), float("-inf")]
    opened = view(tmp_path, {"x": pa.array(older + newer)})
    statistics = column_statistics(opened)
    add_drift(opened, statistics, SPAN_US)
    # Bins: NaN, up to 1 (with -inf), up to 2, up to 3, above (inf).
    shares = [([1, 29, 29, 29, 1], 89), ([2, 3, 2, 2, 0], 9)]
    p, q = ([max(count / total, 1e-4) for count in counts] for counts, total in shares)
    assert statistics["x"]["psi"] == pytest.approx(sum((b - a) * math.log(b / a) for a, b in zip(p, q, strict=True)))
    assert statistics["x"]["mean_shift"] == pytest.approx(0)


def test_a_column_without_newer_rows_has_no_drift(tmp_path: Path) -> None:
    opened = view(tmp_path, {"x": pa.array([float(row) for row in range(90)] + [None] * 10)})
    statistics = column_statistics(opened)
    add_drift(opened, statistics, SPAN_US)
    assert "psi" not in statistics["x"]
    assert "mean_shift" not in statistics["x"]
