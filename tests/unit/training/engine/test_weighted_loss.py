"""The loss is the weighted mean over the global batch: of one process, of micro-batches and of two processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.shard_files import write_shards
from tests.unit.training.engine.loop_bench import DIGEST, LAYOUT, Line, LoopBench
from tests.unit.training.engine.parallel.ranks import run_ranks
from training.data.dataset.loader import Batch, Loader, ShardSet
from training.data.dataset.shard_writer import ShardWriter, describe_layout
from training.data.features.transforms import Matrix
from training.engine.parallel.gang import Gang

COPIES = np.array([0, 1, 3, 2] * 6)


def weighted_squares(module: nn.Module, batch: Batch) -> torch.Tensor:
    """Return the summed squared error, each row's times its weight."""
    errors = (module(batch) - batch["label"]) ** 2
    return (errors * batch["weight"] if "weight" in batch else errors).sum()


def write(folder: Path, *, copies: bool) -> dict[str, Any]:
    """Write rows with weights, or each row as often as its weight says; the same for both splits."""
    numbers = np.repeat(np.arange(len(COPIES)), COPIES) if copies else np.arange(len(COPIES))
    cells = np.stack([((numbers * 7) % 11 / 4 - 1).astype(np.float32).view(np.int32), numbers.astype(np.int32)], axis=1)
    matrix, order = Matrix(cells=cells, layout=LAYOUT), np.arange(len(numbers))
    label = ((numbers * 5) % 3 - 1).astype(np.float32)
    layout = describe_layout(LAYOUT, has_group=False, has_weight=not copies)
    for split in ("train", "validation"):
        if copies:
            write_shards(folder, split, matrix, label, None, order)
            continue
        writer = ShardWriter(folder, split, order, None, num_features=2, weights=COPIES.astype(np.float32))
        writer.write(0, matrix, label, None)
    shards = {split: [len(numbers)] for split in ("train", "validation")}
    return {"layout": layout, "group": None, "shards": shards, **({} if copies else {"weight": "w"})}


def trained(gang: Gang, folder: str, meta: dict[str, Any], batch_size: int, micro_batch_size: int | None) -> dict[str, Any]:
    """Return the weights and the history of 5 epochs."""
    path = Path(folder)
    bench = LoopBench(path / f"bench-{gang.rank}")

    def loader(split: str) -> Loader:
        options: dict[str, Any] = {"rank": gang.rank, "world_size": gang.world_size, "shuffle": split == "train"}
        shards = ShardSet(path, meta, split)
        return Loader(shards, dataset_digest=DIGEST, seed=3, batch_size=batch_size, micro_batch_size=micro_batch_size, **options)

    loop = bench.train(
        Line(), gang=gang, rank=gang.rank, loss=weighted_squares, loader=loader("train"), validation=loader("validation"), epochs=5
    )
    module = {name: tensor.tolist() for name, tensor in loop._parts.module.state_dict().items()}
    return {"module": module, "history": loop.progress.history}


def alone(folder: Path, meta: dict[str, Any], batch_size: int, micro_batch_size: int | None = None) -> dict[str, Any]:
    return trained(Gang(0, 1, torch.device("cpu")), str(folder), meta, batch_size, micro_batch_size)


def assert_close(found: dict[str, Any], expected: dict[str, Any], *, keys: tuple[str, ...] = ("train_loss", "validation_loss")) -> None:
    for name, values in expected["module"].items():
        np.testing.assert_allclose(found["module"][name], values, rtol=2e-5)
    for one, other in zip(found["history"], expected["history"], strict=True):
        assert [one[key] for key in keys] == pytest.approx([other[key] for key in keys], rel=2e-5)


def test_a_weight_counts_as_so_many_copies_of_the_row(tmp_path: Path) -> None:
    expected = alone(tmp_path / "copies", write(tmp_path / "copies", copies=True), 1000)
    assert_close(alone(tmp_path / "weights", write(tmp_path / "weights", copies=False), 1000), expected)


def test_micro_batches_make_the_same_weighted_mean(tmp_path: Path) -> None:
    expected = alone(tmp_path / "whole", write(tmp_path / "whole", copies=False), 10)
    assert_close(alone(tmp_path / "micro", write(tmp_path / "micro", copies=False), 10, 3), expected)


@pytest.mark.slow
def test_two_processes_make_the_weighted_mean_of_the_global_batch(tmp_path: Path) -> None:
    expected = alone(tmp_path / "one", write(tmp_path / "one", copies=False), 10)
    meta = write(tmp_path / "two", copies=False)
    for found in run_ranks(trained, 2, tmp_path / "meeting", str(tmp_path / "two"), meta, 10, None):
        # The training loss of several processes is an estimate from the share of the first.
        assert_close(found, expected, keys=("validation_loss",))


def test_a_batch_whose_weights_are_all_zero_changes_nothing(tmp_path: Path) -> None:
    meta = write(tmp_path, copies=False)
    loader = Loader(ShardSet(tmp_path, meta, "train"), dataset_digest=DIGEST, seed=3, batch_size=1, shuffle=False)
    assert [loader.batch_weight(0, step) for step in range(4)] == [1, 1, 3, 2]
    found = alone(tmp_path, meta, 1)
    assert np.isfinite(found["module"]["line.weight"]).all()
