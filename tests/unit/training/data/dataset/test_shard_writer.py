"""Shards: every row once, whole groups, balanced, the documented cells."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.shard_files import write_shards
from training.data.dataset import scratch_arrays
from training.data.dataset.scratch_arrays import ScratchArrays
from training.data.dataset.shard_format import shard_name, shard_names
from training.data.dataset.shard_writer import ShardWriter, cut, describe_layout, shard_places
from training.data.features.transforms import LayoutEntry, Matrix

LAYOUT = (LayoutEntry(name="price", dtype="float32", cardinality=0), LayoutEntry(name="user", dtype="int32", cardinality=9))


def matrix(rows: int) -> Matrix:
    cells = np.empty((rows, 2), dtype=np.int32)
    cells[:, 0] = (np.arange(rows, dtype=np.float32) / 2).view(np.int32)
    cells[:, 1] = np.arange(rows)
    return Matrix(cells=cells, layout=LAYOUT)


@pytest.mark.parametrize("num_rows", [1, 2, 99, 100, 101, 1000])
def test_shards_differ_by_at_most_one_row_and_keep_to_their_size(num_rows: int) -> None:
    sizes = np.diff(cut(num_rows, 8, shard_bytes=100))
    assert sizes.sum() == num_rows
    assert sizes.max() - sizes.min() <= 1
    assert sizes.max() * 8 <= 100


def test_a_group_lies_in_one_shard() -> None:
    groups = np.repeat(np.arange(40, dtype=np.int32), np.arange(40) % 5 + 1)
    edges = cut(len(groups), 4, starts=np.flatnonzero(np.diff(groups, prepend=-1)), shard_bytes=64)
    assert edges[0] == 0
    assert edges[-1] == len(groups)
    assert len(edges) > 5
    assert all(groups[edge] != groups[edge - 1] for edge in edges[1:-1])
    assert max(np.diff(edges)) <= 64 // 4 + 5


def test_one_group_larger_than_a_shard_makes_one_shard() -> None:
    assert cut(100, 4, starts=np.array([0]), shard_bytes=40) == [0, 100]


def test_rows_of_a_group_are_stored_next_to_one_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = np.array([0, 1, 0, 2, 1], dtype=np.int32)
    places, starts = shard_places(np.array([0, 1, 2, 4]), groups, ScratchArrays(tmp_path))
    assert (places.tolist(), starts.tolist()) == ([0, 2, 1, 3], [0, 2])

    monkeypatch.setattr(scratch_arrays, "MEMORY_BYTES", 0)
    monkeypatch.setattr(scratch_arrays, "SLICE_ROWS", 7)
    generator = np.random.default_rng(4)
    groups, rows = generator.integers(0, 30, 200).astype(np.int32), np.flatnonzero(generator.random(200) < 0.7)
    places, starts = shard_places(rows, groups, ScratchArrays(tmp_path))
    assert np.argsort(places).tolist() == np.argsort(groups[rows], kind="stable").tolist()
    assert starts.tolist() == np.flatnonzero(np.diff(np.sort(groups[rows]), prepend=-1)).tolist()


def test_a_shard_is_features_label_group_in_four_byte_cells(tmp_path: Path) -> None:
    label = np.array([0, 1, 0, 1], dtype=np.float32)
    groups = np.array([7, 7, 8, 9], dtype=np.int32)
    written = write_shards(tmp_path, "train", matrix(4), label, groups, np.array([1, 2, 3]), shard_bytes=32)
    assert [(name, rows) for name, _path, rows in written] == [("shards/train-00000.bin", 1), ("shards/train-00001.bin", 2)]
    cells = np.concatenate([np.fromfile(path, dtype="<i4").reshape(-1, 4) for _name, path, _rows in written])
    assert cells[:, 0].view(np.float32).tolist() == [0.5, 1.0, 1.5]
    assert cells[:, 1].tolist() == [1, 2, 3]
    assert np.ascontiguousarray(cells[:, 2]).view(np.float32).tolist() == [1.0, 0.0, 1.0]
    assert cells[:, 3].tolist() == [7, 8, 9]


@pytest.mark.parametrize("grouped", [False, True], ids=["rows", "groups"])
@pytest.mark.parametrize("batch_rows", [1, 7, 100])
def test_shards_do_not_depend_on_the_batches_that_they_are_written_from(tmp_path: Path, batch_rows: int, grouped: bool) -> None:
    # Rows of a group lie apart from one another, some in another batch, and every fifth row belongs to another split.
    generator = np.random.default_rng(3)
    groups = np.sort(generator.integers(0, 25, 100)).astype(np.int32) if grouped else None
    if groups is not None:
        groups[10:60] = groups[10:60][generator.permutation(50)]
    label, rows = generator.random(100).astype(np.float32), np.flatnonzero(np.arange(100) % 5)
    whole = write_shards(tmp_path / "whole", "train", matrix(100), label, groups, rows, shard_bytes=300)

    writer = ShardWriter(tmp_path / "parts", "train", rows, groups, num_features=2, shard_bytes=300)
    written = 0
    for first in range(0, 100, batch_rows):
        part = slice(first, first + batch_rows)
        batch = Matrix(cells=matrix(100).cells[part], layout=LAYOUT)
        written += writer.write(first, batch, label[part], None if groups is None else groups[part])

    assert written == len(rows)
    assert len(whole) > 3
    for (name, path, num_rows), (other_name, other_path, other_rows) in zip(whole, writer.files(), strict=True):
        assert (name, num_rows) == (other_name, other_rows)
        assert path.read_bytes() == other_path.read_bytes()
        assert len(path.read_bytes()) == num_rows * 4 * (3 + grouped)


def test_layout_is_described_as_the_manifest_has_it() -> None:
    assert describe_layout(matrix(1).layout, has_group=True) == {
        "features": [{"name": "price", "dtype": "float32", "cardinality": 0}, {"name": "user", "dtype": "int32", "cardinality": 9}],
        "row_bytes": 16,
    }
    assert shard_names({"shards": {"train": [3, 4]}}, "train") == [shard_name("train", 0), shard_name("train", 1)]
