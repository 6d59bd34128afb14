"""Batches for training: one gather per batch from shards mapped into memory, in a prefetch thread, no worker processes.

What is drawn is a unit: a row, or a whole group where the dataset has groups. The order of units is a function of
(dataset, seed, epoch, position) alone: shards in a random order, and a random order of the units inside each. So it is
the same for any number of ranks, and the loader starts at any position without the ones before it. (Shard order and
in-shard permutation, as MosaicML Streaming and WebDataset do; it mixes a shard's rows, not those of distant shards.)
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from training.data.dataset.mapped_shards import MappedShards
from training.data.dataset.row_weights import ClassWeights
from training.data.dataset.shard_format import ShardMeta

PREFETCHED_BATCHES: Final = 4

Batch = dict[str, torch.Tensor]
"""`features_float` [n, floats] float32, `features_int` [n, ids] int32, `label` [n] float32 and, where the dataset has groups,
`group` [n] int32, each group's rows next to one another; where rows have weights, `weight` [n] float32."""


class ShardSet(MappedShards):
    """One split's shards, mapped into memory, from which batches are gathered."""

    def __init__(
        self, folder: Path, meta: ShardMeta, split: str, *, class_weights: ClassWeights | None = None, whole_labels: bool = False
    ) -> None:
        """Map the shards as `MappedShards` does; with `whole_labels`, the batches' labels have `label_center`."""
        super().__init__(folder, meta, split, class_weights=class_weights)
        self._added = self.label_center if whole_labels else 0.0
        self._tensors = [torch.from_numpy(cells) for cells in self.cells]

    def gather(self, pieces: Sequence[tuple[int, NDArray[np.int64]]]) -> Batch:
        """Return units as a batch, in the order given; no pieces make an empty batch.

        Args:
            pieces: (shard, its units' numbers) one after the other.
        """
        taken = [self._tensors[shard].index_select(0, torch.from_numpy(self.rows_of(shard, units))) for shard, units in pieces]
        rows = torch.cat(taken) if len(taken) != 1 else taken[0]
        return self._batch(rows)

    def _batch(self, rows: torch.Tensor) -> Batch:
        num_features = len(self.features)
        label = rows[:, num_features].view(torch.float32)
        batch = {
            "features_float": rows[:, : self.num_floats].view(torch.float32),
            "features_int": rows[:, self.num_floats : num_features],
            "label": (label.double() + self._added).float() if self._added else label,
        }
        if self.has_group:
            batch["group"] = rows[:, -1]
        if self.is_weighted:
            batch["weight"] = torch.from_numpy(self.weights_of_cells(rows.numpy()))
        return batch


def cut(batch: Batch, num_parts: int) -> list[Batch]:
    """Return a batch's units (rows, or whole groups) in so many parts, in order; sizes differ by at most a unit, and may be 0."""
    if num_parts == 1:
        return [batch]
    num_rows = len(batch["label"])
    starts = torch.arange(num_rows)
    if "group" in batch and num_rows:
        group = batch["group"]
        starts = torch.cat([torch.zeros(1, dtype=torch.int64), (group[1:] != group[:-1]).nonzero().flatten() + 1])
    ends = [*starts.tolist(), num_rows]
    bounds = [ends[len(starts) * part // num_parts] for part in range(num_parts + 1)]
    return [{name: cells[first:last] for name, cells in batch.items()} for first, last in itertools.pairwise(bounds)]


class GlobalOrder:
    """One epoch's order of units, from any position on."""

    def __init__(self, *, dataset_digest: str, seed: int, epoch: int, shard_units: Sequence[int], shuffle: bool = True) -> None:
        """Fix the order.

        Args:
            dataset_digest: hexadecimal digest of what the shards were made from.
            seed: the run's.
            epoch: from 0.
            shard_units: units of each shard.
            shuffle: False: as stored.
        """
        self._entropy = [int(dataset_digest[:16], 16), seed, epoch]
        self._shuffle = shuffle
        self._shard_units = list(shard_units)
        self._sequence = self._generator(0).permutation(len(shard_units)) if shuffle else np.arange(len(shard_units))
        self._ends = np.cumsum([self._shard_units[shard] for shard in self._sequence])
        self.num_units = int(self._ends[-1]) if len(self._ends) else 0
        self._unpacked: tuple[int, NDArray[np.int64]] | None = None

    def pieces(self, start: int, stop: int) -> list[tuple[int, NDArray[np.int64]]]:
        """Return the units at positions `start` to `stop` as (shard, its units' numbers), touching only shards that hold them."""
        found = []
        turn = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop:
            shard, end = int(self._sequence[turn]), int(self._ends[turn])
            first = end - self._shard_units[shard]
            last = min(stop, end)
            found.append((shard, self._permutation(shard)[start - first : last - first]))
            start, turn = last, turn + 1
        return found

    def _permutation(self, shard: int) -> NDArray[np.int64]:
        if self._unpacked is None or self._unpacked[0] != shard:
            units = self._shard_units[shard]
            self._unpacked = (shard, self._generator(shard + 1).permutation(units) if self._shuffle else np.arange(units))
        return self._unpacked[1]

    def _generator(self, purpose: int) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(np.random.SeedSequence([*self._entropy, purpose])))


class Loader:
    """Cuts each epoch's order into global batches, and gives this rank its share of each.

    A global batch has `batch_size` rows, or, with groups, `batch_size // mean group size` groups (at least one, and so about
    `batch_size` rows). The epoch's last one is kept and may be smaller: where it would have less than half of the units, the
    last two are divided evenly. Rank r of w gets the units n*r//w to n*(r+1)//w of a global batch of n: shares differ by at
    most one unit, and may be empty in a batch of fewer units than ranks.
    """

    def __init__(
        self,
        shards: ShardSet,
        *,
        dataset_digest: str,
        seed: int,
        batch_size: int,
        micro_batch_size: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        shuffle: bool = True,
    ) -> None:
        """Prepare to load.

        Args:
            shards: the split.
            dataset_digest: of the dataset's manifest.
            seed: the run's.
            batch_size: rows of a global batch, over all ranks.
            micro_batch_size: rows of the parts that a rank's share is cut into; None: it is not cut.
            rank: this process's, from 0.
            world_size: number of ranks.
            shuffle: False: as stored, the same in every epoch.
        """
        self._shards = shards
        self._dataset_digest = dataset_digest
        self._seed = seed
        self._rank = rank
        self._world_size = world_size
        self._shuffle = shuffle
        self.num_units = sum(shards.shard_units)
        self.total_weight = shards.total_weight()
        """What the mean over all rows divides by: the sum of their weights, or else their units."""
        self._weighed: tuple[int, GlobalOrder] | None = None
        self.units_per_batch = max(1, batch_size * self.num_units // max(1, shards.num_rows))
        self.steps_per_epoch = -(-self.num_units // self.units_per_batch)
        rows = batch_size if micro_batch_size is None else micro_batch_size
        self._units_per_micro_batch = max(1, rows * self.num_units // max(1, shards.num_rows))
        self.units_per_part = min(self.units_per_batch // world_size, self._units_per_micro_batch)
        """Of a full batch, in the parts that a module is called with. From 4 on, the parts of a smaller last batch have 2 or more."""

    def rows_for(self, num_units: int) -> int:
        """Return the smallest `batch_size` whose batches have so many units."""
        return -(-num_units * self._shards.num_rows // max(1, self.num_units))

    def num_global_units(self, step: int) -> int:
        """Return how many units (groups, or else rows) the global batch `step` has over all ranks: what a mean divides by."""
        return self._start(step + 1) - self._start(step)

    def _start(self, step: int) -> int:
        """Return the position in the epoch's order of the first unit of the global batch `step`; after the last one, the end."""
        start = step * self.units_per_batch
        left = self.num_units - start
        if step and step == self.steps_per_epoch - 1 and left * 2 < self.units_per_batch:
            return start - (self.units_per_batch - left) // 2
        return min(start, self.num_units)

    def batch_weight(self, epoch: int, step: int) -> float:
        """Return what the mean of the global batch `step` divides by: the sum of its rows' weights over all ranks, or else its units.

        Of a batch whose weights are all 0 it is 1: its loss and its gradients are 0.
        """
        if not self._shards.is_weighted:
            return self.num_global_units(step)
        if self._weighed is None or self._weighed[0] != epoch:
            # Not the order of the batches: their thread unpacks it meanwhile.
            self._weighed = (epoch, self._order(epoch))
        pieces = self._weighed[1].pieces(self._start(step), self._start(step + 1))
        # Every rank adds up the same numbers in the same order.
        weights = [self._shards.weights(shard, self._shards.rows_of(shard, units)) for shard, units in pieces]
        total = sum(float(part.sum(dtype=np.float64)) for part in weights if part is not None)
        return total or 1.0

    def num_micro_batches(self, step: int) -> int:
        """Return into how many parts each rank's share of the global batch `step` is cut: the same number on every rank."""
        largest_share = -(-self.num_global_units(step) // self._world_size)
        return max(1, -(-largest_share // self._units_per_micro_batch))

    def batches(self, epoch: int, start_step: int = 0) -> Generator[Batch]:
        """Yield this rank's share of the epoch's global batches from `start_step` on, a few ahead gathered in a thread.

        Close it where it is not read to its end: that ends the thread.
        """
        order = self._order(epoch)
        steps = iter(range(start_step, self.steps_per_epoch))
        ahead: deque[Future[Batch]] = deque()
        pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="loader")
        try:
            ahead.extend(pool.submit(self._load, order, step) for step in itertools.islice(steps, PREFETCHED_BATCHES))
            while ahead:
                batch = ahead.popleft().result()
                following = next(steps, None)
                if following is not None:
                    ahead.append(pool.submit(self._load, order, following))
                yield batch
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _order(self, epoch: int) -> GlobalOrder:
        return GlobalOrder(
            dataset_digest=self._dataset_digest, seed=self._seed, epoch=epoch, shard_units=self._shards.shard_units, shuffle=self._shuffle
        )

    def _load(self, order: GlobalOrder, step: int) -> Batch:
        first, units = self._start(step), self.num_global_units(step)
        start, stop = (first + units * share // self._world_size for share in (self._rank, self._rank + 1))
        pieces = order.pieces(start, stop)
        return self._shards.gather(pieces if pieces else [(0, np.empty(0, dtype=np.int64))])
