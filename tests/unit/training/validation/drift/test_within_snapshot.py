"""Column statistics and drift, against numbers worked out by hand."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from training.sources.arrow_schema import schema_of
from training.sources.table_contract import TableContract
from training.spec.sections.data import Column
from training.store import Manifest
from training.store.manifests import FileEntry
from training.validation.columns import statistics as column_statistics
from training.validation.results import ColumnStatistics
from training.validation.snapshot_view import TableView, open_snapshot

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


def profile(opened: TableView, span_us: tuple[int, int]) -> dict[str, ColumnStatistics]:
    return {name: found.statistics for name, found in column_statistics.profile(opened, span_us).items()}


def test_statistics_keep_nan_and_infinity_out_of_the_numbers(tmp_path: Path) -> None:
    numbers = profile(view(tmp_path, {"x": pa.array([1.0, 3.0, None, float("nan"), float("inf")])}), SPAN_US)["x"]
    expected = {"rows": 5, "nulls": 2, "infinite": 1, "minimum": 1.0, "maximum": 3.0, "mean": 2.0, "deviation": 1.0}
    assert {name: numbers[name] for name in expected} == expected


def test_the_deviation_of_large_numbers_close_to_each_other_is_exact(tmp_path: Path) -> None:
    numbers = profile(view(tmp_path, {"x": pa.array([2**60, 2**60 + 1024] * 50)}), SPAN_US)["x"]
    assert (numbers["mean"], numbers["deviation"]) == (2.0**60 + 512, 512.0)
    assert (numbers["minimum"], numbers["maximum"]) == (2**60, 2**60 + 1024)


def test_a_shifted_newest_tenth_shows_in_mean_shift_and_index(tmp_path: Path) -> None:
    opened = view(tmp_path, {"x": pa.array([0.0, 1.0] * 45 + [4.5] * 10), "same": pa.array(list(range(10)) * 10)})
    statistics = profile(opened, SPAN_US)
    assert statistics["x"]["mean_shift"] == pytest.approx((4.5 - 0.5) / 0.5)
    assert statistics["x"]["psi"] > 1
    assert statistics["same"]["psi"] == pytest.approx(0, abs=1e-9)
    assert statistics["same"]["mean_shift"] == pytest.approx(0)


def test_the_index_of_words_is_that_of_their_shares(tmp_path: Path) -> None:
    opened = view(tmp_path, {"word": pa.array((["a"] * 2 + ["b"]) * 30 + ["a"] * 5 + ["b"] * 5)})
    statistics = profile(opened, SPAN_US)
    by_hand = (1 / 2 - 2 / 3) * math.log((1 / 2) / (2 / 3)) + (1 / 2 - 1 / 3) * math.log((1 / 2) / (1 / 3))
    assert statistics["word"]["psi"] == pytest.approx(by_hand, abs=1e-3)


def test_constants_and_the_event_time_have_no_drift(tmp_path: Path) -> None:
    opened = view(tmp_path, {"x": pa.array([7] * 20)})
    statistics = profile(opened, SPAN_US)
    assert all("psi" not in numbers for numbers in statistics.values())


def test_nulls_are_in_no_bin_nan_has_its_own_and_infinity_is_in_the_last(tmp_path: Path) -> None:
    older = [1.0, 2.0, 3.0] * 29 + [None, float("nan"), float("inf")]
    newer = [1.0, 2.0, 3.0] * 2 + [None, float("nan"), float("nan"), float("-inf")]
    opened = view(tmp_path, {"x": pa.array(older + newer)})
    statistics = profile(opened, SPAN_US)
    # Bins: NaN, up to 1 (with -inf), up to 2, up to 3, above (inf).
    shares = [([1, 29, 29, 29, 1], 89), ([2, 3, 2, 2, 0], 9)]
    p, q = ([max(count / total, 1e-4) for count in counts] for counts, total in shares)
    assert statistics["x"]["psi"] == pytest.approx(sum((b - a) * math.log(b / a) for a, b in zip(p, q, strict=True)))
    assert statistics["x"]["mean_shift"] == pytest.approx(0)


def test_a_column_without_newer_rows_has_no_drift(tmp_path: Path) -> None:
    opened = view(tmp_path, {"x": pa.array([float(row) for row in range(90)] + [None] * 10)})
    statistics = profile(opened, SPAN_US)
    assert "psi" not in statistics["x"]
    assert "mean_shift" not in statistics["x"]


def test_nan_of_a_narrow_column_has_its_own_bin(tmp_path: Path) -> None:
    # Statistics of Parquet leave NaN out; a reader that trusts them takes every row for a number.
    values = pa.array([1.0, 2.0] * 40 + [float("nan")] * 10 + [1.0, float("nan")] * 5, pa.float32())
    shares = [([10, 40, 40], 90), ([5, 5, 0], 10)]
    p, q = ([max(count / total, 1e-4) for count in counts] for counts, total in shares)
    found = profile(view(tmp_path, {"x": values}), SPAN_US)["x"]["psi"]
    assert found == pytest.approx(sum((b - a) * math.log(b / a) for a, b in zip(p, q, strict=True)))


@pytest.mark.parametrize(
    ("instants", "ends"),
    [
        ([2**63 - 1, 0], ("1970-01-01 00:00:00+00", "9223372036854775807 microseconds since 1970")),
        ([-(2**63) + 1, 0], ("-9223372036854775807 microseconds since 1970", "1970-01-01 00:00:00+00")),
        ([10**18, 0], ("1970-01-01 00:00:00+00", "33658-09-27 01:46:40+00")),
    ],
)
def test_bounds_of_any_instant_have_a_text(tmp_path: Path, instants: list[int], ends: tuple[str, str]) -> None:
    found = profile(view(tmp_path, {"seen": pa.array(instants, pa.int64()).cast(pa.timestamp("us", tz="UTC"))}), SPAN_US)["seen"]
    assert (found["minimum"], found["maximum"]) == ends
