"""Activation checkpointing: which blocks compute twice, and that losses, gradients and weights keep their bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import nn

from tests.unit.training.engine.loop_bench import LoopBench, outcome
from tests.unit.training.engine.parallel.ranks import run_ranks
from tests.unit.training.large.tiny_transformer import TinyTransformer, squares, train
from tests.unit.training.models.family_bench import FamilyBench
from training.data.dataset.loader import Batch
from training.engine.activations import checkpoint_activations, repeated_blocks
from training.engine.parallel.gang import Gang
from training.errors import SpecError
from training.models.base import FitResult
from training.models.strategy_choice import strategy_for
from training.models.torch_family import TorchArchitecture, TorchFamily
from training.spec.layout import Layout

Mode = Literal["none", "selective", "full"]
MODES: Any = ("none", "selective", "full")


class Block(nn.Module):
    """Counts its forward passes; its dropout draws random numbers."""

    def __init__(self, width: int, calls: list[int]) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(0.25))
        self.calls = calls

    def forward(self, cells: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        self.calls.append(1)
        output: torch.Tensor = cells + scale * self.layers(cells)
        return output


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.calls: list[int] = []
        self.first = nn.Linear(1, 8)
        self.blocks = nn.ModuleList(Block(8, self.calls) for _ in range(4))
        self.head = nn.Linear(8, 1)

    def forward(self, batch: Batch) -> torch.Tensor:
        cells = self.first(batch["features_float"])
        for block in self.blocks:
            cells = block(cells, scale=0.5)
        output: torch.Tensor = self.head(cells).squeeze(1)
        return output


def stack(mode: Mode) -> Stack:
    module = Stack()
    checkpoint_activations(list(repeated_blocks(module)), mode)
    return module


def gradients(mode: Mode, precision: torch.dtype | None = None) -> tuple[float, dict[str, list[Any]]]:
    module = stack(mode)
    torch.manual_seed(7)
    cells = torch.randn(6, 1)
    with torch.autocast("cpu", dtype=precision or torch.bfloat16, enabled=precision is not None):
        loss = module({"features_float": cells}).square().sum()
    loss.backward()
    return float(loss.detach()), {
        name: parameter.grad.tolist() for name, parameter in module.named_parameters() if parameter.grad is not None
    }


@pytest.mark.parametrize("mode", ["selective", "full"])
@pytest.mark.parametrize("precision", [None, torch.bfloat16])
def test_loss_and_gradients_have_the_bits_of_kept_activations(mode: Mode, precision: torch.dtype | None) -> None:
    expected = gradients("none", precision)
    assert len(expected[1]) == 12
    assert gradients(mode, precision) == expected


@pytest.mark.parametrize("mode", ["selective", "full"])
def test_training_has_the_bits_of_kept_activations(bench: LoopBench, tmp_path: Path, mode: Mode) -> None:
    expected = outcome(LoopBench(tmp_path / "kept").train(stack("none")))
    assert outcome(bench.train(stack(mode))) == expected


@pytest.mark.parametrize(("mode", "passes"), [("none", 4), ("selective", 6), ("full", 8)])
def test_blocks_compute_again_in_the_backward_pass_and_never_in_validation(mode: Mode, passes: int) -> None:
    module = stack(mode)
    batch = {"features_float": torch.ones(3, 1)}
    module(batch).sum().backward()
    assert len(module.calls) == passes
    module.calls.clear()
    with torch.no_grad():
        module(batch)
    assert len(module.calls) == 4


def kept_bytes(mode: Mode) -> int:
    """Return the bytes that the forward pass keeps for the backward pass, besides inputs of blocks that are computed again."""
    kept: list[int] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.nbytes)
        return tensor

    module = stack(mode)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        module({"features_float": torch.ones(64, 1)})
    return sum(kept)


def test_fewer_activations_are_kept_with_more_blocks_computed_again() -> None:
    none, selective, full = (kept_bytes(mode) for mode in MODES)
    assert full < none / 2
    assert selective == pytest.approx((none + full) / 2)


def test_names_of_parameters_stay() -> None:
    assert list(stack("full").state_dict()) == list(stack("none").state_dict())


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(3, 2)])
        self.stages = nn.ModuleList(nn.Sequential(Block(2, []), Block(2, [])) for _ in range(2))
        self.tail = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()))


def test_blocks_are_members_of_containers_with_several_layers() -> None:
    module = Nested()
    names = {id(part): name for name, part in module.named_modules()}
    found = [names[id(block)] for block in repeated_blocks(module)]
    assert found == ["stages.0.0", "stages.0.1", "stages.1.0", "stages.1.1", "tail.1"]


def test_model_of_single_layers_has_no_blocks_and_is_refused() -> None:
    module = nn.ModuleDict({"perceptron": nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))})
    with pytest.raises(SpecError, match="it has no ModuleList or Sequential of several layers each") as caught:
        checkpoint_activations(list(repeated_blocks(module)), "full")
    (problem,) = caught.value.problems
    assert (problem.code, problem.hint) == (
        "activations.blocks",
        "remove the key, or return the blocks from the method blocks of your class",
    )


def test_block_with_running_statistics_is_left_out() -> None:
    normed, plain = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    assert checkpoint_activations([normed, plain], "full") == 1
    assert "forward" in vars(plain)
    assert "forward" not in vars(normed)
    with pytest.raises(SpecError, match="each of its 1 blocks has a batch norm"):
        checkpoint_activations([normed], "full")


def digests(gang: Gang, layout: Layout) -> list[str]:
    found = []
    for mode in MODES:
        strategy = strategy_for(gang, precision="fp32", layout=layout)
        place = strategy.place

        def checkpointed(module: nn.Module, place: Any = place, mode: Mode = mode) -> Any:
            checkpoint_activations(list(repeated_blocks(module)), mode)
            return place(module)

        strategy.place = checkpointed  # type: ignore[method-assign]
        vars(strategy).update({"_min_block_bytes": 1024} if layout.shard > 1 else {})
        found.append(train(strategy, steps=4, micro_batches=2).digest)
    return found


@pytest.mark.parametrize("layout", [Layout(data=2), Layout(shard=2)], ids=Layout.words)
def test_layouts_of_two_processes_keep_their_bits(layout: Layout, tmp_path: Path) -> None:
    found = run_ranks(digests, 2, tmp_path, layout)
    assert [len(set(member)) for member in found] == [1, 1]


class Transformer(TorchFamily):
    """A class of a user's own, over the columns of the bench."""

    def __init__(self) -> None:
        self.built: list[TinyTransformer] = []

    def build(self, architecture: TorchArchitecture) -> nn.Module:
        self.built.append(module := TinyTransformer())
        return module

    def loss(self, module: nn.Module, batch: Batch) -> torch.Tensor:
        return squares(module, batch)


class OneBlock(Transformer):
    def blocks(self, module: nn.Module) -> list[nn.Module]:
        return [module.get_submodule("blocks.1")]


def fitted(family: TorchFamily, folder: Path, mode: Mode) -> FitResult:
    context = FamilyBench(folder, "binary").fit_context("ranker", epochs=1, batch_size=32, activation_checkpointing=mode)
    try:
        return family.fit(context)
    finally:
        context.checkpoints.close()


def test_family_checkpoints_the_blocks_that_it_names(tmp_path: Path) -> None:
    families = [Transformer(), Transformer(), OneBlock()]
    modes: list[Mode] = ["none", "full", "full"]
    results = [fitted(family, tmp_path / str(n), mode) for n, (family, mode) in enumerate(zip(families, modes, strict=True))]
    assert len({result.weights for result in results}) == 1
    wrapped = [["forward" in vars(block) for block in family.built[0].blocks] for family in families]
    assert wrapped == [[False, False], [True, True], [False, True]]
