"""One optimizer step: clipped gradients, the mean over all units, random numbers of its own, what is tracked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.training.engine.loop_bench import BATCH_SIZE, Line, LoopBench, outcome, recorded_steps, reported_by, squares
from training.data.dataset.loader import Batch
from training.engine.loop import _seed
from training.engine.parallel.gang import Gang

CPU = torch.device("cpu")


def scaled(factor: float) -> Any:
    return lambda module, batch: squares(module, batch) * factor


def gradient_norms(bench: LoopBench, factor: float) -> tuple[list[float], list[float]]:
    """Return each step's gradient norm as the optimizer uses it, and the norms that were tracked."""
    with recorded_steps() as steps:
        loop = bench.train(loss=scaled(factor), epochs=5)
    tracked = [metrics["grad_norm"] for _step, metrics in loop._parts.tracker.logged if "grad_norm" in metrics]
    return [step["grad_norm"] for step in steps], tracked


def test_gradients_above_the_limit_are_scaled_to_norm_one_and_tracked_as_they_were(bench: LoopBench) -> None:
    used, tracked = gradient_norms(bench, 1e4)
    assert used == pytest.approx([1.0] * 20, rel=1e-4)
    assert len(tracked) == 2
    assert min(tracked) > 100


def test_gradients_below_the_limit_are_used_as_they_are(bench: LoopBench) -> None:
    used, tracked = gradient_norms(bench, 1e-3)
    assert 0 < max(used) < 0.1
    assert tracked == pytest.approx([used[9], used[19]])


def first_step(bench: LoopBench, gang: Gang) -> tuple[dict[str, float], dict[str, float], float]:
    """Return what the optimizer used, what was reported, and the summed loss of a training's first step."""
    sums: list[float] = []

    def loss(module: nn.Module, batch: Batch) -> torch.Tensor:
        total = squares(module, batch) * 0.01
        sums.append(float(total.detach()))
        return total

    with recorded_steps() as steps:
        loop = bench.train(loss=loss, gang=gang, epochs=1)
    return steps[0], reported_by(loop._parts.progress)[0], sums[0]


def test_gradient_and_reported_loss_are_means_over_the_units_of_the_batch(bench: LoopBench) -> None:
    module = Line()
    batch = next(bench.loader("train").batches(0))
    gradients = torch.autograd.grad(squares(module, batch) * 0.01 / BATCH_SIZE, [*module.parameters()])
    expected = float(torch.linalg.vector_norm(torch.cat([gradient.flatten() for gradient in gradients])))

    step, reported, total = first_step(bench, Gang(0, 1, CPU))

    assert step["grad_norm"] == pytest.approx(expected, rel=1e-5)
    assert reported["loss"] == pytest.approx(total / BATCH_SIZE)


@pytest.mark.usefixtures("process_group")
def test_each_of_two_ranks_weighs_its_share_twice_because_their_gradients_are_averaged(bench: LoopBench, tmp_path: Path) -> None:
    alone, _, _ = first_step(bench, Gang(0, 1, CPU))
    step, reported, total = first_step(LoopBench(tmp_path / "two"), Gang(0, 2, CPU))
    assert step["grad_norm"] == pytest.approx(2 * alone["grad_norm"], rel=1e-5)
    assert reported["loss"] == pytest.approx(2 * total / BATCH_SIZE)


def test_gradients_of_the_step_before_are_not_added(bench: LoopBench) -> None:
    def constant(module: nn.Module, batch: Batch) -> torch.Tensor:
        return sum(parameter.sum() for parameter in module.parameters()) * 0.1 * len(batch["label"])

    with recorded_steps() as steps:
        bench.train(loss=constant)
    assert [step["grad_norm"] for step in steps] == pytest.approx([0.1 * 2**0.5] * 12)


def test_every_tenth_step_is_tracked_and_every_step_is_reported(bench: LoopBench) -> None:
    loop = bench.train(epochs=5)
    logged: Any = loop._parts.tracker.logged
    assert [step for step, metrics in logged if "train_loss_step" in metrics] == [10, 20]
    assert set(logged[2][1]) == {"train_loss_step", "grad_norm", "learning_rate", "training_throughput_samples_per_sec"}
    reported = reported_by(loop._parts.progress)
    assert [(entry["done"], entry["total"], entry["unit"], entry["epoch"]) for entry in reported] == [
        (step, 20, "steps", 1 + (step - 1) // 4) for step in range(1, 21)
    ]
    assert logged[2][1]["train_loss_step"] == reported[9]["loss"]


def test_every_epoch_is_tracked_with_its_losses(bench: LoopBench) -> None:
    loop = bench.train()
    logged: Any = loop._parts.tracker.logged
    epochs = [(step, metrics) for step, metrics in logged if "epoch" in metrics]
    assert [(step, metrics["epoch"]) for step, metrics in epochs] == [(4, 1.0), (8, 2.0), (12, 3.0)]
    assert [metrics["validation_loss"] for _step, metrics in epochs] == [entry["validation_loss"] for entry in loop.progress.history]
    assert [metrics["train_loss"] for _step, metrics in epochs] == [entry["train_loss"] for entry in loop.progress.history]


def random_numbers(bench: LoopBench, *, seed: int = 3, rank: int = 0) -> list[float]:
    """Return the first random number of each step of a training that starts at zero."""
    drawn: list[float] = []

    def loss(module: nn.Module, batch: Batch) -> torch.Tensor:
        if module.training:
            drawn.append(float(torch.rand(1)))
        return squares(module, batch)

    loop = LoopBench(bench.folder / f"{seed}-{rank}-{bench.num_attempts}").loop(loss=loss, seed=seed, gang=Gang(rank, 1, CPU))
    bench.num_attempts += 1
    loop.train()
    loop._parts.checkpoints.close()
    return drawn


def test_random_numbers_of_a_step_depend_on_seed_step_and_rank_alone(bench: LoopBench) -> None:
    first = random_numbers(bench)
    torch.rand(7)
    assert random_numbers(bench) == first
    others = [random_numbers(bench, seed=4), random_numbers(bench, rank=1)]
    drawn = [*first, *others[0], *others[1]]
    assert len(drawn) == 36
    assert len(set(drawn)) == 36, "no two steps, seeds or ranks share their numbers"


@pytest.mark.parametrize("rank", [0, 1])
def test_random_numbers_are_those_that_models_of_before_were_trained_with(bench: LoopBench, rank: int) -> None:
    seeds = [(3 * 1_000_003 + step) * 4099 + rank for step in range(12)]
    expected = [float(torch.rand(1, generator=torch.Generator().manual_seed(seed))) for seed in seeds]
    assert random_numbers(bench, rank=rank) == expected


@pytest.mark.parametrize("seed", [0, 1, 2**32 + 5, (2**31 * 1_000_003 + 9) * 4099 + 7, 2**64 - 1, -3])
def test_step_draws_the_numbers_that_manual_seed_gives(seed: int) -> None:
    def drawn() -> list[Any]:
        dropped = nn.functional.dropout(torch.ones(100), p=0.5)
        return [torch.rand(1000).tolist(), torch.randn(1000).tolist(), torch.randperm(500).tolist(), dropped.tolist()]

    torch.manual_seed(seed)
    expected = drawn()
    _seed(seed, CPU)
    assert drawn() == expected


def test_step_on_cuda_seeds_its_device_and_the_cpu_with_the_same_number(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed", seeds.append)
    _seed(11, torch.device("cuda", 1))
    assert seeds == [11]
    assert torch.initial_seed() == 11
    _seed(12, CPU)
    assert seeds == [11]


def test_step_formats_no_stack_trace_to_seed_devices_that_are_not_there(bench: LoopBench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(seed: int) -> torch.Generator:
        pytest.fail("torch.manual_seed in a step")

    loop = bench.loop(epochs=1)
    monkeypatch.setattr(torch, "manual_seed", refuse)
    loop.train()
    loop._parts.checkpoints.close()


def test_weight_decay_makes_weights_smaller_where_the_loss_has_no_gradient(bench: LoopBench) -> None:
    def flat(module: nn.Module, batch: Batch) -> torch.Tensor:
        return squares(module, batch) * 0.0

    kept = outcome(bench.train(loss=flat, weight_decay=0.0, epochs=1))["weights"]["line.weight"]
    assert kept == [[0.5]]
    again = LoopBench(bench.folder / "decayed")
    decayed = outcome(again.train(loss=flat, weight_decay=0.5, epochs=1))["weights"]["line.weight"]
    assert 0.4 < decayed[0][0] < 0.45
