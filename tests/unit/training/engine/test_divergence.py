"""The divergence guard: what ends a training before the optimizer takes the step, and what does not."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.training.engine.loop_bench import Line, LoopBench, after_each_step, squares
from training.data.dataset.loader import Batch
from training.engine.divergence import EXPLOSION_STEPS, MEMORY_STEPS, DivergenceGuard
from training.errors import DivergedError


def watched(losses: list[float], *, grad_norm: float = 1.0) -> DivergenceGuard:
    """Return a guard that has looked at these losses."""
    guard = DivergenceGuard()
    for step, loss in enumerate(losses):
        guard.check(step, loss, grad_norm)
    return guard


@pytest.mark.parametrize(("loss", "grad_norm"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan), (1.0, math.inf)])
def test_loss_or_gradient_norm_that_is_not_finite_ends_the_training_at_once(loss: float, grad_norm: float) -> None:
    with pytest.raises(DivergedError) as caught:
        watched([1.0]).check(1, loss, grad_norm)
    assert caught.value.code == "loss.not_finite"
    assert f"step 1: loss {loss}, gradient norm {grad_norm}; gradient norms before: [1.0]" in caught.value.message
    assert "train.learning_rate" in caught.value.hint


def test_message_shows_the_last_five_gradient_norms(bench: LoopBench) -> None:
    guard = DivergenceGuard()
    for step in range(8):
        guard.check(step, 1.0, step + 1 / 3)
    with pytest.raises(DivergedError, match=r"before: \[3\.333333, 4\.333333, 5\.333333, 6\.333333, 7\.333333\]"):
        guard.check(8, math.nan, 1.0)


def test_twenty_steps_in_a_row_above_a_thousand_times_the_median_end_the_training() -> None:
    guard = watched([0.5] * MEMORY_STEPS + [501.0] * (EXPLOSION_STEPS - 1))
    with pytest.raises(DivergedError) as caught:
        guard.check(119, 501.0, 1.0)
    assert caught.value.code == "loss.exploded"
    assert caught.value.message == "step 119: loss 501 is over 1000 times the median 0.5, 20 consecutive steps"
    assert "train.learning_rate" in caught.value.hint


def test_limits_of_an_explosion_are_those_that_are_documented() -> None:
    assert (EXPLOSION_STEPS, MEMORY_STEPS) == (20, 100)


@pytest.mark.parametrize(
    "losses",
    [
        [0.5] * 100 + [500.0] * 40,
        [0.5] * 99 + [501.0] * 20,
        [0.5] * 100 + ([501.0] * 19 + [0.5]) * 3,
        [-0.5] * 100 + [1e-9] * 40,
    ],
    ids=["a thousand times the median", "too few steps before", "never twenty in a row", "losses about zero"],
)
def test_training_continues_where_the_loss_has_not_exploded(losses: list[float]) -> None:
    watched(losses)


def test_median_is_of_the_last_hundred_steps_so_a_loss_that_grows_slowly_is_no_explosion() -> None:
    losses = [10.0 ** (number // 100) for number in range(1000)]
    assert losses[-1] == 1e9
    watched(losses)


def test_exploded_losses_do_not_raise_the_median_that_they_are_judged_by() -> None:
    losses = [1.0] * 100
    for _ in range(6):
        losses += [5000.0] * 19 + [1.0]
    guard = watched(losses + [1500.0] * 19)
    with pytest.raises(DivergedError, match="median 1, 20 consecutive steps"):
        guard.check(0, 1500.0, 1.0)


def failing_at(step: int, value: float) -> Any:
    calls: list[int] = []

    def loss(module: nn.Module, batch: Batch) -> torch.Tensor:
        calls.append(1)
        return squares(module, batch) * (value if len(calls) == step else 1.0)

    return loss


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_diverged_step_reaches_neither_the_weights_nor_the_counts(bench: LoopBench, value: float) -> None:
    module, twin = Line(), Line()
    with pytest.raises(DivergedError, match="step 2: "):
        bench.train(module, loss=failing_at(3, value))
    assert bench.saved == [], "a diverged state is not saved"
    other = LoopBench(bench.folder / "twin")
    loop = other.loop(twin)
    weights: list[list[float]] = []
    with after_each_step(lambda: weights.append([float(p.detach().sum()) for p in twin.parameters()])):
        loop.train()
    loop._parts.checkpoints.close()
    assert [float(p.detach().sum()) for p in module.parameters()] == weights[1]


def test_exploding_loss_ends_a_training(bench: LoopBench) -> None:
    calls: list[int] = []

    def loss(module: nn.Module, batch: Batch) -> torch.Tensor:
        if module.training:
            calls.append(1)
        return squares(module, batch) * (1e8 if len(calls) > 110 else 1.0)

    with pytest.raises(DivergedError, match=r"step 129: .*20 consecutive steps") as caught:
        bench.train(loss=loss, epochs=60, learning_rate=1e-3)
    assert caught.value.code == "loss.exploded"
