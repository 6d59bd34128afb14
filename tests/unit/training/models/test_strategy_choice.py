"""Which strategy a layout gets, and what it cannot do without."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from training.engine.parallel.ddp import ReplicatedModel
from training.engine.parallel.gang import Gang
from training.engine.parallel.single_process import Alone
from training.large.pipeline import PipelinedModel
from training.large.sharded import ShardedModel
from training.models.strategy_choice import strategy_for
from training.spec.layout import Layout

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("layout", "strategy"),
    [
        (None, ReplicatedModel),
        (Layout(data=2), ReplicatedModel),
        (Layout(shard=2), ShardedModel),
        (Layout(tensor=2), ShardedModel),
        (Layout(pipeline=2), PipelinedModel),
    ],
    ids=str,
)
def test_layout_has_the_strategy_that_divides_a_model_so(layout: Layout | None, strategy: type) -> None:
    found = strategy_for(
        Gang(0, 2, CPU), precision="fp32", layout=layout, tensor_plan=lambda _: {}, cut=lambda *_: [nn.Identity(), nn.Identity()]
    )
    assert type(found) is strategy


@pytest.mark.parametrize(("layout", "needs"), [(Layout(tensor=2), "needs a tensor plan"), (Layout(pipeline=2), "needs a cut")], ids=str)
def test_layout_that_needs_a_plan_of_the_model_is_refused_without_one(layout: Layout, needs: str) -> None:
    with pytest.raises(ValueError, match=needs):
        strategy_for(Gang(0, 2, CPU), precision="fp32", layout=layout)


def test_gang_of_a_family_without_torch_is_refused() -> None:
    with pytest.raises(TypeError, match="trains in a Gang, not in a Alone"):
        strategy_for(Alone(), precision="fp32")
