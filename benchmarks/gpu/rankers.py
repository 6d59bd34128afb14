"""A ranker as search pipelines train it, and its rows: the small model of the parts `loader`, `ranker` and `cpu_gpu`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.gpu.trainings import write_rows
from training.data.dataset.loader import Batch
from training.data.dataset.shard_format import FeatureEntry, ShardMeta
from training.models.ranker.module import RankerModule

NUM_FLOATS: Final = 13
CARDINALITIES: Final = (100_000, 50_000, 20_000, 10_000, 5000, 1000, 500, 200, 100, 50, 20, 10, 7, 5, 3, 2)
"""As Criteo's rows: 13 numbers and, of its 26 ids, 16."""
FEATURES: Final[list[FeatureEntry]] = [
    *(FeatureEntry(name=f"x{number}", dtype="float32", cardinality=0) for number in range(NUM_FLOATS)),
    *(FeatureEntry(name=f"id{number}", dtype="int32", cardinality=size) for number, size in enumerate(CARDINALITIES)),
]


def ranker(*, is_large: bool) -> RankerModule:
    settings: Any = {"embedding_dim": 64, "hidden": [1024, 512, 256]} if is_large else {"embedding_dim": 4, "hidden": [8]}
    architecture: Any = {"features": FEATURES, "bias_features": [], "settings": settings}
    torch.manual_seed(1)
    return RankerModule(architecture)


def cells(num_rows: int, *, seed: int) -> NDArray[np.int32]:
    """Return rows as shards have them, [rows, features + 1]; the label follows from two numbers and an id, so it can be learned."""
    generator = np.random.default_rng(seed)
    floats = generator.standard_normal((num_rows, NUM_FLOATS), dtype=np.float32)
    ids = np.stack([generator.integers(0, size, num_rows, dtype=np.int32) for size in CARDINALITIES], axis=1)
    label = (floats[:, 0] - floats[:, 1] + (ids[:, -1] - 0.5) > 0).astype(np.float32)
    return np.ascontiguousarray(np.concatenate([floats.view(np.int32), ids, label.view(np.int32)[:, None]], axis=1))


def write(folder: Path, *, train: int, validation: int) -> ShardMeta:
    return write_rows(folder, FEATURES, {"train": cells(train, seed=1), "validation": cells(validation, seed=2)})


def batch_of(num_rows: int) -> Batch:
    rows = torch.from_numpy(cells(num_rows, seed=3))
    return {
        "features_float": rows[:, :NUM_FLOATS].view(torch.float32),
        "features_int": rows[:, NUM_FLOATS:-1].contiguous(),
        "label": rows[:, -1].contiguous().view(torch.float32),
    }


def loss(module: nn.Module, batch: Batch) -> torch.Tensor:
    return nn.functional.binary_cross_entropy_with_logits(module(batch), batch["label"], reduction="sum")
