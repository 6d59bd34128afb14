"""Buffers of replicas, such as the means of batch norms: a forward pass changes them by the rows of its process alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn


def saved_buffers(module: nn.Module) -> list[torch.Tensor]:
    """Return the buffers that are part of a module's state; a buffer that others have too is there once."""
    kept = {id(tensor) for tensor in module.state_dict(keep_vars=True).values()}
    return [buffer for buffer in module.buffers() if id(buffer) in kept]


def take_from_first(buffers: Sequence[torch.Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Give buffers the values that the first process of a group has, in one message: as DDP does before each step.

    So all processes begin a step as one that resumes there does: a checkpoint has the buffers of the first one.

    Args:
        buffers: the same number with the same shapes on every process.
        group: None: all processes.
    """
    if not buffers:
        return
    with torch.no_grad():
        parts = [buffer.contiguous().reshape(-1).view(torch.uint8) for buffer in buffers]
        cells = torch.cat(parts)
        dist.broadcast(cells, group=group, group_src=0)
        for buffer, part in zip(buffers, torch.split(cells, [len(part) for part in parts]), strict=True):
            # A copy: numbers of some bytes must begin at a multiple of them.
            buffer.copy_(part.clone().view(buffer.dtype).reshape(buffer.shape))
