"""fp16: the scale of the loss follows torch's rule, all ranks skip a step that overflows, a resumed training has the same bits."""

from __future__ import annotations

import itertools
import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.training.engine.loop_bench import LoopBench, outcome, reported_by, squares, stop_after
from tests.unit.training.engine.parallel.ranks import run_ranks
from tests.unit.training.engine.test_optimizers import Deep
from tests.unit.training.large.tiny_transformer import TinyTransformer, global_batch
from tests.unit.training.large.tiny_transformer import squares as row_squares
from training.data.dataset.loader import Batch, cut
from training.engine.loop import Loop
from training.engine.optim import Schedule, ScheduledOptimizer
from training.engine.optimizers import OptimizerSettings
from training.engine.parallel.gang import Gang
from training.engine.precision import FIRST_SCALE, GROWTH_INTERVAL, MAX_SCALE, LossScale
from training.engine.training_position import Progress
from training.errors import DivergedError, PreemptedError
from training.models.strategy_choice import strategy_for
from training.spec.layout import Layout

FP16: Any = {"precision": "fp16"}


def scales_of_torch(overflows: list[bool]) -> list[float]:
    """Return the scale after each step as torch.amp.GradScaler has it."""
    scaler = torch.amp.GradScaler("cpu")
    parameter = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    found = []
    for overflow in overflows:
        scaler.scale(torch.ones(1))
        parameter.grad = torch.full((1,), math.inf if overflow else 1.0)
        scaler.step(optimizer)
        scaler.update()
        found.append(scaler.get_scale())
    return found


def test_scale_follows_the_rule_of_torch() -> None:
    overflows = [True, False, True, *[False] * (GROWTH_INTERVAL + 5), True, *[False] * (2 * GROWTH_INTERVAL), True, True]
    scale = LossScale()
    found = []
    for step, overflow in enumerate(overflows):
        assert scale.update(step, math.nan if overflow else 1.0) is not overflow
        found.append(scale.factor)
    assert found == scales_of_torch(overflows)
    assert [FIRST_SCALE / 2, FIRST_SCALE / 4, FIRST_SCALE] == [found[0], found[2], max(found)]
    assert scale.skipped_steps == 5


def test_scale_has_an_upper_limit() -> None:
    scale = LossScale(factor=MAX_SCALE, good_steps=GROWTH_INTERVAL - 1)
    assert scale.update(7, 0.0)
    assert (scale.factor, scale.good_steps) == (MAX_SCALE, 0)


def large(module: nn.Module, batch: Batch) -> torch.Tensor:
    """Overflows in fp16 at the first scales."""
    return squares(module, batch) * 30


def trained(bench: LoopBench, **changes: Any) -> Loop:
    return bench.train(Deep(), **{"loss": large, **FP16, **changes})


def test_steps_that_overflow_are_counted_and_logged_and_do_not_reach_the_optimizer(
    bench: LoopBench, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        loop = trained(bench)
    scale = loop.progress.loss_scale
    assert scale is not None
    assert loop.progress.step == 12, "a skipped step uses its batch and its place in the schedule"
    assert 0 < scale.skipped_steps < 6
    assert scale.factor == FIRST_SCALE / 2**scale.skipped_steps
    steps_of_adamw = {float(value) for key, value in loop._optimizer.state().items() if key.startswith("step/")}
    assert steps_of_adamw == {12.0 - scale.skipped_steps}
    skipped = [record.message for record in caplog.records if "is skipped" in record.message]
    assert len(skipped) == scale.skipped_steps
    assert skipped[0] == "step 1 is skipped: its gradients overflow in fp16; loss scale 32768"
    logged: Any = loop._parts.tracker.logged
    (tracked,) = [metrics for step, metrics in logged if step == 10]
    assert tracked["skipped_steps"] == scale.skipped_steps
    assert tracked["loss_scale"] == scale.factor
    assert all(math.isfinite(entry["train_loss"]) for entry in loop.progress.history)


def test_skipped_step_changes_no_weight_and_no_moment(bench: LoopBench) -> None:
    before = {name: tensor.tolist() for name, tensor in Deep().state_dict().items()}
    loop = stop_after(bench.loop(Deep(), loss=large, **FP16), 1)
    with pytest.raises(PreemptedError):
        loop.train()
    loop._parts.checkpoints.close()
    assert loop.progress.loss_scale == LossScale(factor=FIRST_SCALE / 2, skipped_steps=1)
    assert {name: tensor.tolist() for name, tensor in loop._parts.module.state_dict().items()} == before
    assert loop._optimizer.state() == {}


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "muon"])
def test_training_stopped_amid_skipped_and_amid_good_steps_ends_in_the_same_bits(bench: LoopBench, tmp_path: Path, optimizer: Any) -> None:
    settings = OptimizerSettings(name=optimizer, muon=frozenset({"layers.0.weight"}))
    undisturbed = outcome(trained(LoopBench(tmp_path / "undisturbed"), optimizer=settings, learning_rate=0.01))
    for step in (1, 2, 5, 9):
        loop = stop_after(bench.loop(Deep(), loss=large, optimizer=settings, learning_rate=0.01, **FP16), step)
        with pytest.raises(PreemptedError):
            loop.train()
        loop._parts.checkpoints.close()
    resumed = outcome(trained(bench, optimizer=settings, learning_rate=0.01))
    assert resumed == undisturbed
    assert resumed["loss_scale"]["skipped_steps"] > 0


def test_losses_of_fp16_are_near_those_of_fp32(bench: LoopBench) -> None:
    """With an initial scale that does not overflow, so that both take the same steps; SGD, whose steps are as large as the gradients."""
    options: Any = {"optimizer": OptimizerSettings(name="sgd"), "learning_rate": 0.01}
    expected = LoopBench(bench.folder / "fp32").train(Deep(), **options)
    loop = bench.loop(Deep(), **options, **FP16)
    loop.progress.loss_scale = LossScale(factor=256.0)
    loop.train()
    loop._parts.checkpoints.close()
    assert loop.progress.loss_scale.skipped_steps == 0
    for one, other in zip(loop.progress.history, expected.progress.history, strict=True):
        assert one["train_loss"] != other["train_loss"]
        assert one["train_loss"] == pytest.approx(other["train_loss"], rel=2e-3)
    norms = [metrics["grad_norm"] for run in (loop, expected) for _, metrics in _logged(run) if "grad_norm" in metrics]
    assert norms[0] == pytest.approx(norms[1], rel=0.02), "of the gradients without the scale"


def _logged(loop: Loop) -> list[tuple[int, dict[str, float]]]:
    logged: Any = loop._parts.tracker
    return list(logged.logged)


def test_scale_brings_back_gradients_that_are_zero_in_fp16() -> None:
    """The last layer's output gradient is 1e-7 per row, below fp16's smallest number, 6e-8, once it is multiplied by a weight of 0.1."""
    weight, cells = torch.full((1, 1), 0.1), torch.ones(1, 1)

    def gradient(scale: float) -> float:
        first = nn.Parameter(torch.ones(1, 1))
        with torch.autocast("cpu", dtype=torch.float16):
            output = nn.functional.linear(nn.functional.linear(cells, first), weight)
        (output.float().sum() * 1e-7 * scale).backward()
        assert first.grad is not None
        return float(first.grad) / scale

    assert gradient(1.0) == 0.0
    assert gradient(FIRST_SCALE) == pytest.approx(1e-8, rel=0.01)


def test_training_whose_gradients_never_fit_is_diverged(bench: LoopBench) -> None:
    def infinite(module: nn.Module, batch: Batch) -> torch.Tensor:
        return squares(module, batch) * math.inf

    with pytest.raises(DivergedError, match=r"step 26: gradient norm nan in fp16, also with a loss scale of 0.000976562") as caught:
        bench.train(loss=infinite, epochs=9, validation=None, **FP16)
    assert caught.value.code == "loss.not_finite"
    assert "precision" in caught.value.hint


def test_batch_that_overflows_by_itself_is_left_out_of_the_loss(bench: LoopBench) -> None:
    numbers = itertools.count()

    def once(module: nn.Module, batch: Batch) -> torch.Tensor:
        found = squares(module, batch)
        return found * math.inf if module.training and next(numbers) == 6 else found

    loop = bench.train(loss=once, **FP16)
    scale = loop.progress.loss_scale
    assert scale is not None
    assert scale.skipped_steps == 1
    reported = reported_by(loop._parts.progress)
    assert ["loss" in entry for entry in reported] == [step != 7 for step in range(1, 13)]
    assert all(math.isfinite(entry["train_loss"]) for entry in loop.progress.history)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_other_precisions_have_no_scale_in_their_checkpoints(bench: LoopBench, precision: str) -> None:
    loop = bench.train(precision=precision)
    assert loop.progress.loss_scale is None
    assert "loss_scale" not in loop.progress.to_json()


def test_progress_with_a_scale_is_json_and_is_read_back() -> None:
    progress = Progress(step=3, loss_scale=LossScale(factor=2.0, good_steps=4, skipped_steps=5))
    assert Progress.from_json(progress.to_json()) == progress


def norms_with_one_overflow(gang: Gang) -> dict[str, list[Any]]:
    """Return, by layout, the norm of each of three steps and the scale after it; rank 1 alone overflows in the second."""
    found: dict[str, list[Any]] = {}
    for layout in (Layout(data=2), Layout(shard=2)):
        torch.manual_seed(5)
        strategy = strategy_for(gang, precision="fp16", layout=layout)
        parameters = strategy.place(TinyTransformer())
        optimizer = ScheduledOptimizer(parameters, Schedule(learning_rate=0.01, total_steps=3), OptimizerSettings())
        scale = LossScale(factor=64.0)
        steps = found[layout.words()] = []
        for step in range(3):
            factor = scale.factor * (1e9 if step == 1 and gang.rank == 1 else 1.0)
            batch = cut(global_batch(step), 2)[gang.rank]
            optimizer.clear_gradients()
            strategy.backward([batch], lambda module, rows, factor=factor: row_squares(module, rows).float() * factor, 16)
            optimizer.divide_gradients(scale.factor)
            norm = strategy.clip(1e9)
            is_usable = scale.update(step, norm)
            if is_usable:
                optimizer.step(step)
            steps.append([is_usable, norm if is_usable else -1.0, scale.factor])
    return found


def test_overflow_on_one_rank_is_skipped_by_all(tmp_path: Path) -> None:
    first, second = run_ranks(norms_with_one_overflow, 2, tmp_path)
    assert first == second
    replicated, sharded = first.values()
    for steps in (replicated, sharded):
        assert [(is_usable, scale) for is_usable, _, scale in steps] == [(True, 64.0), (False, 32.0), (True, 32.0)]
    assert [norm for _, norm, _ in sharded] == pytest.approx([norm for _, norm, _ in replicated], rel=0.02)
