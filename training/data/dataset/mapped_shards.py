"""A split's shards, mapped into memory: what the loader of torch families and the trees read, without torch."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.data.dataset.row_weights import ClassWeights
from training.data.dataset.shard_format import CELL_BYTES, ShardMeta, shard_names
from training.errors import DataError


class MappedShards:
    """One split's shards; a row's cells are those of `training.data.dataset.shard_writer`."""

    def __init__(self, folder: Path, meta: ShardMeta, split: str, *, class_weights: ClassWeights | None = None) -> None:
        """Map the shards that were fetched to `folder` (digests checked by then).

        Args:
            folder: where `Store.manifests.fetch` put the dataset's files.
            meta: the dataset manifest's.
            split: `train` or `validation`.
            class_weights: of the training, where it has some.

        Raises:
            DataError: `shard.size`, a file is not as long as the manifest says.
        """
        self.features = list(meta["layout"]["features"])
        self.num_floats = sum(entry["dtype"] == "float32" for entry in self.features)
        self.has_group = meta.get("group") is not None
        self.has_weight = "weight" in meta
        self.label_center = meta.get("label_center", 0.0)
        """What was subtracted from the labels."""
        self.class_weights = class_weights
        self.num_cells = meta["layout"]["row_bytes"] // CELL_BYTES
        self.shard_rows = list(meta["shards"][split])
        self.num_rows = sum(self.shard_rows)
        self.cells = [self._map(folder / name, rows) for name, rows in zip(shard_names(meta, split), self.shard_rows, strict=True)]
        """Of each shard, [rows, cells] int32."""
        self._starts = [_group_starts(cells) for cells in self.cells] if self.has_group else None

    @property
    def shard_units(self) -> list[int]:
        """Units (groups, or else rows) of each shard."""
        return self.shard_rows if self._starts is None else [len(starts) - 1 for starts in self._starts]

    def rows_of(self, shard: int, units: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of a shard's rows that belong to these units, in their order."""
        if self._starts is None:
            return units
        starts = self._starts[shard]
        sizes = starts[units + 1] - starts[units]
        # Row numbers count up inside each unit and jump to the next unit's start.
        jumps = starts[units] - np.concatenate([[0], np.cumsum(sizes)[:-1]])
        rows: NDArray[np.int64] = np.repeat(jumps, sizes) + np.arange(sizes.sum())
        return rows

    def share(self, rank: int, world_size: int) -> list[tuple[int, slice]]:
        """Return one process's share of the rows, as (shard, its rows), in their order: shares differ by one unit at most.

        All shares together are all rows; a group is never divided. A share is empty where there are more processes than units.
        """
        num_units = sum(self.shard_units)
        first, end = num_units * rank // world_size, num_units * (rank + 1) // world_size
        found, before = [], 0
        for shard, units in enumerate(self.shard_units):
            bounds = np.clip([first - before, end - before], 0, units)
            before += units
            if bounds[0] < bounds[1]:
                start, stop = bounds if self._starts is None else self._starts[shard][bounds]
                found.append((shard, slice(int(start), int(stop))))
        return found

    def block(self, shard: int, rows: slice) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int32] | None]:
        """Return rows of a shard as `columns` does."""
        cells, num_features = self.cells[shard][rows], len(self.features)
        features = np.empty((len(cells), num_features), dtype=np.float32)
        features[:, : self.num_floats] = cells[:, : self.num_floats].view(np.float32)
        features[:, self.num_floats :] = cells[:, self.num_floats : num_features]
        return features, self.labels(cells), np.ascontiguousarray(cells[:, -1]) if self.has_group else None

    def forget(self, shard: int) -> None:
        """Let the system take back the memory of a shard's pages; they are read from the file again when they are needed."""
        mapped = self.cells[shard]
        if isinstance(mapped, np.memmap) and mapped._mmap is not None:  # type: ignore[attr-defined]
            mapped._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]

    def labels(self, cells: NDArray[np.int32]) -> NDArray[np.float32]:
        """Return the labels of rows from their cells, [n], without `label_center`."""
        return np.ascontiguousarray(cells[:, len(self.features)]).view(np.float32)

    def weights(self, shard: int, rows: slice | NDArray[np.int64]) -> NDArray[np.float32] | None:
        """Return how much each row of a shard counts in the loss, [n]; None: each as much as any other."""
        if not self.is_weighted:
            return None
        return self.weights_of_cells(self.cells[shard][rows])

    @property
    def is_weighted(self) -> bool:
        """Whether rows count differently, by a column or by their classes."""
        return self.has_weight or self.class_weights is not None

    def weights_of_cells(self, cells: NDArray[np.int32]) -> NDArray[np.float32]:
        """Return how much each row counts, from its cells, [n]."""
        found = np.ones(len(cells), dtype=np.float32)
        if self.has_weight:
            found = np.ascontiguousarray(cells[:, len(self.features) + 1]).view(np.float32)
        return found if self.class_weights is None else found * self.class_weights.of_labels(self.labels(cells))

    def total_weight(self) -> float:
        """Return the sum of the weights of all rows; without weights, the number of units."""
        if not self.is_weighted:
            return sum(self.shard_units)
        return float(sum(self.weights_of_cells(cells).sum(dtype=np.float64) for cells in self.cells))

    def columns(self, rank: int = 0, world_size: int = 1) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int32] | None]:
        """Return a process's share of the rows as stored; without arguments all rows.

        Features are [n, features], ids as floats too; labels [n]; groups [n] where the dataset has groups.
        """
        parts = self.share(rank, world_size)
        num_rows = sum(rows.stop - rows.start for _, rows in parts)
        features = np.empty((num_rows, len(self.features)), dtype=np.float32)
        label = np.empty(num_rows, dtype=np.float32)
        group = np.empty(num_rows, dtype=np.int32) if self.has_group else None
        start = 0
        for shard, rows in parts:
            place = slice(start, start + rows.stop - rows.start)
            features[place], label[place], part = self.block(shard, rows)
            if group is not None and part is not None:
                group[place] = part
            start = place.stop
        return features, label, group

    def _map(self, path: Path, rows: int) -> NDArray[np.int32]:
        expected_bytes = rows * self.num_cells * CELL_BYTES
        actual_bytes = path.stat().st_size
        if actual_bytes != expected_bytes:
            message = f"shard {path.name} has {actual_bytes} bytes, its manifest says {expected_bytes} ({rows} rows)"
            raise DataError("shard.size", message, hint="run prepare again with force")
        # Copy on write: torch wants a writable array, and nothing that is written may reach the file.
        return np.memmap(path, dtype="<i4", mode="c", shape=(rows, self.num_cells))


def _group_starts(cells: NDArray[np.int32]) -> NDArray[np.int64]:
    group = cells[:, -1]
    return np.concatenate([[0], np.flatnonzero(group[1:] != group[:-1]) + 1, [len(group)]]).astype(np.int64)
