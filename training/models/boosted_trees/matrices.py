"""The rows of a dataset as XGBoost's matrices: each process has its share of them, in memory, or on disk where they are too many.

In memory, rows are binned shard by shard, so there is no copy of all of them. A GPU takes a copy of all its rows.
XGBoost makes the same model of every kind of matrix, bit for bit, so which one is taken is neither a setting nor part of a work id. A
group must not be divided between blocks: no shard divides one.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import xgboost

from training.data.dataset.mapped_shards import MappedShards
from training.data.dataset.shard_format import CELL_BYTES
from training.engine.devices import LOCAL_WORLD_SIZE
from training.models.memory_check import shortage
from training.models.shard_rows import shards_of
from training.process import liveness
from training.runtime.stage_memory import stage_memory_bytes

if TYPE_CHECKING:
    from training.models.base import FitContext

logger = logging.getLogger(__name__)

BYTES_IN_MEMORY: Final = 4
"""Bytes of memory for a byte of stored rows, at the most: a copy of the features, XGBoost's entries of 8 bytes a cell, and their bins."""
CACHE: Final = "xgboost"


@contextmanager
def matrices_of(context: FitContext, *, max_bin: int) -> Iterator[dict[str, xgboost.DMatrix]]:
    """Yield the matrix of this process's share of each split; every rank must call it, within the collective.

    Matrices on disk are beside the dataset's files, in a folder that is swept also after a kill; they are removed with the block.

    Raises:
        DataError: `shard.size`, a file is not as long as the manifest says.
    """
    gang, threads = context.gang, context.spec.train.threads_per_process
    splits = shards_of(context)
    if gang.device.type == "cpu" and gang.is_first:
        on_node = sum(rows.num_rows for rows in splits.values()) * min(LOCAL_WORLD_SIZE.read(), gang.world_size) // gang.world_size
        if (lacking := shortage(context.spec, on_node, stage_memory_bytes())) is not None:
            logger.warning("%s", lacking)
    # One rank decides: the two kinds of matrix make other calls of the collective. A GPU takes its rows from memory.
    on_disk = bool(gang.from_first(gang.device.type == "cpu" and too_large(splits.values(), gang.world_size)))
    made: dict[str, xgboost.DMatrix] = {}
    if not on_disk:
        for split, rows in splits.items():
            if gang.device.type != "cpu":
                made[split] = _whole(rows, gang.rank, gang.world_size, threads)
                continue
            blocks = MatrixBlocks(rows, gang.rank, gang.world_size)
            # Bins are those of the training rows.
            made[split] = xgboost.QuantileDMatrix(blocks, ref=made.get("train"), max_bin=max_bin, nthread=threads)
        yield made
        return
    folder = context.dataset_path / CACHE
    folder.mkdir(mode=0o700)
    try:
        for split, rows in splits.items():
            blocks = MatrixBlocks(rows, gang.rank, gang.world_size, folder / split)
            made[split] = xgboost.ExtMemQuantileDMatrix(blocks, ref=made.get("train"), max_bin=max_bin, nthread=threads)
        logger.info("rows are on disk: %.1f MB in %s", _size_bytes(folder) / 1e6, folder)
        yield made
    finally:
        made.clear()
        shutil.rmtree(folder, ignore_errors=True)


def too_large(splits: Iterable[MappedShards], world_size: int) -> bool:
    """Return whether matrices of all rows of these splits would take more memory than this node's processes may plan with."""
    rows_bytes = sum(rows.num_rows * rows.num_cells * CELL_BYTES for rows in splits)
    on_this_node = rows_bytes * min(LOCAL_WORLD_SIZE.read(), world_size) / world_size
    return on_this_node * BYTES_IN_MEMORY > stage_memory_bytes()


class MatrixBlocks(xgboost.DataIter):  # type: ignore[misc]
    """A process's share of a split, a shard at a time: no copy of all its rows is made."""

    def __init__(self, rows: MappedShards, rank: int, world_size: int, cache_path: Path | None = None) -> None:
        self._rows = rows
        # XGBoost needs one block, be it empty.
        self._parts = rows.share(rank, world_size) or [(0, slice(0, 0))]
        self._next = 0
        super().__init__(cache_prefix=None if cache_path is None else str(cache_path))

    def next(self, input_data: Any) -> bool:
        if self._next == len(self._parts):
            return False
        part = self._parts[self._next]
        features, label, group = self._rows.block(*part)
        weight = self._rows.weights(*part)
        self._rows.forget(part[0])
        self._next += 1
        liveness.moved()
        input_data(
            data=features, label=label, **({} if group is None else {"qid": group}), **({} if weight is None else {"weight": weight})
        )
        return True

    def reset(self) -> None:
        self._next = 0


def _whole(rows: MappedShards, rank: int, world_size: int, threads: int) -> xgboost.DMatrix:
    features, label, group = rows.columns(rank, world_size)
    matrix = xgboost.DMatrix(features, label=label, nthread=threads)
    if group is not None:
        # The numbers must ascend, and those of a refit's validation rows begin again.
        matrix.set_info(qid=np.cumsum(np.diff(group, prepend=group[:1]) != 0))
    if rows.is_weighted:
        parts = [rows.weights(*part) for part in rows.share(rank, world_size)]
        matrix.set_info(weight=np.concatenate([part for part in parts if part is not None] or [np.empty(0, dtype=np.float32)]))
    return matrix


def _size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
