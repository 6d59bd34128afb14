"""Shards of a matrix that a test has in one piece."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.data.dataset.shard_writer import SHARD_BYTES, ShardWriter
from training.data.features.transforms import Matrix


def write_shards(
    folder: Path,
    split: str,
    matrix: Matrix,
    label: NDArray[np.float32],
    groups: NDArray[np.int32] | None,
    rows: NDArray[np.int64],
    *,
    shard_bytes: int = SHARD_BYTES,
) -> list[tuple[str, Path, int]]:
    """Write one split's shards below `folder`; return of each its name in the manifest, its path and its rows."""
    writer = ShardWriter(folder, split, rows, groups, num_features=matrix.cells.shape[1], shard_bytes=shard_bytes)
    writer.write(0, matrix, label, groups)
    return writer.files()
