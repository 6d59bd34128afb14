"""The largest table that is read: judged by footers and file sizes, before a row is decoded."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from training.data.snapshot.builder import SnapshotPlan, take_snapshot
from training.errors import DataError, SpecError
from training.runtime.available_memory import memory_limit_bytes
from training.sources import snapshot_files
from training.sources.listing import list_source
from training.sources.size_limits import DEFAULT_SHARE, TABLE_MEMORY, decoded_bytes, table_limit_bytes
from training.sources.table_contract import TableContract
from training.spec.sections.data import Column
from training.store import Store

START, END = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 3, tzinfo=UTC)
NUM_ROWS = 8_000_000


def write_bomb(path: Path) -> Path:
    """Write 8 million equal rows: some kilobytes on disk, 128 MB in memory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"id": pa.repeat(pa.scalar(7, pa.int64()), NUM_ROWS), "sold": pa.repeat(pa.scalar(START), NUM_ROWS)})
    pq.write_table(table.cast(pa.schema([("id", pa.int64()), ("sold", pa.timestamp("us", tz="UTC"))])), path)
    return path


def contract(folder: Path, *, kind: str = "parquet", partitioned: bool = False) -> TableContract:
    columns = {"id": Column(type="int64"), "sold": Column(type="timestamp")}
    return TableContract(
        name="t", kind=kind, uri=f"{folder.as_uri()}/t", columns=columns, key=("id",), event_time="sold", partitioned=partitioned
    )


def refusal(tmp_path: Path, table: TableContract, partition: str | None = None) -> DataError:
    listed = [{"uri": s.uri, "size_bytes": s.size_bytes, "version": s.version, "partition": partition} for s in list_source(table.uri)]
    plan = SnapshotPlan(contracts=[table], listing={"t": listed}, as_of=END, start=START, end=END, split={}, lookback={})
    (tmp_path / "scratch").mkdir()
    with pytest.raises(DataError) as caught:
        take_snapshot(Store(str(tmp_path / "store")), plan, tmp_path / "scratch", on_file=lambda _done, _total: None)
    assert caught.value.code == "source.too_large"
    return caught.value


@pytest.mark.parametrize("partitioned", [False, True])
def test_small_parquet_file_of_many_rows_is_refused_by_its_footer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitioned: bool
) -> None:
    path = write_bomb(tmp_path / "t/a.parquet")
    assert path.stat().st_size < 200_000
    monkeypatch.setenv(TABLE_MEMORY.name, "64MiB")
    monkeypatch.setattr(snapshot_files.pq.ParquetFile, "read", lambda *_args, **_named: pytest.fail("a row was read"))
    refused = refusal(tmp_path, contract(tmp_path, partitioned=partitioned), "2026-01-01" if partitioned else None)
    assert "8,000,000 rows, about 0.12 GiB in memory, limit 0.06 GiB" in refused.message
    assert TABLE_MEMORY.name in refused.hint


def test_partitions_that_are_small_one_by_one_are_refused_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        write_bomb(tmp_path / f"t/{name}.parquet")
    monkeypatch.setenv(TABLE_MEMORY.name, "200MiB")
    assert "table 't', 2 files: 16,000,000 rows" in refusal(tmp_path, contract(tmp_path, partitioned=True), "2026-01-01").message


def test_csv_file_is_refused_by_its_size_before_it_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t").write_bytes(b"id,sold\n" + b"1,2026-01-01T00:00:00Z\n" * 800_000)
    monkeypatch.setenv(TABLE_MEMORY.name, "16MiB")
    monkeypatch.setattr("training.sources.file_source.read_source", lambda *_args, **_named: pytest.fail("the file was copied"))
    refusal(tmp_path, contract(tmp_path, kind="csv"))


def test_footer_tells_the_size_that_reading_gives(tmp_path: Path) -> None:
    table = pa.table({"n": pa.array(range(1000), pa.int32()), "b": [True, False] * 500, "s": [f"text of row {n:10}" for n in range(1000)]})
    pq.write_table(table, tmp_path / "f.parquet")
    assert 0.8 * table.nbytes < estimate(tmp_path / "f.parquet") < 1.3 * table.nbytes


def estimate(path: Path, *, limit_bytes: int = 2**60) -> int:
    with pq.ParquetFile(path) as file:
        return decoded_bytes(file, file.schema_arrow.names, path=path, limit_bytes=limit_bytes)


@pytest.mark.parametrize("delta", [False, True], ids=["dictionary", "delta"])
def test_repeated_long_text_counts_once_for_each_row(tmp_path: Path, *, delta: bool) -> None:
    encoding = {"use_dictionary": False, "column_encoding": {"s": "DELTA_BYTE_ARRAY"}} if delta else {}
    table = pa.table({"s": ["x" * 10_000] * 3000 + [None] * 10})
    pq.write_table(table, tmp_path / "f.parquet", row_group_size=1000, **encoding)
    assert (tmp_path / "f.parquet").stat().st_size < 50_000
    assert 0.9 * table.nbytes < estimate(tmp_path / "f.parquet") < 1.1 * table.nbytes
    assert 2**20 < estimate(tmp_path / "f.parquet", limit_bytes=2**20)


def test_one_long_text_among_short_ones_does_not_count_for_every_row(tmp_path: Path) -> None:
    table = pa.table({"s": pa.array([*["yes", "no"] * 50_000, "x" * 50_000])})
    pq.write_table(table, tmp_path / "f.parquet")
    assert estimate(tmp_path / "f.parquet") < 20 * table.num_rows


@pytest.mark.parametrize("partitioned", [False, True])
def test_small_parquet_file_of_a_repeated_long_text_is_refused_before_it_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitioned: bool
) -> None:
    path = tmp_path / "t/a.parquet"
    path.parent.mkdir()
    codes = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), 1_000_000), ["x" * 50_000])
    sold = pa.repeat(pa.scalar(START, pa.timestamp("us", tz="UTC")), 1_000_000)
    pq.write_table(pa.table({"id": pa.repeat(7, 1_000_000), "sold": sold, "text": codes}), path)
    assert path.stat().st_size < 50_000
    monkeypatch.setenv(TABLE_MEMORY.name, "64MiB")
    monkeypatch.setattr(snapshot_files.pq.ParquetFile, "read", lambda *_args, **_named: pytest.fail("the file was decoded"))
    table = contract(tmp_path, partitioned=partitioned)
    table = replace(table, columns={**table.columns, "text": Column(type="string")})
    assert "1,000,000 rows" in refusal(tmp_path, table, "2026-01-01" if partitioned else None).message


def test_limit_is_a_quarter_of_the_memory_unless_it_is_set() -> None:
    assert table_limit_bytes({}) == int(DEFAULT_SHARE * memory_limit_bytes())
    assert table_limit_bytes({TABLE_MEMORY.name: "3GiB"}) == 3 * 2**30
    with pytest.raises(SpecError, match="is not a size") as caught:
        table_limit_bytes({TABLE_MEMORY.name: "lots"})
    assert caught.value.code == "resources.memory"
