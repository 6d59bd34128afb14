"""How many processes share one model, and in which way: `train.parallel` for a number of processes."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The processes of a training as a grid; the sizes multiplied are their number."""

    data: int = 1
    """Replicas of the model."""
    shard: int = 1
    """Processes over which the parameters, gradients and optimizer state of a replica are divided."""

    @property
    def world_size(self) -> int:
        return self.data * self.shard

    @property
    def num_data_ranks(self) -> int:
        """Into how many shares a batch is divided."""
        return self.data * self.shard

    @property
    def is_replicated(self) -> bool:
        """Whether each process has the whole model."""
        return self.shard == 1

    def words(self) -> str:
        """Return the layout for people: `data 2 x shard 4`."""
        return f"data {self.data} x shard {self.shard}"

    def sizes(self) -> dict[str, int]:
        """Return the sizes that are not 1, by name: what a checkpoint's identity says of a layout."""
        return {name: size for name, size in (("data", self.data), ("shard", self.shard)) if size > 1}


def fitted(*, shard: int, world_size: int) -> Layout:
    """Return the layout of a number of processes that may be smaller than planned: an elastic training continues with what is left.

    The shards of a replica become the greatest common divisor of what was planned and what is there; the rest are replicas.
    """
    fitting = math.gcd(shard, world_size)
    return Layout(data=world_size // fitting, shard=fitting)
