"""The processes of a gang as a grid: one torch DeviceMesh, whose dimensions are those of a layout."""

from __future__ import annotations

from typing import Any, Final

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from training.engine.parallel.gang import Gang, collective_timeout
from training.spec.layout import Layout

PIPELINE: Final = "pipeline"
DATA: Final = "data"
SHARD: Final = "shard"
TENSOR: Final = "tensor"


def mesh_of(gang: Gang, layout: Layout) -> DeviceMesh:
    """Return the grid of all processes, with all four dimensions; ranks of one tensor group are neighbours. All processes must call it.

    Raises:
        ValueError: the layout is of another number of processes.
        PeerLostError: another process is lost.
    """
    if layout.world_size != gang.world_size:
        raise ValueError(f"the layout {layout.words()} has {layout.world_size} processes, the gang {gang.world_size}")
    sizes = (layout.pipeline, layout.data, layout.shard, layout.tensor)
    names = (PIPELINE, DATA, SHARD, TENSOR)
    with gang.collectives():
        return init_device_mesh(gang.device.type, sizes, mesh_dim_names=names, backend_override=_with_time_limit(names))


def _with_time_limit(names: tuple[str, ...]) -> dict[int | str, Any] | None:
    """Return the options of a mesh's groups: those of a part of the processes would have torch's own limit of 30 minutes."""
    backend = dist.get_backend()
    if backend == "gloo":
        options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    elif backend == "nccl":
        options = dist.ProcessGroupNCCL.Options()
    else:
        return None
    options._timeout = collective_timeout()
    return dict.fromkeys(names, (backend, options))
