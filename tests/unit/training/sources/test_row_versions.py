"""`newest_by`: of rows with the same key in several files the newest that was known counts, and the others are counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from training.data.snapshot.builder import SnapshotPlan, take_snapshot
from training.errors import DataError
from training.sources.interface import SourcePart
from training.sources.listing import list_source
from training.sources.row_versions import RowVersions
from training.sources.rows_outside import RowsOutside, outside_lines
from training.sources.table_contract import TableContract
from training.spec.sections.data import Column
from training.spec.sections.derived import SourceDerived
from training.store import Store

START, AS_OF = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 10, tzinfo=UTC)
COLUMNS = {name: Column(type=kind) for name, kind in {"id": "int64", "at": "timestamp", "x": "int64", "updated": "timestamp"}.items()}  # type: ignore[arg-type]
NULLABLE = {**COLUMNS, "id": Column(type="int64", nullable=True), "op": Column(type="string")}
CONTRACT = TableContract(
    name="orders",
    kind="csv",
    columns={**COLUMNS, "op": Column(type="string")},
    derived={"gone": SourceDerived(type="boolean", sql="op = 'D'")},
    key=("id",),
    event_time="at",
    newest_by="updated",
    deleted_by="gone",
)


def line(key: int, x: int, updated: str, op: str = "U", at: str = "02") -> str:
    return f"{key},2026-01-{at}T00:00:00Z,{x},2026-01-{updated}T00:00:00Z,{op}"


def taken(tmp_path: Path, files: list[list[str]], as_of: datetime = AS_OF, **changes: object) -> tuple[list[tuple[int, int]], RowsOutside]:
    """Return (id, x) of each row of the snapshot, sorted, and what is counted."""
    folder = tmp_path / "orders"
    folder.mkdir()
    for number, lines in enumerate(files):
        (folder / f"part-{number}.csv").write_text("\n".join(["id,at,x,updated,op", *lines]) + "\n")
    contract = replace(CONTRACT, uri=folder.as_uri(), **changes)  # type: ignore[arg-type]
    listing = {
        "orders": [
            {"uri": s.uri, "size_bytes": s.size_bytes, "version": s.version, "partition": None} for s in list_source(folder.as_uri())
        ]
    }
    store, outside, scratch = Store(str(tmp_path / "store")), RowsOutside(AS_OF), tmp_path / "scratch"
    scratch.mkdir()
    plan = SnapshotPlan(contracts=[contract], listing=listing, as_of=as_of, start=START, end=as_of, split={}, lookback={})  # type: ignore[arg-type]
    _, manifest = take_snapshot(store, plan, scratch, on_file=lambda _done, _total: None, outside=outside)
    paths = [store.manifests.fetch(manifest, tmp_path / "fetched") / name for name in manifest.files]
    rows = [row for path in paths for row in pq.read_table(path, columns=["id", "x"]).to_pylist()]
    return sorted((-1 if row["id"] is None else row["id"], row["x"]) for row in rows), outside


def test_newest_version_counts_whatever_the_order_of_files_and_deleted_rows_are_gone(tmp_path: Path) -> None:
    files = [
        [line(1, 11, "05"), line(2, 20, "02"), line(3, 30, "02")],
        [line(1, 10, "02"), line(2, 21, "03"), line(3, 30, "04", "D"), line(4, 40, "09")],
    ]
    rows, outside = taken(tmp_path, files)
    assert rows == [(1, 11), (2, 21), (4, 40)]
    assert outside.scalars() == {"rows_replaced": 3, "rows_deleted": 1}
    assert "1 rows are deleted (data.source.newest_by)" in list(outside_lines(outside.scalars()))


def test_run_sees_the_version_of_its_time_and_counts_later_ones(tmp_path: Path) -> None:
    files = [[line(1, 10, "03")], [line(1, 11, "06"), line(2, 20, "06")], [line(1, 12, "08", "D")]]
    rows, outside = taken(tmp_path, files, as_of=datetime(2026, 1, 5, tzinfo=UTC))
    assert rows == [(1, 10)]
    assert outside.scalars() == {"rows_updated_later": 3}


def test_file_that_is_exported_again_counts_once_and_rows_that_differ_at_one_time_stay_for_validation(tmp_path: Path) -> None:
    first = [line(1, 10, "03"), line(2, 20, "03")]
    rows, outside = taken(tmp_path, [first, [*first, line(2, 21, "03")]])
    assert rows == [(1, 10), (2, 20), (2, 21)]
    assert outside.scalars() == {"rows_repeated": 2}


def test_version_outside_of_the_window_replaces_one_in_it_and_a_deletion_wins_at_its_time(tmp_path: Path) -> None:
    moved = line(1, 11, "05", at="09").replace("2026-01-09", "2025-01-09")
    rows, outside = taken(tmp_path, [[line(1, 10, "03"), line(2, 20, "04"), line(2, 20, "04", "D")], [moved, line(3, 30, "03")]])
    assert rows == [(3, 30)]
    assert (outside.before.rows, outside.versions["rows_deleted"]) == (1, 2)


def test_rows_without_a_key_stay_for_validation(tmp_path: Path) -> None:
    keyless = [line(0, x, updated, op).replace("0,", ",", 1) for x, updated, op in ((1, "03", "U"), (1, "03", "U"), (2, "05", "D"))]
    rows, outside = taken(tmp_path, [[*keyless, line(1, 10, "03")], [line(1, 11, "05")]], columns=NULLABLE)
    assert rows == [(-1, 1), (-1, 1), (-1, 2), (1, 11)]
    assert outside.scalars() == {"rows_replaced": 1}


@pytest.mark.parametrize("change", [lambda t: t.take([1, 0, 2]), lambda t: t.slice(1), lambda t: t.take([0, 1, 1])])
def test_second_read_with_other_rows_or_another_order_is_refused(change: Callable[[pa.Table], pa.Table]) -> None:
    first = pa.table({"id": [1, 2, 3], "updated": pa.array([START] * 3, pa.timestamp("us", "UTC")), "x": [1, 2, 3]})
    part, versions = SourcePart("orders#1", 0, "17"), RowVersions(replace(CONTRACT, deleted_by=None), AS_OF)
    versions.add(part, first)
    versions.settle()
    assert versions.rows_of(part, first).to_pylist() == [0, 1, 2]
    with pytest.raises(DataError, match="orders#1 was read twice") as caught:
        versions.rows_of(part, change(first))
    assert caught.value.code == "source.changed"


@pytest.mark.parametrize("newest_by", [None, "updated"])
def test_daily_files_of_versions_are_read_and_not_kept_byte_for_byte(newest_by: str | None) -> None:
    contract = replace(CONTRACT, kind="parquet", derived={}, deleted_by=None, newest_by=newest_by, partitioned=True)
    assert contract.is_kept_as_is == (newest_by is None)
