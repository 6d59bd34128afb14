"""What FSDP2 gathers one at a time, and models that it cannot divide."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.unit.training.engine.parallel.ranks import run_mortal_ranks, run_ranks
from tests.unit.training.large.tiny_transformer import LENGTH, VOCABULARY, WIDTH, Block, global_batch
from training.data.dataset.loader import Batch, cut
from training.engine.parallel.ddp import ReplicatedModel
from training.engine.parallel.gang import Gang
from training.errors import SpecError
from training.large.sharded import ShardedModel, blocks_of
from training.spec.layout import Layout

KIB = 1024


class Derived(nn.Linear):
    """Its weight may be read by what surrounds it."""


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.large = nn.Embedding(512, 8)
        self.small = nn.Embedding(16, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.inner = nn.ModuleDict({"large": nn.Linear(8, 512), "derived": Derived(8, 512)})
        self.first, self.second = nn.Embedding(512, 8), nn.Linear(8, 512, bias=False)
        self.second.weight = self.first.weight


def test_blocks_and_large_layers_are_gathered_alone_and_what_shares_a_weight_is_not() -> None:
    parts = Parts()
    assert list(blocks_of(parts, 64, 16 * KIB)) == [parts.large, *parts.blocks, parts.inner["large"]]
    assert list(blocks_of(parts, 64, 19 * KIB)) == [*parts.blocks]


def test_block_that_shares_a_weight_with_a_layer_outside_of_it_is_not_gathered_alone() -> None:
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)) for _ in range(4))
    blocks[0][1].weight = blocks[0][0].weight  # type: ignore[index]
    blocks[3][0].weight = blocks[1][0].weight  # type: ignore[index]
    assert list(blocks_of(nn.ModuleDict({"blocks": blocks}), 64, 64)) == [blocks[0], blocks[2]]


def test_block_that_stands_at_several_places_is_gathered_as_one() -> None:
    block = nn.Linear(8, 8)
    assert list(blocks_of(nn.ModuleDict({"blocks": nn.ModuleList([block, block])}), 64, 64)) == [block]


class Tied(nn.Module):
    """Predicts by the embedding's own weights; by one of three ways to reach them, and without its second block in some calls."""

    def __init__(self, head: str, skips: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head: nn.Linear | None = None
        if head == "shared":
            self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
            self.head.weight = self.embedding.weight
        self.skips = skips
        self.calls = 0

    def forward(self, batch: Batch) -> torch.Tensor:
        self.calls += 1
        states = self.embedding(batch["features_int"])
        for block in self.blocks if self.calls % 2 or not self.skips else self.blocks[:1]:
            states = block(states)
        logits: torch.Tensor = nn.functional.linear(states, self.embedding.weight) if self.head is None else self.head(states)
        return logits.mean(dim=(1, 2))


def squares(module: nn.Module, batch: Batch) -> torch.Tensor:
    return ((module(batch) - batch["label"]) ** 2).sum()


def first_step(gang: Gang, head: str, layout: Layout, skips: bool) -> list[float] | list[str]:
    """Return the sums of the gradients of all parameters, or the codes of the problems."""
    strategy = ShardedModel(gang, layout, min_block_bytes=KIB, min_alone_bytes=KIB)
    torch.manual_seed(3)
    parameters = strategy.place(Tied(head, skips))
    batch = global_batch(0)
    share = cut(batch, strategy.num_data_ranks)[strategy.data_rank]
    try:
        strategy.backward(cut(share, 2), squares, len(batch["label"]))
    except SpecError as err:
        return [problem.code for problem in err.problems]
    return [float(parameter.grad.full_tensor().sum()) for parameter in parameters.values()]  # type: ignore[union-attr]


def test_layers_that_share_a_weight_have_the_gradients_of_one_process(tmp_path: Path) -> None:
    torch.manual_seed(3)
    alone = Tied("shared")
    batch = global_batch(0)
    (squares(alone, batch) / len(batch["label"])).backward()
    expected = [float(parameter.grad.sum()) for parameter in alone.parameters()]  # type: ignore[union-attr]
    for found in run_ranks(first_step, 2, tmp_path, "shared", Layout(shard=2), False):
        assert found == pytest.approx(expected, abs=1e-4)


def test_weight_that_is_read_outside_of_its_layer_is_refused_with_what_to_do(tmp_path: Path) -> None:
    assert run_ranks(first_step, 2, tmp_path, "weight", Layout(shard=2), False) == [["parallel.used_outside"]] * 2


def test_block_that_the_last_micro_batch_leaves_out_is_refused_where_replicas_would_differ(tmp_path: Path) -> None:
    assert run_ranks(first_step, 2, tmp_path / "two", "shared", Layout(data=2), True) == [["parallel.unused_block"]] * 2
    assert all(len(found) > 10 for found in run_ranks(first_step, 2, tmp_path / "one", "shared", Layout(shard=2), True))


class Branching(nn.Module):
    """Two layers of the same shape, of which each forward pass uses one: which one, its rows say."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.ModuleList(nn.Linear(LENGTH, 1) for _ in range(2))])

    def forward(self, batch: Batch) -> torch.Tensor:
        states = batch["features_int"].float()
        branch = self.blocks[0][0 if batch["label"].sum() > 0 else 1]  # type: ignore[index]
        return branch(states).squeeze(1)


def branched(gang: Gang, labels: list[list[float]]) -> list[str]:
    """Return the codes of the problems; one list of labels for each micro-batch, a row for each process."""
    strategy = ShardedModel(gang, Layout(shard=2))
    strategy.place(Branching())
    rows = [torch.tensor([values[gang.rank]]) for values in labels]
    batches = [{"features_int": torch.ones(1, LENGTH, dtype=torch.int32), "label": row} for row in rows]
    try:
        strategy.backward(batches, squares, 2 * len(labels))
    except SpecError as err:
        return [problem.code for problem in err.problems]
    return []


@pytest.mark.parametrize("labels", [[[1.0, -1.0]], [[1.0, -1.0], [-1.0, 1.0]]], ids=["one micro-batch", "and turned round"])
def test_layers_that_one_process_alone_uses_are_refused(labels: list[list[float]], tmp_path: Path) -> None:
    assert run_ranks(branched, 2, tmp_path, labels) == [["parallel.unused_block"]] * 2


def test_layers_that_all_processes_use_in_turn_are_trained(tmp_path: Path) -> None:
    assert run_ranks(branched, 2, tmp_path, [[1.0, 1.0], [-1.0, -1.0]]) == [[], []]


class Scaled(nn.Module):
    """Has a parameter without a dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(LENGTH, 1)
        self.scale = nn.Parameter(torch.tensor(1.0))


def test_parameter_without_a_dimension_is_refused_before_a_process_waits_for_another() -> None:
    with pytest.raises(SpecError, match=r"parallel\.scalar.*scale"):
        ShardedModel(Gang(0, 2, torch.device("cpu")), Layout(shard=2)).place(Scaled())


class HalfUsed(nn.Module):
    """Its second layer is used by no row, or by the rows of the first process alone."""

    def __init__(self, *, by_some: bool) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(LENGTH, 1), nn.Linear(LENGTH, 1)
        self.by_some = by_some

    def forward(self, batch: Batch) -> torch.Tensor:
        states = batch["features_int"].float()
        total = self.used(states) + self.unused(states) if self.by_some and batch["label"][0] > 0 else self.used(states)
        return total.squeeze(1)


def problems_of_replicas(gang: Gang, by_some: bool) -> list[str]:
    strategy = ReplicatedModel(gang)
    strategy.place(HalfUsed(by_some=by_some))
    batch = {"features_int": torch.ones(1, LENGTH, dtype=torch.int32), "label": torch.tensor([1.0 - 2.0 * gang.rank])}
    try:
        strategy.backward([batch], squares, 2)
    except SpecError as err:
        return [str(err)]
    return []


@pytest.mark.parametrize("by_some", [False, True], ids=["by no row", "by the first process"])
def test_replicas_without_gradients_of_a_layer_end_before_the_optimizer_uses_the_others(by_some: bool, tmp_path: Path) -> None:
    found = run_mortal_ranks(problems_of_replicas, 2, tmp_path, by_some)
    # A process that has all its gradients waits for those of the other one, which has ended.
    for answer in found[1:] if by_some else found:
        assert "parallel.unused_block" in answer[0]
        assert "unused.weight" in answer[0]
