"""Shards: a split's rows as row-major matrices of 4-byte cells, which the loader maps into memory and gathers from.

A row is the features in the order of the layout (floats, then ids), then `label` (float32), then, where rows have weights, `weight`
(float32), then, where there is a group, `group` (int32). A shard file is nothing but its rows, little-endian.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

from training.data.encoders import CellType
from training.data.transforms import CELL_BYTES, LayoutEntry, Matrix

SHARD_BYTES: Final = 128 * 1024 * 1024
SHARDED_SPLITS: Final = ("train", "validation")


class FeatureEntry(TypedDict):
    """A column of the model's input, as the manifest has it."""

    name: str
    dtype: CellType
    cardinality: int


class Layout(TypedDict):
    """A row of a shard."""

    features: list[FeatureEntry]
    row_bytes: int


class ShardMeta(TypedDict):
    """What a dataset's meta says of its shards."""

    layout: Layout
    shards: Mapping[str, Sequence[int]]
    """Rows of each shard, by split."""
    group: str | None
    weight: NotRequired[str]
    """Column of the rows' weights, where they have some."""


def shard_name(split: str, number: int) -> str:
    """Return a shard's name in its manifest."""
    return f"shards/{split}-{number:05d}.bin"


def shard_names(meta: ShardMeta, split: str) -> list[str]:
    """Return the names of a split's shards, from a dataset manifest's meta."""
    return [shard_name(split, number) for number in range(len(meta["shards"][split]))]


def describe_layout(layout: Sequence[LayoutEntry], *, has_group: bool, has_weight: bool = False) -> Layout:
    """Return the manifest's `layout`."""
    features: list[FeatureEntry] = [{"name": entry.name, "dtype": entry.dtype, "cardinality": entry.cardinality} for entry in layout]
    return {"features": features, "row_bytes": CELL_BYTES * (len(features) + 1 + has_weight + has_group)}


def shard_order(rows: NDArray[np.int64], groups: NDArray[np.int32] | None) -> NDArray[np.int64]:
    """Return a split's rows in the order in which they are stored, each group in one piece."""
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


class ShardWriter:
    """Writes one split's shards from batches of the frame, each row straight to its place."""

    def __init__(
        self,
        folder: Path,
        split: str,
        order: NDArray[np.int64],
        groups: NDArray[np.int32] | None,
        *,
        num_features: int,
        weights: NDArray[np.float32] | None = None,
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        """Decide where each row goes.

        Args:
            folder: on local disk; the shards are made below it.
            split: its name.
            order: the split's rows of the frame, as `shard_order` gives them.
            groups: [n] of the whole frame, or None.
            num_features: of a row.
            weights: [n] of the whole frame, or None.
            shard_bytes: see `cut`.
        """
        self._num_cells = num_features + 1 + (weights is not None) + (groups is not None)
        self._weights = weights
        self._edges = cut(
            len(order), self._num_cells * CELL_BYTES, groups=None if groups is None else groups[order], shard_bytes=shard_bytes
        )
        # Without groups, rows are stored in the order of the frame: two arrays less.
        self._places = None if groups is None else np.argsort(order, kind="stable")
        self._rows = order if self._places is None else order[self._places]
        self._paths = [folder / shard_name(split, number) for number in range(len(self._edges) - 1)]
        self._split = split
        for path in self._paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")

    def write(self, first: int, matrix: Matrix, label: NDArray[np.float32], groups: NDArray[np.int32] | None) -> int:
        """Write those rows of a batch that belong to the split; return how many.

        Args:
            first: the batch's first row's number in the frame.
            matrix: [n] features.
            label: [n].
            groups: [n], where the frame has groups.
        """
        start, stop = np.searchsorted(self._rows, [first, first + len(label)])
        rows, places = self._rows[start:stop] - first, np.arange(start, stop)
        if self._places is not None:
            by_place = np.argsort(self._places[start:stop], kind="stable")
            rows, places = rows[by_place], self._places[start:stop][by_place]
        block = np.empty((len(rows), self._num_cells), dtype="<i4")
        num_features = matrix.cells.shape[1]
        block[:, :num_features] = matrix.cells[rows]
        block[:, num_features] = label[rows].view(np.int32)
        if self._weights is not None:
            block[:, num_features + 1] = self._weights[first + rows].view(np.int32)
        if groups is not None:
            block[:, -1] = groups[rows]
        # A piece ends where the next row's place is not the next one, or in another shard.
        ends = np.flatnonzero((np.diff(places) != 1) | np.isin(places[1:], self._edges)) + 1
        for begin, end in itertools.pairwise([0, *ends.tolist(), len(rows)] if len(rows) else []):
            self._put(int(places[begin]), block[begin:end])
        return len(rows)

    def files(self) -> list[tuple[str, Path, int]]:
        """Return of each shard its name in the manifest, its path and its rows."""
        sizes = np.diff(self._edges)
        return [(shard_name(self._split, number), path, int(sizes[number])) for number, path in enumerate(self._paths)]

    def _put(self, place: int, block: NDArray[np.int32]) -> None:
        shard = int(np.searchsorted(self._edges, place, side="right")) - 1
        with self._paths[shard].open("r+b") as stream:
            stream.seek((place - self._edges[shard]) * self._num_cells * CELL_BYTES)
            stream.write(block.data)
