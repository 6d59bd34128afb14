"""A file of a snapshot that cannot be decoded is named, and nothing else is taken for one."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.training.validation.damaged_snapshots import open_views, rules
from training.errors import DataError, UnavailableError
from training.sources.snapshot_files import _open_parquet as open_parquet
from training.validation.all_checks import validate_snapshot
from training.validation.checks.damaged_files import naming_damage

DAY = "orders/4.parquet"


@pytest.mark.parametrize("codec", ["snappy", "zstd"])
def test_damaged_pages_of_a_day_name_its_file(tmp_path: Path, codec: str) -> None:
    views, suites = open_views(tmp_path, "sound")
    pq.write_table(pq.read_table(tmp_path / DAY), tmp_path / DAY, compression=codec)
    content = bytearray((tmp_path / DAY).read_bytes())
    content[60:400] = bytes(byte ^ 0xFF for byte in content[60:400])
    (tmp_path / DAY).write_bytes(content)
    with pytest.raises(DataError, match=rf"{DAY} cannot be read as Parquet: ") as caught, naming_damage(views):
        validate_snapshot(views, rules(), None, on_table=lambda _done, _total: None, suites_path=suites)
    assert caught.value.code == "format.parquet"
    assert caught.value.hint is not None


def test_a_text_that_is_not_utf8_names_its_file(tmp_path: Path) -> None:
    views, suites = open_views(tmp_path, "sound")
    rows = pq.read_table(tmp_path / DAY)
    texts = pa.array([b"\xff\xfe"] * rows.num_rows, pa.binary())
    place = rows.schema.get_field_index("word")
    damaged = rows.set_column(place, "word", pa.Array.from_buffers(pa.string(), len(texts), texts.buffers()))
    pq.write_table(damaged, tmp_path / DAY)
    with pytest.raises(DataError, match=rf"{DAY} cannot be read as Parquet: .*UTF8") as caught, naming_damage(views):
        validate_snapshot(views, rules(), None, on_table=lambda _done, _total: None, suites_path=suites)
    assert caught.value.code == "format.parquet"


def test_damage_that_duckdb_alone_finds_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    views, suites = open_views(tmp_path, "sound")
    pq.write_table(pq.read_table(tmp_path / DAY), tmp_path / DAY, compression="snappy")
    content = bytearray((tmp_path / DAY).read_bytes())
    content[60:400] = bytes(byte ^ 0xFF for byte in content[60:400])
    (tmp_path / DAY).write_bytes(content)
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *_args, **_named: iter(()))
    with pytest.raises(DataError, match=rf"{DAY} cannot be read as Parquet: ") as caught, naming_damage(views):
        validate_snapshot(views, rules(), None, on_table=lambda _done, _total: None, suites_path=suites)
    assert caught.value.code == "format.parquet"


def test_an_error_that_no_file_explains_stays_what_it_is(tmp_path: Path) -> None:
    views, _suites = open_views(tmp_path, "damaged_values")
    full = OSError(28, "No space left on device")
    with pytest.raises(OSError, match="No space left") as caught, naming_damage(views):
        raise full
    assert caught.value is full


def test_a_limit_of_open_files_is_no_damage_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    views, _suites = open_views(tmp_path, "sound")

    def refuse(*_arguments: object, **_named: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(pq, "ParquetFile", refuse)
    for error in (OSError(24, "Too many open files"), duckdb.InvalidInputException("Invalid Input Error: found by DuckDB first")):
        with pytest.raises(type(error)) as caught, naming_damage(views):
            raise error
        assert caught.value is error
    path = tmp_path / DAY
    with pytest.raises(UnavailableError) as read:
        open_parquet(path, source=path.as_uri())
    assert read.value.code == "process.open_files"
