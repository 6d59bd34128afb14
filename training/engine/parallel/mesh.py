"""The processes of a gang as a grid: one torch DeviceMesh, whose dimensions are those of a layout."""

from __future__ import annotations

from typing import Final

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from training.engine.parallel.gang import Gang
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
    with gang.collectives():
        return init_device_mesh(gang.device.type, sizes, mesh_dim_names=(PIPELINE, DATA, SHARD, TENSOR))
