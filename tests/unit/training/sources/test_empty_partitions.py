"""One of several files may have no rows, in every format; a file that is the whole table may not."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from training.errors import DataError
from training.sources.interface import SourcePart
from training.sources.listing import list_source
from training.sources.registry import source_of
from training.sources.snapshot_files import read_rows
from training.sources.table_contract import TableContract
from training.spec.sections.data import Column
from training.sql.arrow_types import ARROW_TYPES

COLUMNS = {"id": Column(type="int64"), "sold": Column(type="timestamp")}
SCHEMA = pa.schema([(name, ARROW_TYPES[column.type]) for name, column in COLUMNS.items()])
CONTRACT = TableContract(name="orders", kind="csv", columns=COLUMNS, key=("id",), event_time="sold", partition="dt={date}/hour={hour}")
LIMIT = 2**20


def rows(folder: Path, contract: TableContract, name: str, content: bytes, *, is_whole: bool = False) -> pa.Table:
    (folder / name).write_bytes(content)
    (found,) = list_source((folder / name).as_uri())
    part = SourcePart(found.uri, found.size_bytes, found.version, None)
    there = replace(contract, uri=found.uri if is_whole else folder.as_uri())
    content_of = source_of(there).read(part, folder / "copied", limit_bytes=LIMIT)
    return read_rows(contract, content_of, source=found.uri, limit_bytes=LIMIT)


@pytest.mark.parametrize(
    ("kind", "name", "content"),
    [
        ("csv", "orders.csv", b"id,sold\n"),
        ("csv", "orders.csv.gz", gzip.compress(b"id,sold\n", mtime=0)),
        ("jsonl", "orders.jsonl", b""),
        ("jsonl", "orders.jsonl.gz", gzip.compress(b"\n", mtime=0)),
    ],
    ids=["csv", "csv.gz", "jsonl", "jsonl.gz"],
)
def test_file_without_rows_is_read_as_one_of_several_and_refused_as_a_whole_table(
    tmp_path: Path, kind: str, name: str, content: bytes
) -> None:
    (tmp_path / "copied").mkdir()
    contract = replace(CONTRACT, kind=kind)
    found = rows(tmp_path, contract, name, content)
    assert (found.num_rows, found.schema) == (0, SCHEMA)
    alone = replace(contract, partition=None)
    assert rows(tmp_path, alone, name, content).num_rows == 0
    with pytest.raises(DataError, match="no rows") as caught:
        rows(tmp_path, alone, name, content, is_whole=True)
    assert caught.value.code == "data.empty"


def test_compressed_file_of_no_bytes_is_damaged_also_in_a_partition(tmp_path: Path) -> None:
    (tmp_path / "copied").mkdir()
    with pytest.raises(DataError) as caught:
        rows(tmp_path, replace(CONTRACT, kind="jsonl"), "orders.jsonl.gz", b"")
    assert caught.value.code == "format.compression"


def test_csv_file_of_a_partition_has_at_least_its_header_line(tmp_path: Path) -> None:
    (tmp_path / "copied").mkdir()
    with pytest.raises(DataError, match="no header line") as caught:
        rows(tmp_path, CONTRACT, "orders.csv", b"")
    assert caught.value.code == "data.empty"


def test_parquet_file_of_a_partition_may_have_no_rows(tmp_path: Path) -> None:
    (tmp_path / "copied").mkdir()
    sink = pa.BufferOutputStream()
    pq.write_table(SCHEMA.empty_table(), sink)
    assert rows(tmp_path, replace(CONTRACT, kind="parquet"), "orders.parquet", sink.getvalue().to_pybytes()).num_rows == 0
