"""Whole tensors from what processes have of them, and back; layers that are divided over a tensor group may be sharded besides."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Replicate


def gathered(tensor: DTensor) -> torch.Tensor:
    """Return the whole tensor, on every process; all processes of its mesh must call it."""
    placements = list(tensor.placements)
    # One dimension after another, the shards before the parts of layers that they are shards of: torch warns of both at once.
    for dimension, placement in enumerate(placements):
        if not isinstance(placement, Replicate):
            placements[dimension] = Replicate()
            tensor = tensor.redistribute(placements=placements)
    return tensor.to_local()


def part_of(whole: torch.Tensor, like: DTensor) -> DTensor:
    """Return a tensor that every process has all of, divided as another one; nothing is sent."""
    found = DTensor.from_local(whole, like.device_mesh, [Replicate()] * like.device_mesh.ndim, run_check=False)
    return found.redistribute(placements=like.placements)
