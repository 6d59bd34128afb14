"""Layers that are divided over two processes: random numbers, number formats, optimizers, shared weights, and plans that are wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from tests.unit.training.engine.parallel.ranks import run_ranks
from tests.unit.training.large.tiny_transformer import (
    BLOCKS,
    LENGTH,
    PLANS,
    VOCABULARY,
    WIDTH,
    TinyTransformer,
    Trained,
    alone,
    global_batch,
    squares,
    train,
)
from training.data.dataset.loader import Batch
from training.engine.activations import checkpoint_activations
from training.engine.optimizers import hidden_matrices
from training.engine.parallel.gang import Gang
from training.errors import SpecError
from training.large.sharded import ShardedModel
from training.large.tensor_plan import Division, TensorPlan
from training.spec.layout import Layout

TWO = Layout(tensor=2)
HIDDEN = hidden_matrices(TinyTransformer())


def divided(gang: Gang, plan: TensorPlan, layout: Layout = TWO, precision: str = "fp32") -> ShardedModel:
    return ShardedModel(gang, layout, precision=precision, min_block_bytes=1024, tensor_plan=lambda _: plan)


def differences(found: Trained, expected: Trained) -> tuple[float, float]:
    """Return the largest difference of a loss, and of a weight."""
    losses = max(abs(one - other) for one, other in zip(found.losses, expected.losses, strict=True))
    pairs = ((one, other) for name, values in expected.weights.items() for one, other in zip(found.weights[name], values, strict=True))
    return losses, max(abs(one - other) for one, other in pairs)


# --- Gradients of what is not divided


def gradients_of_whole_parameters(gang: Gang, plan: str) -> dict[str, list[float]]:
    strategy = divided(gang, PLANS[plan])
    torch.manual_seed(5)
    parameters = strategy.place(TinyTransformer())
    strategy.backward([global_batch(0)], squares, 16)
    strategy.clip(1.0)
    found = {}
    for name, parameter in parameters.items():
        assert isinstance(parameter.grad, DTensor)
        if all(placement.is_replicate() for placement in parameter.placements[1:]):  # type: ignore[attr-defined]
            found[name] = parameter.grad.to_local().flatten().tolist()
    return found


@pytest.mark.parametrize("plan", PLANS)
def test_processes_of_a_group_have_the_same_gradients_of_what_is_not_divided(plan: str, tmp_path: Path) -> None:
    first, second = run_ranks(gradients_of_whole_parameters, 2, tmp_path, plan)
    norms = {"norm.weight", "norm.bias", *(f"blocks.{n}.{name}" for n in range(BLOCKS) for name in ("norm.weight", "second_norm.bias"))}
    assert {*norms, "blocks.0.down.bias", "head.weight"} <= set(first)
    assert first == second


# --- Number formats, optimizers, activation checkpointing


def trained_with(gang: Gang, plan: str, layout: Layout, precision: str, options: dict[str, Any]) -> Trained:
    return train(divided(gang, PLANS[plan], layout, precision), **options)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", ["sgd", "muon"])
def test_each_optimizer_updates_divided_layers_as_one_process_does(name: str, plan: str, tmp_path: Path) -> None:
    found = run_ranks(trained_with, 2, tmp_path, plan, TWO, "fp32", {"name": name, "muon": HIDDEN})
    loss, weight = differences(found[0], alone(micro_batches=1, name=name, muon=HIDDEN))
    assert loss < LIMITS[name][0]
    assert weight < LIMITS[name][1]
    assert found[0].norms == found[1].norms


LIMITS = {"sgd": (4e-7, 2e-7), "muon": (4e-4, 6e-3)}
"""Of a loss and of a weight: three times of what was measured. Muon computes its update in bf16."""


def test_muon_updates_layers_that_are_divided_and_sharded(tmp_path: Path) -> None:
    found = run_ranks(trained_with, 4, tmp_path, "sequence", Layout(shard=2, tensor=2), "fp32", {"name": "muon", "muon": HIDDEN})
    loss, weight = differences(found[0], alone(micro_batches=2, name="muon", muon=HIDDEN))
    assert loss < LIMITS["muon"][0]
    assert weight < LIMITS["muon"][1]


@pytest.mark.parametrize(("precision", "limit"), [("bf16", 0.01), ("fp16", 0.002)])
@pytest.mark.parametrize(("layout", "plan"), [(TWO, "whole"), (TWO, "sequence"), (Layout(shard=2), "whole")], ids=str)
def test_half_precision_reaches_the_losses_of_fp32(precision: str, limit: float, layout: Layout, plan: str, tmp_path: Path) -> None:
    found = run_ranks(trained_with, 2, tmp_path, plan, layout, precision, {})
    loss, _ = differences(found[0], alone(micro_batches=1))
    assert 0 < loss < limit
    assert found[0].losses == found[1].losses
    assert found[0].norms == found[1].norms


def trained_in_blocks(gang: Gang, plan: str, mode: Any) -> tuple[list[float], int]:
    strategy = divided(gang, PLANS[plan])
    torch.manual_seed(5)
    module = TinyTransformer()
    checkpoint_activations(list(module.blocks), mode)
    calls: list[int] = []
    module.blocks[0].up.register_forward_hook(lambda *_: calls.append(1))  # type: ignore[operator, union-attr]
    parameters = strategy.place(module)
    strategy.backward([global_batch(0)], squares, 16)
    return [float(parameter.grad.norm().full_tensor()) for parameter in parameters.values() if parameter.grad is not None], len(calls)  # type: ignore[attr-defined]


@pytest.mark.parametrize("plan", PLANS)
def test_activations_of_divided_layers_are_computed_again_with_the_same_bits(plan: str, tmp_path: Path) -> None:
    kept, again = (run_ranks(trained_in_blocks, 2, tmp_path / mode, plan, mode)[0] for mode in ("none", "full"))
    assert (kept[1], again[1]) == (1, 2)
    assert again[0] == kept[0]


# --- Random numbers


class Dropping(nn.Module):
    """Drops whole states, a part of the features, and a part of the sequence; remembers what was left."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.whole, self.of_features, self.of_sequence = nn.Dropout(0.5), nn.Dropout(0.5), nn.Dropout(0.5)
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.kept: dict[str, list[bool]] = {}

    def forward(self, batch: Batch) -> torch.Tensor:
        states = self.embedding(batch["features_int"])
        self.kept["whole"] = self._kept(self.whole(torch.ones_like(states)))
        between = self.up(states)
        self.kept["features"] = self._kept(self.of_features(torch.ones_like(between)))
        self.kept["after features"] = self._kept(self.whole(torch.ones_like(states)))
        parts = self.down(between)
        self.kept["sequence"] = self._kept(self.of_sequence(torch.ones_like(parts)))
        self.kept["after sequence"] = self._kept(self.whole(torch.ones_like(states)))
        output: torch.Tensor = self.norm(parts).mean(dim=(1, 2))
        return output

    @staticmethod
    def _kept(states: torch.Tensor) -> list[bool]:
        return [bool(value) for value in states.flatten()]


DROPPING_PLAN: TensorPlan = {
    "up": "column",
    "of_features": "features",
    "down": Division("row", gives="sequence"),
    "of_sequence": "sequence",
    "norm": Division("sequence", gives="whole"),
}


def kept_by(gang: Gang) -> dict[str, list[bool]]:
    module = Dropping()
    strategy = divided(gang, DROPPING_PLAN)
    strategy.place(module)
    torch.manual_seed(7)
    strategy.backward([global_batch(0)], squares, 16)
    return module.kept


def test_parts_draw_their_own_random_numbers_and_whole_states_the_same_ones(tmp_path: Path) -> None:
    first, second = run_ranks(kept_by, 2, tmp_path)
    for name in ("whole", "after features", "after sequence"):
        assert first[name] == second[name], name
    for name in ("features", "sequence"):
        assert len(first[name]) == len(second[name]) == 16 * LENGTH * WIDTH // 2
        agreeing = sum(one == other for one, other in zip(first[name], second[name], strict=True))
        assert 0.4 < agreeing / len(first[name]) < 0.6, f"{name}: the parts must be independent"
    assert first["whole"] != first["after features"] != first["after sequence"]


class UsingMasks(Dropping):
    """Its output depends on what is dropped."""

    def forward(self, batch: Batch) -> torch.Tensor:
        states = self.whole(self.embedding(batch["features_int"]))
        parts = self.of_sequence(self.down(self.of_features(self.up(states))))
        output: torch.Tensor = self.norm(parts)[:, :, 1].mean(dim=1)
        return output


def gradients_with_masks(gang: Gang, mode: Any) -> list[list[float]]:
    torch.manual_seed(3)
    module = UsingMasks()
    checkpoint_activations([module], mode)
    strategy = divided(gang, DROPPING_PLAN)
    parameters = strategy.place(module)
    torch.manual_seed(7)
    strategy.backward([global_batch(0)], squares, 16)
    return [parameter.grad.to_local().flatten().tolist() for parameter in parameters.values() if isinstance(parameter.grad, DTensor)]


def test_masks_of_parts_are_drawn_again_when_activations_are_computed_again(tmp_path: Path) -> None:
    kept, again = (run_ranks(gradients_with_masks, 2, tmp_path / mode, mode) for mode in ("none", "full"))
    assert kept == again
    assert len(kept[0]) == 7


# --- Shared parameters


class Tied(nn.Module):
    """A language model whose head has the weights of its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, batch: Batch) -> torch.Tensor:
        output: torch.Tensor = self.head(self.norm(self.embedding(batch["features_int"])))[:, :, 3].mean(dim=1)
        return output


def gradient_of_tied(gang: Gang, plan: TensorPlan | None) -> tuple[list[str], list[float]]:
    torch.manual_seed(3)
    module = Tied()
    strategy = ShardedModel(gang, Layout(shard=gang.world_size) if plan is None else TWO, tensor_plan=lambda _: plan or {})
    parameters = strategy.place(module)
    strategy.backward([global_batch(0)], squares, 16)
    gradient = parameters["embedding.weight"].grad
    assert isinstance(gradient, DTensor)
    return sorted(parameters), gradient.full_tensor().flatten().tolist()


def test_layers_that_share_a_parameter_share_it_when_they_are_divided_alike(tmp_path: Path) -> None:
    plan: TensorPlan = {"embedding": "row", "head": Division("column", gives="whole")}
    names, found = run_ranks(gradient_of_tied, 2, tmp_path / "two", plan)[0]
    _, expected = run_ranks(gradient_of_tied, 1, tmp_path / "one", None)[0]
    assert names == ["embedding.weight", "norm.bias", "norm.weight"]
    assert found == pytest.approx(expected, abs=1e-7)


# --- Wrong plans


def refusal(work: Callable[[], object]) -> tuple[str, str]:
    try:
        work()
    except SpecError as err:
        return err.problems[0].code, err.problems[0].message
    return "", "not refused"


class Scaled(nn.Module):
    """A scale of its own works on a part of the sequence, where the plan has one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(VOCABULARY, WIDTH), nn.LayerNorm(WIDTH)
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, batch: Batch) -> torch.Tensor:
        output: torch.Tensor = self.norm(self.embedding(batch["features_int"]) * self.scale).mean(dim=(1, 2))
        return output


class Halved(nn.Module):
    """Computes with a part of the features as if it were whole."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.up = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, batch: Batch) -> torch.Tensor:
        output: torch.Tensor = self.up(self.embedding(batch["features_int"])).mean(dim=(1, 2))
        return output


class Reading(nn.Module):
    """Uses the weight of a layer outside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)

    def forward(self, batch: Batch) -> torch.Tensor:
        output: torch.Tensor = (self.embedding(batch["features_int"]) @ self.embedding.weight.T).mean(dim=(1, 2))
        return output


def refused(gang: Gang, model: str) -> tuple[str, str]:
    module, plan, length = {
        "scale": (Scaled(), {"embedding": Division("row", gives="sequence"), "norm": Division("sequence", gives="whole")}, LENGTH),
        "half": (Halved(), {"up": "column"}, LENGTH),
        "odd": (Scaled(), {"embedding": Division("row", gives="sequence"), "norm": Division("sequence", gives="whole")}, LENGTH - 1),
        "tied": (Tied(), {"embedding": "row"}, LENGTH),
        "read": (Reading(), {"embedding": "row"}, LENGTH),
        "width": (Halved(), {"up": "column", "embedding": "row", "down": "row"}, LENGTH),
    }[model]
    strategy = divided(gang, plan)  # type: ignore[arg-type]
    batch = global_batch(0)
    batch["features_int"] = batch["features_int"][:, :length]

    def work() -> None:
        strategy.place(module)
        strategy.backward([batch], squares, 16)

    return refusal(work)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("scale", "the processes that share layers have different gradients of scale"),
        ("half", "the processes that share layers have different losses: one computes with a part as if it were whole"),
        ("odd", f"a sequence of {LENGTH - 1} positions cannot be divided over tensor (2)"),
        ("tied", "embedding.weight and head.weight are one parameter, and the plan divides them differently"),
        ("width", "no module is named down"),
        ("read", "the model reads the weight of a divided layer outside of its forward, or has a whole layer in a gathered module: "),
    ],
)
def test_plan_that_would_train_another_model_is_refused_on_all_processes(model: str, message: str, tmp_path: Path) -> None:
    for code, found in run_ranks(refused, 2, tmp_path, model):
        assert code == "parallel.tensor_plan"
        assert found == message or (model == "read" and found.startswith(message))


class HiddenScale(Scaled):
    """As `Scaled`, with a last layer that begins with zeros: the first step has no gradient of what is before it."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.norm.weight)


def steps_until_refused(gang: Gang) -> tuple[int, str]:
    strategy = divided(gang, {"embedding": Division("row", gives="sequence"), "norm": Division("sequence", gives="whole")})
    parameters = strategy.place(HiddenScale())
    optimizer = torch.optim.SGD(parameters.values(), lr=0.1)
    for step in range(8):
        try:
            optimizer.zero_grad()
            strategy.backward([global_batch(step)], squares, 16)
        except SpecError as err:
            return step, err.problems[0].message
        optimizer.step()
    return 8, ""


def test_plan_whose_error_the_first_step_hides_is_refused_in_the_next_one(tmp_path: Path) -> None:
    for step, message in run_ranks(steps_until_refused, 2, tmp_path):
        assert step == 1
        assert message.startswith("the processes that share layers have different gradients of scale")
