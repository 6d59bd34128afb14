"""A training with a stop notice: what is committed before SIGKILL, and that the process ends."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.training.engine.loop_bench import LoopBench, after_each_step
from training.engine.loop import Loop
from training.errors import PreemptedError
from training.runtime.context import StopFlag
from training.store.objects import Objects

NEVER = 20.0


class Gate:
    """Holds back every block, as a store does that is slower than any notice."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        self.opened.set()
        original = Objects.put_block

        def put_block(store: Objects, block: Any) -> Any:
            self.opened.wait(NEVER)
            return original(store, block)

        patch.setattr(Objects, "put_block", put_block)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    found = Gate(monkeypatch)
    yield found
    found.opened.set()


def told_after(loop: Loop, step: int, seconds: float, gate: Gate | None = None) -> str:
    """Train until a notice of so many seconds comes after a step, from where on the gate is shut; return what the training says."""
    steps: list[int] = []

    def tell() -> None:
        steps.append(1)
        if len(steps) == step:
            # The save at the end of the epoch before is not what is tested.
            loop._parts.checkpoints.wait()
            if gate is not None:
                gate.opened.clear()
            loop._parts.stop.request(seconds)

    with after_each_step(tell), pytest.raises(PreemptedError) as caught:
        loop.train()
    loop._parts.checkpoints.close()
    return str(caught.value)


@pytest.mark.parametrize("seconds", [120.0, 30.0, 5.0])
def test_step_of_the_notice_is_committed_where_the_time_is_enough(bench: LoopBench, seconds: float) -> None:
    assert "step 6, which is committed" in told_after(bench.loop(), 6, seconds)
    assert [entry["step"] for entry in bench.saved] == [4, 6]


def test_save_that_is_not_written_in_time_is_given_up_and_the_one_before_stands(
    bench: LoopBench, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        said = told_after(bench.loop(), 6, 0.5, gate)
    assert "step 6, which is not committed" in said
    assert "step 6 was not committed in time: the checkpoint before it is kept" in caplog.text
    gate.opened.set()
    assert [entry["step"] for entry in bench.saved] == [4]
    assert bench.train().progress.step == 12


def test_save_longer_than_the_notice_is_not_begun(
    bench: LoopBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loop = bench.loop()
    with monkeypatch.context() as patch, caplog.at_level(logging.INFO):
        patch.setattr(type(loop._parts.checkpoints), "expected_seconds", lambda _self: 31.0)
        assert "step 6, which is not committed" in told_after(loop, 6, 30.0)
    assert "earlier checkpoints took 31.0 s: it is not saved, the checkpoint before it is kept" in caplog.text
    assert [entry["step"] for entry in bench.saved] == [4]
    assert bench.train().progress.step == 12


def test_time_of_a_save_is_that_of_the_slowest_of_the_last_ones(bench: LoopBench, gate: Gate) -> None:
    checkpoints = bench.loop()._parts.checkpoints
    assert checkpoints.expected_seconds() == 0
    gate.opened.clear()
    threading.Timer(0.4, gate.opened.set).start()
    for step in (1, 2):
        checkpoints.save_bytes({"a": bytes([step])}, {"step": step, "epoch": 0, "best_epoch": 0})  # type: ignore[typeddict-item]
        checkpoints.wait()
    assert 0.3 <= checkpoints.expected_seconds() < NEVER
    checkpoints.close()


def test_earliest_end_counts_and_part_of_it_is_for_what_comes_after_the_commit() -> None:
    stop = StopFlag()
    assert not stop.requested
    stop.request()
    assert (stop.requested, stop.seconds_left) == (True, float("inf"))
    stop.request(120)
    assert 110 < stop.seconds_left <= 115
    stop.request(5)
    stop.request(30)
    assert 3 < stop.seconds_left <= 4
