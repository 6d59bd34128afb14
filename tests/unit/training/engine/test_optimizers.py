"""The optimizers of `train.optimizer`: which parameters each updates, their state in a checkpoint, and the bits of a resumed training."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.training.engine.loop_bench import LoopBench, outcome, recorded_steps, stop_after
from tests.unit.training.models.family_bench import FamilyBench
from training.data.dataset.loader import Batch
from training.engine.optim import Schedule, ScheduledOptimizer
from training.engine.optimizers import OptimizerSettings, check_matrices, hidden_matrices
from training.errors import PreemptedError, SpecError
from training.models.base import load_family
from training.models.ranker.module import Ranker

NAMES: Any = ("adamw", "sgd", "muon")


class Deep(nn.Module):
    """An embedding, two hidden layers with a norm, and an output head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.table = nn.Embedding(100, 4)
        self.layers = nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 6))
        self.head = nn.Linear(6, 1)

    def forward(self, batch: Batch) -> torch.Tensor:
        cells = torch.cat([batch["features_float"], self.table(batch["features_int"][:, 0])], dim=1)
        output: torch.Tensor = self.head(self.layers(cells)).squeeze(1)
        return output


MATRICES = frozenset({"layers.0.weight", "layers.3.weight"})


def settings_of(name: Any, **changes: Any) -> OptimizerSettings:
    return OptimizerSettings(**{"name": name, "weight_decay": 0.01, "muon": MATRICES, **changes})


def scheduled(name: Any, module: nn.Module, **changes: Any) -> ScheduledOptimizer:
    schedule = Schedule(learning_rate=0.1, total_steps=10, warmup_steps=0, kind="constant")
    return ScheduledOptimizer(dict(module.named_parameters()), schedule, settings_of(name, **changes))


def with_gradients(module: nn.Module, step: int) -> nn.Module:
    torch.manual_seed(step)
    for parameter in module.parameters():
        parameter.grad = torch.randn_like(parameter)
    return module


def bits(module: nn.Module) -> dict[str, list[Any]]:
    return {name: tensor.tolist() for name, tensor in module.state_dict().items()}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("step", [1, 6])
def test_training_stopped_in_the_middle_ends_in_the_same_bits_for_each_optimizer(
    bench: LoopBench, tmp_path: Path, name: str, step: int
) -> None:
    undisturbed = outcome(LoopBench(tmp_path / "undisturbed").train(Deep(), optimizer=settings_of(name)))
    loop = stop_after(bench.loop(Deep(), optimizer=settings_of(name)), step)
    with pytest.raises(PreemptedError):
        loop.train()
    loop._parts.checkpoints.close()
    assert outcome(bench.train(Deep(), optimizer=settings_of(name))) == undisturbed
    assert undisturbed["history"][-1]["train_loss"] < undisturbed["history"][0]["train_loss"]


@pytest.mark.parametrize("kind", ["cosine", "linear", "constant"])
def test_training_stopped_in_the_middle_ends_in_the_same_bits_for_each_schedule(bench: LoopBench, tmp_path: Path, kind: str) -> None:
    options: Any = {"kind": kind, "warmup_share": 0.25}
    undisturbed = outcome(LoopBench(tmp_path / "undisturbed").train(Deep(), **options))
    with pytest.raises(PreemptedError):
        stop_after(bench.loop(Deep(), **options), 5).train()
    assert outcome(bench.train(Deep(), **options)) == undisturbed


def test_three_optimizers_end_in_three_results(bench: LoopBench) -> None:
    found = [outcome(LoopBench(bench.folder / name).train(Deep(), optimizer=settings_of(name)))["weights"] for name in NAMES]
    assert found[0] != found[1] != found[2] != found[0]


@pytest.mark.parametrize("name", NAMES)
def test_state_that_is_allocated_ahead_changes_no_bit(name: str) -> None:
    modules = [Deep(), Deep()]
    optimizers = [scheduled(name, module) for module in modules]
    optimizers[1].allocate()
    for step in range(3):
        for module, optimizer in zip(modules, optimizers, strict=True):
            with_gradients(module, step)
            optimizer.step(step)
    assert bits(modules[0]) == bits(modules[1])
    first, second = (optimizer.state() for optimizer in optimizers)
    assert {key: value.tolist() for key, value in first.items()} == {key: value.tolist() for key, value in second.items()}


@pytest.mark.parametrize("name", NAMES)
def test_state_has_the_shapes_that_are_reserved_and_allocated(name: str) -> None:
    def shapes(state: Any) -> dict[str, Any]:
        return {key: (tensor.shape, tensor.dtype) for key, tensor in state.items()}

    module = with_gradients(Deep(), 0)
    optimizer, ahead = scheduled(name, module), scheduled(name, Deep())
    assert optimizer.state() == {}
    ahead.allocate()
    optimizer.step(0)
    assert shapes(optimizer.state()) == shapes(optimizer.largest_state()) == shapes(ahead.state())
    assert {key.partition("/")[2] for key in optimizer.state()} == set(dict(module.named_parameters()))


@pytest.mark.parametrize("name", NAMES)
def test_checkpoint_read_into_the_allocated_tensors_is_the_state_that_was_saved(name: str) -> None:
    module = Deep()
    optimizer = scheduled(name, module)
    for step in range(2):
        with_gradients(module, step)
        optimizer.step(step)
    saved = {key: value.clone() for key, value in optimizer.state().items()}
    other = Deep()
    other.load_state_dict(module.state_dict())
    resumed = scheduled(name, other)
    resumed.allocate()
    tensors = resumed.state()
    for key, tensor in tensors.items():
        tensor.copy_(saved[key])
    resumed.restore(tensors)
    assert all(tensor is tensors[key] for key, tensor in resumed.state().items()), "restored in place, without a copy"
    for optimizer_, module_ in ((optimizer, module), (resumed, other)):
        with_gradients(module_, 2)
        optimizer_.step(2)
    assert bits(other) == bits(module)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_without_gradients_are_neither_reserved_nor_allocated(name: str) -> None:
    module = Deep()
    frozen, *_ = dict(module.named_parameters())
    module.get_parameter(frozen).requires_grad_(False)
    optimizer, ahead = scheduled(name, with_gradients(module, 0)), scheduled(name, Deep())
    module.get_parameter(frozen).grad = None
    ahead.allocate()
    optimizer.step(0)
    ahead.allocate(optimizer.state())
    assert frozen not in {key.partition("/")[2] for key in optimizer.state()}
    assert optimizer.state().keys() == optimizer.largest_state().keys() == ahead.state().keys()


def test_allocate_keeps_the_state_that_there_is() -> None:
    module = with_gradients(Deep(), 0)
    optimizer = scheduled("adamw", module)
    optimizer.step(0)
    before = {key: value.tolist() for key, value in optimizer.state().items()}
    optimizer.allocate()
    assert {key: value.tolist() for key, value in optimizer.state().items()} == before


def test_muon_updates_hidden_matrices_and_adamw_the_rest() -> None:
    module = with_gradients(Deep(), 0)
    optimizer = scheduled("muon", module)
    optimizer.step(0)
    keys = {name: {key.partition("/")[0] for key in optimizer.state() if key.endswith(f"/{name}")} for name, _ in module.named_parameters()}
    assert {name for name, found in keys.items() if found == {"momentum_buffer"}} == MATRICES
    assert all(found == {"step", "exp_avg", "exp_avg_sq"} for name, found in keys.items() if name not in MATRICES)


def test_step_of_muon_is_orthogonal_and_as_large_as_one_of_adamw() -> None:
    module = with_gradients(Deep(), 0)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    scheduled("muon", module, weight_decay=0.0).step(0)
    update = (before["layers.3.weight"] - module.state_dict()["layers.3.weight"]) / 0.1
    # Five Newton-Schulz iterations bring singular values near 1; then 0.2 * sqrt(of the larger side).
    values = torch.linalg.svdvals(update) / (0.2 * math.sqrt(8))
    assert 0.5 < float(values.min()) <= float(values.max()) < 1.3


def test_momentum_is_that_of_the_settings_or_of_the_optimizer() -> None:
    def of(name: Any, momentum: float | None) -> float:
        return float(scheduled(name, Deep(), momentum=momentum)._optimizers[0].param_groups[0]["momentum"])

    assert [of("sgd", None), of("sgd", 0.5), of("muon", None), of("muon", 0.5)] == [0.9, 0.5, 0.95, 0.5]


def test_sgd_without_momentum_is_plain_gradient_descent() -> None:
    module = Deep()
    before = bits(module)["head.weight"]
    optimizer = scheduled("sgd", with_gradients(module, 0), momentum=0.0, weight_decay=0.0)
    optimizer.allocate()
    optimizer.step(0)
    assert module.head.weight.grad is not None
    expected = torch.tensor(before) - 0.1 * module.head.weight.grad
    torch.testing.assert_close(module.head.weight.detach(), expected)


def test_every_optimizer_of_a_training_has_the_learning_rate_of_the_step(bench: LoopBench) -> None:
    with recorded_steps() as steps:
        bench.train(Deep(), optimizer=settings_of("muon"), epochs=1, warmup_steps=4)
    rates = [step["learning_rate"] for step in steps]
    assert rates == pytest.approx([rate for step in range(1, 5) for rate in (0.1 * step / 4,) * 2])


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.positions = nn.Parameter(torch.zeros(7, 4))
        self.attention = nn.MultiheadAttention(4, 2)
        self.convolution = nn.Conv1d(4, 4, 3)
        self.feed = nn.Linear(4, 4)
        self.head = nn.Linear(4, 10)


def test_hidden_matrices_are_those_of_linear_and_attention_layers_without_the_head() -> None:
    assert hidden_matrices(Deep()) == MATRICES
    assert hidden_matrices(Attentive()) == {"attention.in_proj_weight", "attention.out_proj.weight", "feed.weight"}


def test_head_that_shares_the_weight_of_an_embedding_is_no_hidden_matrix() -> None:
    module = Attentive()
    module.head.weight = module.table.weight
    assert hidden_matrices(module) == {"attention.in_proj_weight", "attention.out_proj.weight", "feed.weight"}


def test_weight_of_an_embedding_is_no_hidden_matrix_wherever_its_layer_is_registered() -> None:
    module = nn.ModuleDict({"out": nn.Linear(4, 10), "table": nn.Embedding(10, 4), "feed": nn.Linear(4, 4), "last": nn.Linear(4, 1)})
    assert hidden_matrices(module) == {"out.weight", "feed.weight"}
    module["out"].weight = module["table"].weight
    assert hidden_matrices(module) == {"feed.weight"}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (set(), "the module has no matrix of a hidden layer for muon"),
        ({"head.bias"}, r"muon_parameters names head.bias \(shape \[1\]\); muon updates 2-D parameters"),
        ({"gone"}, r"muon_parameters names gone \(no parameter of this name\)"),
    ],
)
def test_parameters_that_muon_cannot_update_are_refused_before_the_training(names: set[str], message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        check_matrices(Deep(), names)
    assert caught.value.problems[0].code == "optimizer.muon"
    assert "muon_parameters" in caught.value.problems[0].hint


SETTINGS = {"embedding_dim": 4, "hidden": (8, 8), "dropout": 0.0, "loss": "listwise"}


def ranked(folder: Path, **train: Any) -> Any:
    context = FamilyBench(folder, "ranking").fit_context("ranker", **{"epochs": 2, "batch_size": 24, "settings": SETTINGS, **train})
    try:
        return load_family("ranker").fit(context)
    finally:
        context.checkpoints.close()


def test_family_trains_with_the_optimizer_and_the_schedule_of_the_spec(tmp_path: Path) -> None:
    changes: Any = [
        {},
        {"optimizer": "sgd"},
        {"optimizer": "sgd", "momentum": 0.5},
        {"optimizer": "muon"},
        {"schedule": "linear"},
        {"schedule": "constant"},
        {"warmup_share": 0.5},
        {"warmup_steps": 7},
    ]
    weights = [ranked(tmp_path / str(number), **change).weights for number, change in enumerate(changes)]
    assert len(set(weights)) == len(changes)


def test_class_chooses_the_parameters_that_muon_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    default = ranked(tmp_path / "default", optimizer="muon").weights
    monkeypatch.setattr(Ranker, "muon_parameters", lambda self, module: {"perceptron.2.weight"})
    assert ranked(tmp_path / "own", optimizer="muon").weights != default


def test_model_without_a_hidden_matrix_is_refused_with_muon(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no matrix of a hidden layer"):
        ranked(tmp_path, optimizer="muon", settings={**SETTINGS, "hidden": ()})
