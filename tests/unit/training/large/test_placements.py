"""Parts of tensors as FSDP2 makes them of divided layers, also where rows cannot be divided evenly: put together, and taken again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from tests.unit.training.engine.parallel.ranks import run_ranks
from training.engine.parallel.gang import Gang
from training.large.placements import gathered, part_of
from training.large.sharded import ShardedModel
from training.large.tensor_plan import TensorPlan
from training.spec.layout import Layout

PLAN: TensorPlan = {"up": "column", "down": "row", "norm": "sequence", "embedding": "row"}


class Model(nn.Module):
    """Parts of 5 rows, which two shards do not divide evenly; of 7, with fewer rows than 8 processes."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm, self.embedding = nn.Linear(6, 10), nn.Linear(10, 7), nn.LayerNorm(7), nn.Embedding(10, 3)


def differing(gang: Gang, layout: Layout) -> list[str]:
    """Return what is not put together to the whole, or taken from it as it is placed."""
    torch.manual_seed(0)
    module = Model()
    whole = {name: tensor.detach().clone() for name, tensor in module.named_parameters()}
    found = []
    for name, parameter in ShardedModel(gang, layout, tensor_plan=lambda _: PLAN).place(module).items():
        assert isinstance(parameter, DTensor)
        found += [] if torch.equal(gathered(parameter.detach()), whole[name]) else [f"{name} put together"]  # type: ignore[arg-type]
        part = part_of(whole[name], parameter)
        is_same = part.placements == parameter.placements and torch.equal(part.to_local(), parameter.to_local())
        found += [] if is_same else [f"{name} taken"]
    return found


@pytest.mark.parametrize("layout", [Layout(shard=2, tensor=2), Layout(data=2, tensor=2), Layout(shard=4, tensor=2)], ids=Layout.words)
def test_parts_make_up_the_whole_and_the_whole_the_parts(layout: Layout, tmp_path: Path) -> None:
    assert run_ranks(differing, layout.world_size, tmp_path, layout) == [[]] * layout.world_size
