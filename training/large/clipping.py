"""Clipping of gradients that are divided over processes.

torch's own `clip_grad_norm_` raises where parameters lie on different meshes, and gives each stage of a pipeline another norm. Here each
process adds up the squares of the gradients that it holds; the sums are reduced over the mesh of each gradient, once for each dimension
that divides it, and the gradients are scaled in place. What several processes hold alike is counted once.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Partial, Replicate, Shard, _StridedShard

EPSILON = 1e-6
"""As torch's clipping has it, so that the scale of a norm at the limit is the same."""

Divided = tuple[DeviceMesh, tuple[int, ...]]
"""A mesh, and its dimensions that divide a gradient."""


def local_gradients(parameters: Iterable[torch.nn.Parameter]) -> list[tuple[torch.Tensor, Divided | None]]:
    """Return this process's part of each gradient, and what divides it; None: the process has all of it.

    Raises:
        TypeError: a gradient is not yet summed over its mesh, or placed in a way that this does not know.
    """
    found: list[tuple[torch.Tensor, Divided | None]] = []
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None:
            continue
        if not isinstance(gradient, DTensor):
            found.append((gradient, None))
            continue
        placements = gradient.placements
        if any(isinstance(placement, Partial) for placement in placements):
            raise TypeError(f"a gradient is placed as {placements}: it is not summed over its mesh")
        if not all(isinstance(placement, Shard | _StridedShard | Replicate) for placement in placements):
            raise TypeError(f"a gradient is placed as {placements}: only Shard and Replicate are known")
        divided = tuple(number for number, placement in enumerate(placements) if not isinstance(placement, Replicate))
        found.append((gradient.to_local(), (gradient.device_mesh, divided) if divided else None))
    return found


def clip_divided_gradients(
    parameters: Iterable[torch.nn.Parameter], max_norm: float, *, device: torch.device, stages: dist.ProcessGroup | None = None
) -> float:
    """Scale gradients down to `max_norm` where the norm over the whole model is larger; return the norm before.

    Args:
        parameters: that this process updates: plain ones, and DTensors on any meshes.
        max_norm: the largest norm.
        device: what collectives run on.
        stages: group of the processes that hold the other parts of the model, whose parameters are others; None: there are none.

    Raises:
        TypeError: see `local_gradients`.
    """
    gradients = local_gradients(parameters)
    total = torch.zeros((), dtype=torch.float64, device=device)
    for squares, divided in _squares(gradients, device):
        if divided is not None:
            mesh, dimensions = divided
            for dimension in dimensions:
                dist.all_reduce(squares, group=mesh.get_group(dimension))
        total += squares
    if stages is not None:
        dist.all_reduce(total, group=stages)
    norm = float(total.sqrt())
    scale = max_norm / (norm + EPSILON)
    parts = [gradient for gradient, _ in gradients]
    if scale < 1.0 and parts:
        torch._foreach_mul_(parts, scale)
    return norm


def _squares(gradients: list[tuple[torch.Tensor, Divided | None]], device: torch.device) -> list[tuple[torch.Tensor, Divided | None]]:
    """Return the sum of squares, float64, of all gradients that are divided alike, in the order in which the model first has them."""
    alike: dict[Divided | None, list[torch.Tensor]] = {}
    for gradient, divided in gradients:
        alike.setdefault(divided, []).append(gradient)
    sums: list[tuple[torch.Tensor, Divided | None]] = []
    for divided, parts in alike.items():
        # An empty part has the norm 0, and processes must meet in the same collectives.
        norms = torch._foreach_norm([part for part in parts if part.numel()]) if any(part.numel() for part in parts) else ()
        squares = torch.zeros((), dtype=torch.float64, device=device)
        for norm in norms:
            squares += norm.double() ** 2
        sums.append((squares, divided))
    return sums
