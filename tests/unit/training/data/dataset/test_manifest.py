"""Datasets: parts of bounded size, read one by one as the whole frame would be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from training.contracts import canonical_json
from training.data.dataset import frame_writer
from training.data.dataset.frame_writer import FrameWriter, part_rows
from training.data.dataset.manifest import FramePart, columns_of, describe_frame, parts_of, sample_order_digest
from training.data.dataset.reader import DatasetReader
from training.errors import DataError
from training.store import Manifest, Store

AT = [datetime(2026, 3, 1, hour, tzinfo=UTC) for hour in range(11)]
TABLE = pa.table(
    {
        "at": pa.array(AT, pa.timestamp("us", tz="UTC")),
        "whole": pa.array(range(11), pa.int64()),
        "gaps": pa.array([*range(10), None], pa.int32()),
        "ids": pa.array([*range(2**53, 2**53 + 10), None], pa.int64()),
        "flag": pa.array([None, *[True] * 10]),
        "text": pa.array([*"abcdefghij", None]),
        "label": pa.array(np.arange(11) % 2, pa.float32()),
    }
)
ROWS = {"train": np.array([0, 1, 2, 3, 5]), "validation": np.array([4, 6, 7]), "test": np.array([8, 9, 10])}
"""A group's rows may lie between those of another split."""
META = {"rows": {name: len(numbers) for name, numbers in ROWS.items()}, "label": "label", "group": None}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def written(store: Store, folder: Path, batch_rows: int) -> Manifest:
    writer = FrameWriter(folder, TABLE.schema, ROWS)
    for first in range(0, TABLE.num_rows, batch_rows):
        writer.write(TABLE.slice(first, batch_rows).combine_chunks())
    writer.finish()
    return store.manifests.put_files("dataset", writer.files, {**META, **describe_frame(writer.parts, writer.columns)})[1]


@pytest.fixture(params=["one part", "parts of four rows"])
def reader(request: pytest.FixtureRequest, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DatasetReader:
    if request.param == "one part":
        manifest = written(store, tmp_path / "made", 4)
    else:
        monkeypatch.setattr(frame_writer, "part_rows", lambda _schema: 4)
        manifest = written(store, tmp_path / "made", 2)
    return DatasetReader(store, manifest, tmp_path / "read")


WHOLE = TABLE.to_pandas().assign(ids=pd.array([*range(2**53, 2**53 + 10), None], dtype="Int64"))
"""Integers that float64 lacks are kept beside a missing one."""


def test_columns_and_rows_of_splits_are_those_of_the_whole_frame(reader: DatasetReader) -> None:
    assert reader.num_rows == 11
    pd.testing.assert_frame_equal(reader.columns(reader.schema.names), WHOLE)
    for split, numbers in ROWS.items():
        assert reader.numbers(split).tolist() == numbers.tolist()
        pd.testing.assert_frame_equal(reader.rows(split), WHOLE.iloc[numbers].reset_index(drop=True))
        pd.testing.assert_frame_equal(reader.rows(split, ["gaps"]), WHOLE.iloc[numbers][["gaps"]].reset_index(drop=True))


def test_rows_by_number_and_by_time_are_those_of_the_whole_frame(reader: DatasetReader) -> None:
    chosen = np.array([0, 3, 4, 10])
    found = reader.rows_numbered(chosen, ["text", "flag"])
    pd.testing.assert_frame_equal(found, WHOLE.iloc[chosen][["text", "flag"]].reset_index(drop=True))
    for since in (AT[0], AT[5], AT[10]):
        assert reader.numbers_since("at", since).tolist() == np.flatnonzero(WHOLE["at"] >= since).tolist()
    assert reader.numbers_since("at", datetime(2026, 4, 1, tzinfo=UTC)).tolist() == []
    none = reader.rows_numbered(np.empty(0, dtype=np.int64), reader.schema.names)
    pd.testing.assert_series_equal(none.dtypes, WHOLE.dtypes)


@pytest.mark.parametrize("batch_rows", [1, 2, 3, 4, 7, 20])
@pytest.mark.parametrize("numbers", [range(11), [0, 3, 4, 10], [8], []], ids=["all", "some", "one", "none"])
def test_batches_have_the_rows_in_order_and_the_types_of_the_whole_frame(
    reader: DatasetReader, numbers: Sequence[int], batch_rows: int
) -> None:
    chosen = np.array(numbers, dtype=np.int64)
    columns = ["text", "gaps", "flag", "whole", "ids"]
    found = list(reader.batches(chosen, columns, batch_rows=batch_rows))
    assert [len(batch) for batch in found] == [min(batch_rows, len(chosen) - first) for first in range(0, len(chosen), batch_rows)]
    for first, batch in zip(range(0, len(chosen), batch_rows), found, strict=True):
        expected = WHOLE.iloc[chosen[first : first + batch_rows]][columns].reset_index(drop=True)
        pd.testing.assert_frame_equal(batch, expected)


def test_parts_say_their_rows_and_splits_and_the_manifest_the_columns(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_writer, "part_rows", lambda _schema: 4)
    manifest = written(store, tmp_path / "made", 2)
    assert [(part.name, part.rows, dict(part.splits)) for part in parts_of(manifest)] == [
        ("frame/00000.parquet", 4, {"train": 4}),
        ("frame/00001.parquet", 4, {"train": 1, "validation": 3}),
        ("frame/00002.parquet", 3, {"test": 3}),
    ]
    assert sorted(manifest.files) == [
        "frame/00000.parquet",
        "frame/00001.parquet",
        "frame/00002.parquet",
        "splits/test-00002.npy",
        "splits/train-00000.npy",
        "splits/train-00001.npy",
        "splits/validation-00001.npy",
    ]
    columns = columns_of(manifest)
    assert columns is not None
    assert {column.name: (column.type, column.nulls) for column in columns} == {
        "at": ("timestamp[us, tz=UTC]", 0),
        "whole": ("int64", 0),
        "ids": ("int64", 1),
        "gaps": ("int32", 1),
        "flag": ("bool", 1),
        "text": ("string", 1),
        "label": ("float", 0),
    }


def test_batch_that_is_larger_than_a_part_is_divided(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_writer, "part_rows", lambda _schema: 4)
    manifest = written(store, tmp_path / "made", 11)
    assert [part.rows for part in parts_of(manifest)] == [4, 4, 3]
    reader = DatasetReader(store, manifest, tmp_path / "read")
    pd.testing.assert_frame_equal(reader.columns(reader.schema.names), WHOLE)
    for split, numbers in ROWS.items():
        assert reader.numbers(split).tolist() == numbers.tolist()


def test_rows_of_a_split_are_read_from_its_parts_alone(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_writer, "part_rows", lambda _schema: 4)
    reader = DatasetReader(store, written(store, tmp_path / "made", 4), tmp_path / "read")
    for name in ("frame/00000.parquet", "frame/00001.parquet"):
        (tmp_path / "read" / name).write_bytes(b"not read")
    monkeypatch.setattr(DatasetReader, "schema", TABLE.schema)
    assert reader.rows("test", ["whole", "gaps"])["whole"].tolist() == [8, 9, 10]


def test_order_of_samples_of_one_part_follows_its_content_and_not_the_description_of_its_parts(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = written(store, tmp_path / "made", 11)
    described = replace(made, meta={**made.meta, "schema": [{**column, "nulls": 0} for column in made.meta["schema"]]})
    assert described.digest != made.digest
    assert sample_order_digest(described) == sample_order_digest(made)
    other = replace(made, meta={**made.meta, "group": "text"})
    assert sample_order_digest(other) not in (sample_order_digest(made), other.digest)

    monkeypatch.setattr(frame_writer, "part_rows", lambda _schema: 4)
    parts = written(store, tmp_path / "parts", 4)
    assert sample_order_digest(parts) == parts.digest


def test_a_dataset_of_a_newer_format_is_refused(store: Store, tmp_path: Path) -> None:
    newer = Manifest(kind="dataset", files={}, meta={"format": 2})
    with pytest.raises(DataError, match="has format 2, this version reads up to 1") as caught:
        DatasetReader(store, newer, tmp_path / "read")
    assert caught.value.code == "dataset.newer"


@pytest.mark.parametrize(("columns", "rows"), [(1, 128 * 65_536), (100, 65_536), (128, 65_536), (129, 32_768), (2000, 4096), (9000, 512)])
def test_a_part_has_whole_batches_or_of_wide_rows_a_fraction_of_one(columns: int, rows: int) -> None:
    assert part_rows(pa.schema([(f"x{number}", pa.float64()) for number in range(columns)])) == rows
    assert rows * columns * 8 <= 64 * 2**20


def test_a_part_has_about_64_mib() -> None:
    assert part_rows(pa.schema([("x", pa.int32())])) == 2**24
    assert part_rows(TABLE.schema) * (8 + 8 + 4 + 1 / 8 + 32 + 4) <= 2**26
    assert canonical_json(describe_frame([FramePart.numbered(0, rows=1, splits={"train": 1})], [])) == (
        b'{"format":1,"parts":[{"rows":1,"splits":{"train":1}}],"schema":[]}'
    )
