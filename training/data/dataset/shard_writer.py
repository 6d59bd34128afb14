"""Shards: a split's rows as row-major matrices of 4-byte cells, which the loader maps into memory and gathers from.

`training.data.dataset.shard_format` says what a row is.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from training.data.dataset.scratch_arrays import ScratchArrays, gathered_places, slices_of
from training.data.dataset.shard_format import CELL_BYTES, FeatureEntry, RowLayout, shard_name
from training.data.features.transforms import LayoutEntry, Matrix

SHARD_BYTES: Final = 128 * 1024 * 1024


def describe_layout(layout: Sequence[LayoutEntry], *, has_group: bool, has_weight: bool = False) -> RowLayout:
    """Return the manifest's `layout`."""
    features: list[FeatureEntry] = [{"name": entry.name, "dtype": entry.dtype, "cardinality": entry.cardinality} for entry in layout]
    return {"features": features, "row_bytes": CELL_BYTES * (len(features) + 1 + has_weight + has_group)}


def shard_places(rows: NDArray[np.int64], groups: NDArray[np.int32], arrays: ScratchArrays) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where each of a split's rows is stored, [rows], each group in one piece, and the place where each group begins.

    Args:
        rows: numbers of the split's rows, ascending.
        groups: [n] of the whole frame.
        arrays: makes the array.
    """
    sizes = np.zeros(int(groups.max(initial=-1)) + 1, dtype=np.int64)
    for part in slices_of(len(rows)):
        sizes += np.bincount(groups[rows[part]], minlength=len(sizes))
    codes = (groups[rows[part]] for part in slices_of(len(rows)))
    there = sizes[sizes > 0]
    return arrays.filled(gathered_places(codes, sizes), len(rows), np.int64), np.cumsum(there) - there


def cut(num_rows: int, row_bytes: int, *, starts: NDArray[np.int64] | None = None, shard_bytes: int = SHARD_BYTES) -> list[int]:
    """Return the edges of a split's shards, `[0, …, num_rows]`: balanced to one row, or to one group where there are groups.

    Args:
        num_rows: of the split, at least 1.
        row_bytes: of one row.
        starts: the place where each group begins; a group never lies in two shards.
        shard_bytes: a shard's size, exceeded by no more than one group.
    """
    num_shards = -(-num_rows // max(1, shard_bytes // row_bytes))
    edges = [num_rows * number // num_shards for number in range(num_shards + 1)]
    if starts is None:
        return edges
    ends = np.append(starts, num_rows)
    snapped = ends[np.searchsorted(ends, edges)]
    return [int(edge) for edge in np.unique(snapped)]


class ShardWriter:
    """Writes one split's shards from batches of the frame, each row straight to its place."""

    def __init__(
        self,
        folder: Path,
        split: str,
        rows: NDArray[np.int64],
        groups: NDArray[np.int32] | None,
        *,
        num_features: int,
        weights: NDArray[np.float32] | None = None,
        shard_bytes: int = SHARD_BYTES,
        arrays: ScratchArrays | None = None,
    ) -> None:
        """Decide where each row goes.

        Args:
            folder: on local disk; the shards are made below it.
            split: its name.
            rows: numbers of the split's rows of the frame, ascending.
            groups: [n] of the whole frame, or None.
            num_features: of a row.
            weights: [n] of the whole frame, or None.
            shard_bytes: see `cut`.
            arrays: makes arrays of rows; None: in `folder`.
        """
        self._num_cells = num_features + 1 + (weights is not None) + (groups is not None)
        self._weights = weights
        # Without groups, rows are stored in the order of the frame.
        self._places, starts = None, None
        if groups is not None:
            self._places, starts = shard_places(rows, groups, arrays or ScratchArrays(folder))
        self._edges = cut(len(rows), self._num_cells * CELL_BYTES, starts=starts, shard_bytes=shard_bytes)
        self._rows = rows
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
        self._put(places, block, list(itertools.pairwise([0, *ends.tolist(), len(rows)] if len(rows) else [])))
        return len(rows)

    def files(self) -> list[tuple[str, Path, int]]:
        """Return of each shard its name in the manifest, its path and its rows."""
        sizes = np.diff(self._edges)
        return [(shard_name(self._split, number), path, int(sizes[number])) for number, path in enumerate(self._paths)]

    def _put(self, places: NDArray[np.int64], block: NDArray[np.int32], pieces: Sequence[tuple[int, int]]) -> None:
        """Write each piece of the block, from a row to before another, to the place of its first row; places ascend."""
        firsts = places[[begin for begin, _end in pieces]]
        shards = np.searchsorted(self._edges, firsts, side="right") - 1
        row_bytes = self._num_cells * CELL_BYTES
        for shard, of_shard in itertools.groupby(zip(shards.tolist(), firsts.tolist(), pieces, strict=True), key=lambda piece: piece[0]):
            with self._paths[shard].open("r+b", buffering=0) as stream:
                for _shard, first, (begin, end) in of_shard:
                    stream.seek((first - self._edges[shard]) * row_bytes)
                    _write_all(stream, block[begin:end])


def _write_all(stream: io.FileIO, rows: NDArray[np.int32]) -> None:
    """Write rows; a call may write a part of them where the disk is nearly full."""
    rest = memoryview(rows.data).cast("B")
    while len(rest):
        rest = rest[stream.write(rest) :]
