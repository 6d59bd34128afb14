"""Stages of a pipeline: number formats, optimizers, random numbers, buffers, lost stages, wrong cuts."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.training.engine.parallel.ranks import Ended, run_mortal_ranks, run_ranks
from tests.unit.training.large.tiny_transformer import (
    VOCABULARY,
    WIDTH,
    FirstStage,
    LastStage,
    TinyTransformer,
    Trained,
    alone,
    global_batch,
    squares,
    stages_of,
    train,
)
from training.data.dataset.loader import Batch, cut
from training.engine.activations import checkpoint_activations
from training.engine.optimizers import hidden_matrices
from training.engine.parallel.gang import COLLECTIVE_LIMIT, Gang
from training.errors import PeerLostError, SpecError
from training.large.pipeline import PipelinedModel, ScheduleName
from training.large.pipeline_cut import names_of_stages
from training.models.strategy_choice import strategy_for
from training.spec.layout import Layout

TWO = Layout(pipeline=2)
HIDDEN = hidden_matrices(TinyTransformer())


def largest_differences(found: Trained, expected: Trained) -> tuple[float, float]:
    """Return the largest difference of a loss, and of a weight."""
    losses = max(abs(one - other) for one, other in zip(found.losses, expected.losses, strict=True))
    pairs = ((one, other) for name, values in expected.weights.items() for one, other in zip(found.weights[name], values, strict=True))
    return losses, max(abs(one - other) for one, other in pairs)


# --- Number formats, optimizers, activation checkpointing


def trained_with(gang: Gang, precision: str, options: dict[str, Any]) -> Trained:
    return train(PipelinedModel(gang, TWO, cut=stages_of, precision=precision), micro_batches=4, **options)


LIMITS = {"sgd": (2e-7, 1e-7), "muon": (1.5e-4, 1.5e-3)}
"""Of a loss and of a weight: three to four times of what was measured. Muon computes its update in bf16."""


@pytest.mark.parametrize("name", ["sgd", "muon"])
def test_each_optimizer_updates_stages_as_one_process_does(name: str, tmp_path: Path) -> None:
    found = run_ranks(trained_with, 2, tmp_path, "fp32", {"name": name, "muon": HIDDEN})
    loss, weight = largest_differences(found[0], alone(micro_batches=4, name=name, muon=HIDDEN))
    assert loss < LIMITS[name][0]
    assert weight < LIMITS[name][1]
    assert found[0].norms == found[1].norms


@pytest.mark.parametrize(("precision", "limit"), [("bf16", 0.01), ("fp16", 0.002)])
def test_half_precision_reaches_the_losses_of_fp32(precision: str, limit: float, tmp_path: Path) -> None:
    found = run_ranks(trained_with, 2, tmp_path, precision, {})
    loss, _ = largest_differences(found[0], alone(micro_batches=4))
    assert 0 < loss < limit
    assert found[0].losses == found[1].losses
    assert found[0].norms == found[1].norms


def gradients_in_blocks(gang: Gang, mode: Any) -> tuple[list[float], int]:
    strategy = PipelinedModel(gang, TWO, cut=stages_of)
    torch.manual_seed(5)
    module = TinyTransformer()
    checkpoint_activations(list(module.blocks), mode)
    calls: list[int] = []
    parameters = strategy.place(module)
    strategy.summed_loss([global_batch(0)], squares)
    module.blocks[gang.rank].up.register_forward_hook(lambda *_: calls.append(1))  # type: ignore[operator, union-attr]
    strategy.backward(cut(global_batch(0), 4), squares, 16)
    return [float(parameter.grad.norm()) for parameter in parameters.values() if parameter.grad is not None], len(calls)


def test_activations_of_stages_are_computed_again_with_the_same_bits(tmp_path: Path) -> None:
    kept, again = (run_ranks(gradients_in_blocks, 2, tmp_path / mode, mode) for mode in ("none", "full"))
    assert [calls for _, calls in kept] == [4, 4]
    assert [calls for _, calls in again] == [8, 8]
    assert [gradients for gradients, _ in again] == [gradients for gradients, _ in kept]


# --- What belongs to one stage: memory, random numbers, buffers


class Dropping(nn.Module):
    """Two layers of the same shape that drop and normalize; remembers what was left."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.drops = nn.ModuleList(nn.Dropout(0.5) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm1d(WIDTH) for _ in range(2))
        self.kept: list[list[bool]] = []

    def half(self, number: int, states: torch.Tensor) -> torch.Tensor:
        self.kept.append([bool(value) for value in self.drops[number](torch.ones_like(states)).flatten()])
        output: torch.Tensor = self.norms[number](states)
        return output


class FirstHalf(nn.Module):
    def __init__(self, module: Dropping) -> None:
        super().__init__()
        self.embedding, self.norm = module.embedding, module.norms[0]
        self._half = module.half

    def forward(self, batch: Batch) -> torch.Tensor:
        return self._half(0, self.embedding(batch["features_int"]).mean(dim=1))


class LastHalf(nn.Module):
    def __init__(self, module: Dropping) -> None:
        super().__init__()
        self.norm, self._half = module.norms[1], module.half

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self._half(1, states).sum(dim=1)


def halves(module: nn.Module, num_stages: int) -> list[nn.Module]:
    assert isinstance(module, Dropping)
    return [FirstHalf(module), LastHalf(module)]


def observed(gang: Gang, schedule: ScheduleName, layout: Layout) -> tuple[list[list[bool]], dict[str, list[float]], int]:
    """Return what was kept of a step, the buffers after a validation, and the bytes of all parameters that the process has."""
    module = Dropping()
    strategy = PipelinedModel(gang, layout, cut=halves, schedule=schedule)
    strategy.place(module)
    torch.manual_seed(7)
    strategy.backward(cut(cut(global_batch(0), layout.data)[strategy.data_rank], 4), squares, 16)
    kept = module.kept[1:]
    strategy.summed_loss(cut(global_batch(1), 2), squares)
    buffers = {name: tensor.flatten().tolist() for name, tensor in strategy.state().items() if "running" in name or "num_" in name}
    return kept, buffers, sum(parameter.numel() for parameter in module.parameters())


def test_stages_draw_their_own_random_numbers_the_same_in_both_schedules(tmp_path: Path) -> None:
    found = [run_ranks(observed, 2, tmp_path / schedule, schedule, TWO) for schedule in ("gpipe", "1f1b")]
    assert found[0] == found[1]
    first, last = (kept for kept, _, _ in found[0])
    assert len(first) == len(last) == 4, "what finds out the sizes is not counted"
    assert first[0] != first[1]
    pairs = list(zip(itertools.chain(*first), itertools.chain(*last), strict=True))
    assert 0.4 < sum(one == other for one, other in pairs) / len(pairs) < 0.6


def test_process_keeps_the_values_and_buffers_of_its_stage_alone(tmp_path: Path) -> None:
    first, last = run_ranks(observed, 2, tmp_path, "1f1b", TWO)
    assert (first[2], last[2]) == (VOCABULARY * WIDTH + 2 * WIDTH, 2 * WIDTH)
    assert (first[1]["norms.0.num_batches_tracked"], last[1]["norms.1.num_batches_tracked"]) == ([4], [4])
    assert set(first[1]) == {f"norms.0.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")}


def test_replicas_validate_and_save_the_buffers_of_the_first_one(tmp_path: Path) -> None:
    found = [buffers for _, buffers, _ in run_ranks(observed, 4, tmp_path, "1f1b", Layout(data=2, pipeline=2))]
    assert found[0] == found[1]
    assert found[2] == found[3]
    assert found[0].keys() != found[2].keys()


def validated(gang: Gang, layout: Layout) -> tuple[float, float]:
    """Return the loss before any step, and that of the next step."""
    strategy = strategy_for(gang, precision="fp32", layout=layout, cut=stages_of)
    torch.manual_seed(5)
    strategy.place(TinyTransformer())
    shares = [cut(global_batch(step, rows), layout.num_data_ranks)[strategy.data_rank] for step, rows in enumerate((16, 5, 1))]
    loss = strategy.summed_loss(iter(shares), squares)
    return loss, float(strategy.backward([shares[0]], squares, 16))


@pytest.mark.parametrize("layout", [TWO, Layout(data=2, pipeline=2)], ids=Layout.words)
def test_validation_goes_through_the_stages_and_every_process_knows_its_loss(layout: Layout, tmp_path: Path) -> None:
    (expected, step), *_ = run_ranks(validated, 1, tmp_path / "one", Layout())
    found = run_ranks(validated, layout.world_size, tmp_path / "stages", layout)
    assert {loss for loss, _ in found} == {found[0][0]}
    assert found[0][0] == pytest.approx(expected, rel=1e-6)
    # Of the shares, once each.
    assert sum(loss for _, loss in found[: layout.data]) == pytest.approx(step, rel=1e-6)


class KeptInEvaluation(Dropping):
    """Its batch norms stay as they are in training too: what fine-tuning does with those of a trained model."""

    def train(self, mode: bool = True) -> KeptInEvaluation:
        super().train(mode)
        self.norms.eval()
        return self


def modes_after_validation(gang: Gang) -> tuple[list[bool], list[bool]]:
    module = KeptInEvaluation()
    strategy = PipelinedModel(gang, TWO, cut=halves)
    strategy.place(module)
    module.train()
    strategy.summed_loss([global_batch(0)], squares)
    return [norm.training for norm in module.norms], [drop.training for drop in module.drops]


def test_layers_that_the_model_keeps_in_evaluation_mode_stay_in_it_after_a_validation(tmp_path: Path) -> None:
    assert run_ranks(modes_after_validation, 2, tmp_path) == [([False, False], [True, True])] * 2


class Frozen(TinyTransformer):
    def __init__(self) -> None:
        super().__init__()
        self.embedding.requires_grad_(False)
        self.blocks[0].requires_grad_(False)


def gradients_of_frozen(gang: Gang) -> list[str]:
    strategy = PipelinedModel(gang, TWO, cut=stages_of)
    parameters = strategy.place(Frozen())
    for _ in range(2):
        strategy.backward(cut(global_batch(0), 4), squares, 16)
    strategy.clip(1.0)
    return [name for name, parameter in parameters.items() if parameter.grad is not None]


def test_stage_whose_layers_are_all_frozen_gets_no_gradients(tmp_path: Path) -> None:
    first, last = run_ranks(gradients_of_frozen, 2, tmp_path)
    assert (first, "head.weight" in last) == ([], True)


class Choosing(TinyTransformer):
    """Has a bias that is used or not."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))


class ChoosingLast(LastStage):
    def __init__(self, module: Choosing) -> None:
        super().__init__(nn.ModuleList(list(module.blocks)[1:]), module.norm, module.head)
        self.bias = module.bias
        self.is_used = False

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = super().forward(states)
        return output + self.bias if self.is_used else output


def gradient_of_choosing(gang: Gang, uses: tuple[bool, bool]) -> float | None:
    torch.manual_seed(5)
    module = Choosing()
    last = ChoosingLast(module)
    strategy = PipelinedModel(gang, Layout(data=2, pipeline=2), cut=lambda module, _: [stages_of(module, 2)[0], last])
    last.is_used = uses[strategy.data_rank]
    parameters = strategy.place(module)
    strategy.backward(cut(cut(global_batch(0), 2)[strategy.data_rank], 2), squares, 16)
    gradient = parameters["bias"].grad if "bias" in parameters else None
    return None if gradient is None else float(gradient)


def test_parameter_that_one_replica_alone_uses_has_its_gradient_on_both(tmp_path: Path) -> None:
    *_, first, second = run_ranks(gradient_of_choosing, 4, tmp_path / "one", (True, False))
    assert first == second
    assert first is not None
    *_, third, fourth = run_ranks(gradient_of_choosing, 4, tmp_path / "none", (False, False))
    assert (third, fourth) == (None, None), "weight decay must not move what nothing uses"


# --- Lost stages


def lost(gang: Gang, kind: str) -> str:
    os.environ[COLLECTIVE_LIMIT.name] = "2"
    strategy = PipelinedModel(gang, TWO, cut=stages_of)
    strategy.place(TinyTransformer())
    strategy.backward(cut(global_batch(0), 4), squares, 16)
    if gang.rank == 1 and kind == "dies":
        os._exit(9)
    found = "no error"
    # A hung stage does not come to this step; it waits here for the other one, which must not wait for it.
    if gang.rank == 0:
        try:
            strategy.backward(cut(global_batch(1), 4), squares, 16)
        except PeerLostError as err:
            found = err.code
        if kind == "dies":
            return found
    gang.wait_for_all()
    return found


def test_stage_that_hangs_is_a_lost_peer_after_the_time_limit_of_a_collective(tmp_path: Path) -> None:
    assert run_ranks(lost, 2, tmp_path, "hangs")[0] == "peer.lost"


def test_stage_that_dies_is_a_lost_peer(tmp_path: Path) -> None:
    first, last = run_mortal_ranks(lost, 2, tmp_path, "dies")
    assert first == "peer.lost"
    assert isinstance(last, Ended)


# --- Wrong cuts


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(VOCABULARY, WIDTH), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight


def whole(module: TinyTransformer) -> list[nn.Module]:
    return stages_of(module, 2)


class Wrapped(nn.Module):
    """Gives something else than its stage does."""

    def __init__(self, stage: nn.Module, change: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.stage, self._change = stage, change

    def forward(self, states: Any) -> Any:
        return self._change(self.stage(states))


def copied(module: TinyTransformer) -> list[nn.Module]:
    first, last = whole(module)
    assert isinstance(last, LastStage)
    last.head = nn.Linear(WIDTH, 1)
    return [first, last]


CUTS: dict[str, tuple[Callable[[TinyTransformer], Sequence[nn.Module]], str]] = {
    "three": (lambda module: [*whole(module), module.norm], "pipeline_stages returns 3 stages, parallel.pipeline is 2"),
    "none": (lambda module: [FirstStage(module.embedding, nn.ModuleList()), whole(module)[1]], "blocks.0.norm.weight is in no stage"),
    "two": (lambda module: [whole(module)[0], module], "embedding.weight is in stages 0 and 1: each tensor must be in one stage"),
    "empty": (lambda module: [nn.Identity(), module], "stage 0 has no parameters"),
    "foreign": (copied, "stage 1 has head.weight, which the model does not have"),
    "tuple": (
        lambda module: [Wrapped(whole(module)[0], lambda states: (states, states)), whole(module)[1]],
        "stage 0 must return one floating-point tensor",
    ),
    "turned": (
        lambda module: [Wrapped(whole(module)[0], lambda states: states.transpose(0, 1)), whole(module)[1]],
        "stage 0 must return a tensor whose dimension 0 is the rows of the batch",
    ),
    "loss": (whole, "stage 1 has a loss that calls the module with another batch than it was given; the stages have computed that one"),
}


def of_another_batch(module: nn.Module, batch: Batch) -> torch.Tensor:
    return squares(module, {**batch})


def refused(gang: Gang, name: str) -> list[str]:
    made, loss = CUTS[name][0], of_another_batch if name == "loss" else squares
    strategy = PipelinedModel(gang, TWO, cut=lambda module, _: made(module))  # type: ignore[arg-type]
    try:
        strategy.place(TinyTransformer())
        strategy.backward(cut(global_batch(0), 4), loss, 16)
    except SpecError as err:
        return [f"{problem.code}: {problem.message}" for problem in err.problems]
    return []


@pytest.mark.parametrize("name", CUTS)
def test_cut_that_is_not_the_model_is_refused_on_all_processes(name: str, tmp_path: Path) -> None:
    for found in run_ranks(refused, 2, tmp_path, name):
        assert f"parallel.pipeline_stages: {CUTS[name][1]}" in found


def refused_on_shared_gpus(gang: Gang) -> str:
    strategy = PipelinedModel(replace(gang, device=torch.device("cuda")), TWO, cut=stages_of)
    try:
        strategy.place(TinyTransformer())
    except SpecError as err:
        return f"{err.problems[0].code}: {err.problems[0].message}"
    return ""


def test_stages_of_processes_that_share_gpus_are_refused(tmp_path: Path) -> None:
    message = "parallel.shared_gpu: processes share GPUs, and gloo, which they then use, hands over no activations of a GPU"
    assert run_ranks(refused_on_shared_gpus, 2, tmp_path) == [message] * 2


def test_layers_of_two_stages_that_share_a_weight_are_refused() -> None:
    module = Tied()
    with pytest.raises(SpecError, match=r"embedding\.weight is in stages 0 and 1"):
        names_of_stages(module, [nn.Sequential(module.embedding, module.norm), nn.Sequential(module.head)], 2)


def failing(gang: Gang) -> str:
    strategy = PipelinedModel(gang, TWO, cut=stages_of)
    strategy.place(TinyTransformer())
    strategy.backward(cut(global_batch(0), 4), squares, 16)
    try:
        strategy.backward(cut(global_batch(0), 4), broken, 16)
    except Exception as err:
        return type(err).__name__
    return "no error"


def broken(module: nn.Module, batch: Batch) -> torch.Tensor:
    raise ArithmeticError("of the user's own code")


def test_error_of_a_models_own_code_keeps_its_type(tmp_path: Path) -> None:
    assert run_mortal_ranks(failing, 2, tmp_path)[1] == "ArithmeticError"
