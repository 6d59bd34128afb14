"""How many processes share one model, and in which way: `train.parallel` for a number of processes."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The processes of a training as a grid; the sizes multiplied are their number.

    Ranks count through the grid with `tensor` fastest, then `shard`, `data` and `pipeline`: what talks most is closest.
    """

    data: int = 1
    """Replicas of the model."""
    shard: int = 1
    """Processes over which the parameters, gradients and optimizer state of a replica are divided."""
    tensor: int = 1
    """Processes over which each layer's computation is divided; they work on the same rows."""
    pipeline: int = 1
    """Stages: processes that each have some of the layers, and hand activations on."""

    @property
    def world_size(self) -> int:
        return self.data * self.shard * self.tensor * self.pipeline

    @property
    def num_data_ranks(self) -> int:
        """Into how many shares a batch is divided."""
        return self.data * self.shard

    @property
    def is_replicated(self) -> bool:
        """Whether each process has the whole model."""
        return self.shard == self.tensor == self.pipeline == 1

    def data_rank(self, rank: int) -> int:
        """Return which share of a batch a process gets; those of one tensor group and of one pipeline get the same."""
        return rank // self.tensor % self.num_data_ranks

    def part(self, rank: int) -> int:
        """Return which part of a replica a process has: processes with the same part have equal parameters, each in its replica."""
        of_a_stage = self.shard * self.tensor
        return rank // (of_a_stage * self.data) * of_a_stage + rank % of_a_stage

    def words(self) -> str:
        """Return the layout for people: `data 2 x shard 4`, with `x tensor 2 x pipeline 2` where these are used."""
        extra = "".join(f" x {name} {size}" for name, size in (("tensor", self.tensor), ("pipeline", self.pipeline)) if size > 1)
        return f"data {self.data} x shard {self.shard}{extra}"

    def sizes(self) -> dict[str, int]:
        """Return the sizes that are not 1, by name: what a checkpoint's identity says of a layout."""
        sizes = {"data": self.data, "shard": self.shard, "tensor": self.tensor, "pipeline": self.pipeline}
        return {name: size for name, size in sizes.items() if size > 1}


def fitted(*, shard: int, world_size: int, tensor: int = 1, pipeline: int = 1) -> Layout:
    """Return the layout of a number of processes that may be smaller than planned: an elastic training continues with what is left.

    Each size becomes the greatest common divisor of what was planned and what is there: tensor first, then stages, then shards. The rest
    are replicas.
    """
    tensor = math.gcd(tensor, world_size)
    left = world_size // tensor
    pipeline = math.gcd(pipeline, left)
    left //= pipeline
    shard = math.gcd(shard, left)
    return Layout(data=left // shard, shard=shard, tensor=tensor, pipeline=pipeline)
