"""Weights of rows and classes: refused values, balanced classes, and the same numbers in shards, batches and trees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from tests.scratch_frames import frame_of
from training.data.dataset import scratch_arrays
from training.data.dataset.loader import Loader, ShardSet, cut
from training.data.dataset.mapped_shards import MappedShards
from training.data.dataset.row_weights import ClassWeights, weight_column
from training.data.dataset.scratch_arrays import ScratchArrays
from training.data.dataset.shard_writer import ShardWriter, describe_layout
from training.data.features.transforms import LayoutEntry, Matrix
from training.data.join.engines import scratch_frame
from training.errors import DataError

LAYOUT = (LayoutEntry(name="x", dtype="float32", cardinality=0), LayoutEntry(name="row", dtype="int32", cardinality=100))
ROWS = {"train": np.array([0, 1, 2]), "validation": np.array([3, 4]), "test": np.array([5])}


def written(folder: Path, label: np.ndarray, weights: np.ndarray | None, groups: np.ndarray | None = None) -> dict[str, Any]:
    """Write one split of some shards; return the dataset's meta."""
    cells = np.stack([np.arange(len(label)).astype(np.float32).view(np.int32), np.arange(len(label), dtype=np.int32)], axis=1)
    layout = describe_layout(LAYOUT, has_group=groups is not None, has_weight=weights is not None)
    order = np.arange(len(label))
    writer = ShardWriter(folder, "train", order, groups, num_features=2, weights=weights, shard_bytes=layout["row_bytes"] * 7)
    half = len(label) // 2
    for part in (slice(0, half), slice(half, len(label))):
        matrix = Matrix(cells=cells[part], layout=LAYOUT)
        writer.write(part.start, matrix, label[part].astype(np.float32), None if groups is None else groups[part])
    shards = {"train": [rows for _name, _path, rows in writer.files()]}
    return {"layout": layout, "group": None if groups is None else "g", "shards": shards, **({} if weights is None else {"weight": "w"})}


@pytest.mark.parametrize(
    ("values", "code", "words"),
    [
        ([1, 1, None, 1, 1, 1], "weight.value", "null or NaN"),
        ([1, 1, float("nan"), 1, 1, 1], "weight.value", "null or NaN"),
        ([1, -0.5, 1, 1, 1, 1], "weight.value", "-0.5"),
        ([1, 1, 1, 1, 1, float("inf")], "weight.value", "inf"),
        ([1, 1, 1, 1, 1, 1e300], "weight.value", "1e+300"),
        ([1e-300, 1, 1, 1, 1, 1], "weight.value", "1e-300"),
        ([0, 0, 0, 1, 1, 1], "weight.zero", "3 train rows"),
        ([1, 0, 0, 0, 0, 1], "weight.zero", "2 validation rows"),
    ],
)
@pytest.mark.parametrize("batch_rows", [1, 4, 65_536])
def test_weights_that_cannot_be_used_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, values: list[float | None], code: str, words: str, batch_rows: int
) -> None:
    monkeypatch.setattr(scratch_frame, "BATCH_ROWS", batch_rows)
    with pytest.raises(DataError, match="column 'w'") as caught:
        weight_column(frame_of({"w": pa.chunked_array([pa.array(values, pa.float64())])}), ROWS, ScratchArrays(tmp_path), column="w")
    assert caught.value.code == code
    assert words in str(caught.value)


def test_integers_and_zeros_are_weights_and_lie_on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(scratch_arrays, "MEMORY_BYTES", 0)
    frame = frame_of({"w": pa.chunked_array([pa.array([3, 0], pa.int64()), pa.array([0, 1, 2, 0], pa.int64())])})
    found = weight_column(frame, ROWS, ScratchArrays(tmp_path), column="w")
    assert isinstance(found, np.memmap)
    assert found.tolist() == [3, 0, 0, 1, 2, 0]


@pytest.mark.parametrize("with_groups", [False, True])
def test_weights_stay_with_their_rows_in_shards_and_batches(tmp_path: Path, with_groups: bool) -> None:
    weights = np.random.default_rng(1).random(40).astype(np.float32)
    groups = np.repeat(np.arange(20, dtype=np.int32), 2) if with_groups else None
    meta = written(tmp_path, np.zeros(40), weights, groups)
    loader = Loader(ShardSet(tmp_path, meta, "train"), dataset_digest="ab" * 32, seed=1, batch_size=12)
    seen = []
    for step, batch in enumerate(loader.batches(0)):
        numbers = batch["features_int"][:, 0].numpy()
        assert np.array_equal(batch["weight"].numpy(), weights[numbers])
        assert loader.batch_weight(0, step) == pytest.approx(float(weights[numbers].sum(dtype=np.float64)), rel=1e-12)
        assert sum(len(part["weight"]) for part in cut(batch, 3)) == len(numbers)
        if groups is not None:
            assert np.array_equal(batch["group"].numpy(), groups[numbers])
        seen += numbers.tolist()
    assert sorted(seen) == list(range(40))
    assert loader.total_weight == pytest.approx(float(weights.sum(dtype=np.float64)), rel=1e-12)


def test_every_rank_divides_by_the_weights_of_the_whole_batch(tmp_path: Path) -> None:
    weights = np.arange(30, dtype=np.float32)
    shards = ShardSet(tmp_path, written(tmp_path, np.zeros(30), weights), "train")
    loaders = [Loader(shards, dataset_digest="ab" * 32, seed=1, batch_size=8, rank=rank, world_size=3) for rank in range(3)]
    for epoch in (0, 1, 0):
        for step in range(loaders[0].steps_per_epoch):
            shares = [next(iter(loader.batches(epoch, step)))["weight"] for loader in loaders]
            assert {loader.batch_weight(epoch, step) for loader in loaders} == {float(torch.cat(shares).sum())}


def test_rows_without_weights_are_counted(tmp_path: Path) -> None:
    shards = ShardSet(tmp_path, written(tmp_path, np.zeros(30), None), "train")
    loader = Loader(shards, dataset_digest="ab" * 32, seed=1, batch_size=8)
    assert "weight" not in next(loader.batches(0))
    assert [loader.batch_weight(0, step) for step in range(4)] == [8, 8, 8, 6]
    assert loader.total_weight == 30


@pytest.mark.parametrize("with_weights", [False, True])
def test_balanced_classes_have_the_same_sum_of_weights(tmp_path: Path, with_weights: bool) -> None:
    generator = np.random.default_rng(2)
    label = generator.choice([0, 1, 3], size=60, p=[0.6, 0.3, 0.1])
    weights = generator.random(60).astype(np.float32) if with_weights else None
    rows = MappedShards(tmp_path, written(tmp_path, label, weights), "train")
    balanced = ClassWeights.of("balanced", rows, None)
    assert balanced is not None
    each = np.ones(60) if weights is None else weights
    totals = [float((each * balanced.of_labels(label.astype(np.float32)))[label == number].sum()) for number in (0, 1, 3)]
    assert totals == pytest.approx([each.sum() / 3] * 3, rel=1e-5)
    assert balanced.of_labels(np.array([2, 9], dtype=np.float32)).tolist() == [1, 1], "classes that the training rows lack"


def test_stated_class_weights_go_by_name_and_others_are_1(tmp_path: Path) -> None:
    meta = written(tmp_path, np.array([0, 1, 2, 0]), np.array([1, 2, 3, 4], dtype=np.float32))
    found = ClassWeights.of({"late": 5.0}, MappedShards(tmp_path, meta, "train"), ["early", "late", "never"])
    rows = MappedShards(tmp_path, meta, "train", class_weights=found)
    assert rows.weights(0, slice(None)).tolist() == [1, 10, 3, 4]  # type: ignore[union-attr]
    with pytest.raises(DataError, match="no training row has the class 'lost'") as caught:
        ClassWeights.of({"lost": 1.0}, MappedShards(tmp_path, meta, "train"), ["early", "late", "never", "lost"])
    assert caught.value.code == "class_weight.unknown"
    with pytest.raises(DataError, match="all training rows have the weight 0") as caught:
        ClassWeights.of({"0": 0.0, "1": 0.0, "2": 0.0}, MappedShards(tmp_path, meta, "train"), None)
    assert caught.value.code == "weight.zero"
