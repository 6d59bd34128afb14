"""What strategies have in common whose processes have parts of one model: all of them save, each its own part."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import nn

from training.engine.parallel.gang import Gang
from training.spec.layout import Layout


class DividedModel:
    """The members of a strategy (`training.engine.parallel.strategy`) that follow from gang and layout."""

    saves = True
    is_sharded = True
    # The lost process had a part that the others may lack.
    can_rescue = False

    def __init__(self, gang: Gang, layout: Layout, *, precision: str) -> None:
        self.gang = gang
        self._layout = layout
        self.precision = precision
        self._module: nn.Module = nn.Identity()
        self._parameters: dict[str, nn.Parameter] = {}

    @property
    def data_rank(self) -> int:
        return self._layout.data_rank(self.gang.rank)

    @property
    def num_data_ranks(self) -> int:
        return self._layout.num_data_ranks

    def part(self, rank: int) -> int:
        return self._layout.part(rank)

    def agree(self, *flags: bool) -> list[bool]:
        with self.gang.collectives():
            cells = torch.tensor(flags, dtype=torch.uint8, device=self.gang.device)
            dist.all_reduce(cells, op=dist.ReduceOp.MAX)
        return [bool(cell) for cell in cells.tolist()]

    def state(self) -> dict[str, torch.Tensor]:
        return dict(self._module.state_dict())

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        own = self.state()
        with torch.no_grad():
            for name, tensor in state.items():
                own[name].copy_(tensor)

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self.state().items()}
