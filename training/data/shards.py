"""Shards: a split's rows as row-major matrices of 4-byte cells, which the loader maps into memory and gathers from.

A row is the features in the order of the layout (floats, then ids), then `label` (float32), then, where there is a
group, `group` (int32). A shard file is nothing but its rows, little-endian.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from training.data.transforms import CELL_BYTES, Matrix

SHARD_BYTES: Final = 128 * 1024 * 1024
SHARDED_SPLITS: Final = ("train", "validation")
ROWS_PER_WRITE: Final = 65_536


def shard_name(split: str, number: int) -> str:
    """Return a shard's name in its manifest."""
    return f"shards/{split}-{number:05d}.bin"


def shard_names(meta: Mapping[str, Any], split: str) -> list[str]:
    """Return the names of a split's shards, from a dataset manifest's meta."""
    return [shard_name(split, number) for number in range(len(meta["shards"][split]))]


def describe_layout(matrix: Matrix, *, has_group: bool) -> dict[str, Any]:
    """Return the manifest's `layout`."""
    features = [{"name": entry.name, "dtype": entry.dtype, "cardinality": entry.cardinality} for entry in matrix.layout]
    return {"features": features, "row_bytes": CELL_BYTES * (len(features) + 1 + has_group)}


def shard_order(rows: NDArray[np.int64], groups: NDArray[np.int32] | None) -> NDArray[np.int64]:
    """Return a split's rows in the order in which they are stored: as they are, each group in one piece."""
    return rows if groups is None else rows[np.argsort(groups[rows], kind="stable")]


def cut(num_rows: int, row_bytes: int, *, groups: NDArray[np.int32] | None = None, shard_bytes: int = SHARD_BYTES) -> list[int]:
    """Return the edges of a split's shards, `[0, …, num_rows]`: balanced to one row, or to one group where there are groups.

    Args:
        num_rows: of the split, at least 1.
        row_bytes: of one row.
        groups: [num_rows] in stored order; a group never lies in two shards.
        shard_bytes: a shard's size, exceeded by no more than one group.
    """
    num_shards = -(-num_rows // max(1, shard_bytes // row_bytes))
    edges = [num_rows * number // num_shards for number in range(num_shards + 1)]
    if groups is None:
        return edges
    starts = np.append(np.flatnonzero(np.diff(groups, prepend=groups[0] - 1)), num_rows)
    snapped = starts[np.searchsorted(starts, edges)]
    return [int(edge) for edge in np.unique(snapped)]


def write_shards(
    folder: Path,
    split: str,
    matrix: Matrix,
    label: NDArray[np.float32],
    groups: NDArray[np.int32] | None,
    order: NDArray[np.int64],
    *,
    shard_bytes: int = SHARD_BYTES,
) -> Iterator[tuple[str, Path, int]]:
    """Write one split's shards below `folder`; yield (name in the manifest, path, rows) after each.

    Args:
        folder: on local disk.
        split: its name.
        matrix: features of the whole frame.
        label: [n] of the whole frame.
        groups: [n] of the whole frame, or None.
        order: the split's rows of the frame, as `shard_order` gives them.
        shard_bytes: see `cut`.
    """
    num_cells = matrix.cells.shape[1] + 1 + (groups is not None)
    edges = cut(len(order), num_cells * CELL_BYTES, groups=None if groups is None else groups[order], shard_bytes=shard_bytes)
    block = np.empty((ROWS_PER_WRITE, num_cells), dtype="<i4")
    for number, (start, stop) in enumerate(itertools.pairwise(edges)):
        path = folder / shard_name(split, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as stream:
            for first in range(start, stop, ROWS_PER_WRITE):
                rows = order[first : min(first + ROWS_PER_WRITE, stop)]
                filled = block[: len(rows)]
                filled[:, : matrix.cells.shape[1]] = matrix.cells[rows]
                filled[:, matrix.cells.shape[1]] = label[rows].view(np.int32)
                if groups is not None:
                    filled[:, -1] = groups[rows]
                stream.write(filled.data)
        yield shard_name(split, number), path, stop - start
