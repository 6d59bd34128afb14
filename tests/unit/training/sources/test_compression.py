"""Compressed csv and json lines: read as their content, and refused where damaged, cut short, or too large once decompressed."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from training.errors import DataError
from training.sources.interface import SourcePart, SourceWindow
from training.sources.listing import list_source
from training.sources.registry import source_of
from training.sources.snapshot_files import read_rows
from training.sources.table_contract import TableContract
from training.spec.sections.data import Column

CONTENT = {"csv": b"id,s\n1,a\n2,b\n", "jsonl": b'{"id": 1, "s": "a"}\n{"id": 2, "s": "b"}\n'}
CODECS = {
    "gz": lambda data: gzip.compress(data, mtime=0),
    "zst": lambda data: pa.compress(data, codec="zstd", asbytes=True),
}
ROWS = [{"id": 1, "s": "a"}, {"id": 2, "s": "b"}]


def read(tmp_path: Path, kind: str, name: str, data: bytes, *, limit_bytes: int = 10**6) -> pa.Table:
    (tmp_path / "t").mkdir(exist_ok=True)
    (tmp_path / "t" / name).write_bytes(data)
    contract = TableContract(
        name="t", kind=kind, uri=f"{(tmp_path / 't').as_uri()}", columns={"id": Column(type="int64"), "s": Column(type="string")}
    )
    source, (part,) = source_of(contract), source_of(contract).list(SourceWindow(None, None, datetime(2026, 1, 1, tzinfo=UTC)))
    assert part == SourcePart(part.uri, len(data), list_source(contract.place)[0].version)
    folder = tmp_path / "scratch"
    folder.mkdir()
    return read_rows(contract, source.read(part, folder, limit_bytes=limit_bytes), source=name, limit_bytes=limit_bytes)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize("suffix", ["", ".gz", ".zst", ".GZ"])
def test_a_file_is_read_as_its_suffix_says(tmp_path: Path, kind: str, suffix: str) -> None:
    codec = CODECS.get(suffix.lower()[1:], bytes)
    assert read(tmp_path, kind, f"a.{kind}{suffix}", codec(CONTENT[kind])).to_pylist() == ROWS


@pytest.mark.parametrize("suffix", sorted(CODECS))
def test_members_one_after_another_are_one_file(tmp_path: Path, suffix: str) -> None:
    data = CODECS[suffix](b"id,s\n1,a\n") + CODECS[suffix](b"2,b\n")
    assert read(tmp_path, "csv", f"a.csv.{suffix}", data).to_pylist() == ROWS


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize("suffix", sorted(CODECS))
@pytest.mark.parametrize("damage", ["cut", "cut in the checksum", "plain", "flipped", "followed", "empty"])
def test_a_damaged_stream_is_refused(tmp_path: Path, kind: str, suffix: str, damage: str) -> None:
    if (suffix, damage) == ("zst", "flipped"):
        pytest.skip("the checksum of zst is optional, and Arrow writes none")
    whole = CODECS[suffix](CONTENT[kind] if damage != "flipped" else CONTENT[kind] * 1000)
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    data = {
        "cut": whole[: len(whole) // 2],
        "cut in the checksum": whole[:-2],
        "plain": CONTENT[kind],
        "flipped": bytes(flipped),
        "followed": whole + b"more",
        "empty": b"",
    }[damage]
    with pytest.raises(DataError) as caught:
        read(tmp_path, kind, f"a.{kind}.{suffix}", data)
    assert caught.value.code == "format.compression"
    assert f"a.{kind}.{suffix} cannot be decompressed" in caught.value.message


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize("suffix", sorted(CODECS))
def test_a_small_file_of_much_content_is_refused_before_all_of_it_is_written(tmp_path: Path, kind: str, suffix: str) -> None:
    bomb = CODECS[suffix](b" " * 200_000_000)
    assert len(bomb) < 1_000_000
    with pytest.raises(DataError, match=r"decompressed: about 0\.0. GiB in memory") as caught:
        read(tmp_path, kind, f"a.{kind}.{suffix}", bomb, limit_bytes=20_000_000)
    assert caught.value.code == "source.too_large"
    assert sum(path.stat().st_size for path in (tmp_path / "scratch").iterdir()) < 30_000_000
