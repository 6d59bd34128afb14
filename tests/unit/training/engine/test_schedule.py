"""The learning rate of each step, as the optimizer uses it."""

from __future__ import annotations

import math

import pytest

from tests.unit.training.engine.loop_bench import STEPS_PER_EPOCH, LoopBench, recorded_steps, stop_after
from training.errors import PreemptedError


def learning_rates(bench: LoopBench, *, epochs: int, warmup_steps: int | None) -> list[float]:
    with recorded_steps() as steps:
        bench.train(epochs=epochs, warmup_steps=warmup_steps, learning_rate=0.08)
    return [step["learning_rate"] for step in steps]


def cosine(share: float) -> float:
    """From 1 to a tenth."""
    return 0.1 + 0.9 * (1 + math.cos(math.pi * share)) / 2


def test_learning_rate_rises_linearly_during_the_warmup_and_then_falls_by_a_cosine(bench: LoopBench) -> None:
    rates = learning_rates(bench, epochs=6, warmup_steps=4)
    assert rates[:4] == pytest.approx([0.02, 0.04, 0.06, 0.08])
    assert rates[4:] == pytest.approx([0.08 * cosine(step / 20) for step in range(20)])
    assert rates[14] == pytest.approx(0.08 * 0.55), "half of the way: the mean of all and a tenth"


def test_warmup_takes_five_percent_of_all_steps_where_the_spec_gives_none(bench: LoopBench) -> None:
    rates = learning_rates(bench, epochs=10, warmup_steps=None)
    assert len(rates) == 10 * STEPS_PER_EPOCH
    assert rates[:3] == pytest.approx([0.04, 0.08, 0.08]), "two of 40 steps"
    assert rates[3] < 0.08


@pytest.mark.parametrize("warmup_steps", [0, None])
def test_first_step_of_a_training_without_warmup_has_the_whole_learning_rate(bench: LoopBench, warmup_steps: int | None) -> None:
    rates = learning_rates(bench, epochs=1, warmup_steps=warmup_steps)
    assert rates[:2] == pytest.approx([0.08, 0.08])
    assert rates[2:] == pytest.approx([0.08 * cosine(1 / 3), 0.08 * cosine(2 / 3)])


def test_warmup_longer_than_the_training_never_reaches_the_learning_rate(bench: LoopBench) -> None:
    assert learning_rates(bench, epochs=1, warmup_steps=8) == pytest.approx([0.01, 0.02, 0.03, 0.04])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("linear", [0.08 * (1 - 0.9 * step / 20) for step in range(20)]),
        ("constant", [0.08] * 20),
        ("cosine", [0.08 * cosine(step / 20) for step in range(20)]),
    ],
)
def test_learning_rate_after_the_warmup_is_that_of_the_schedule(bench: LoopBench, kind: str, expected: list[float]) -> None:
    with recorded_steps() as steps:
        bench.train(epochs=6, warmup_steps=4, learning_rate=0.08, kind=kind)
    rates = [step["learning_rate"] for step in steps]
    assert rates[:4] == pytest.approx([0.02, 0.04, 0.06, 0.08])
    assert rates[4:] == pytest.approx(expected)


@pytest.mark.parametrize(("share", "steps"), [(0.25, 6), (0.0, 1), (1.0, 24)])
def test_warmup_is_a_share_of_all_steps(bench: LoopBench, share: float, steps: int) -> None:
    with recorded_steps() as seen:
        bench.train(epochs=6, warmup_share=share, learning_rate=0.08)
    rates = [step["learning_rate"] for step in seen]
    assert rates[:steps] == pytest.approx([0.08 * (step + 1) / steps for step in range(steps)])
    assert max(rates) == pytest.approx(0.08)
    assert rates[steps:] == sorted(rates[steps:], reverse=True)


def test_resumed_training_continues_in_the_schedule_where_it_stopped(bench: LoopBench) -> None:
    with recorded_steps() as steps:
        with pytest.raises(PreemptedError):
            stop_after(bench.loop(epochs=3), 5).train()
        bench.train(epochs=3)
    resumed = [step["learning_rate"] for step in steps]
    assert resumed[1:] == pytest.approx([0.1 * cosine(step / 11) for step in range(11)])
