"""Stopped and resumed, rescued, with saves in between: always the undisturbed training, bit by bit."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.training.engine.loop_bench import (
    Line,
    LoopBench,
    Noisy,
    Normalized,
    after_each_step,
    outcome,
    scripted_validation,
    squares,
    stop_after,
)
from training.data.dataset.loader import Batch
from training.engine.loop import Loop, Progress
from training.engine.optim import Schedule, ScheduledOptimizer
from training.engine.optimizers import OptimizerSettings
from training.engine.parallel.gang import Gang
from training.errors import PeerLostError, PreemptedError, UnavailableError

NUM_STEPS = 12
MODULES: Any = {"plain": Line, "dropout": Noisy, "batch norm": Normalized}


@pytest.fixture(params=list(MODULES))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def undisturbed(folder: Path, kind: str) -> dict[str, Any]:
    return outcome(LoopBench(folder / "undisturbed").train(MODULES[kind]()))


def stopped(bench: LoopBench, kind: str, step: int, **changes: Any) -> Loop:
    """Train until the training is asked to stop after `step` steps."""
    loop = stop_after(bench.loop(MODULES[kind](), **changes), step)
    with pytest.raises(PreemptedError, match=f"stopped after step {step}, which is committed") as caught:
        loop.train()
    assert caught.value.code == "train.preempted"
    loop._parts.checkpoints.close()
    return loop


@pytest.mark.slow
def test_a_training_that_is_stopped_has_ended_its_loaders_thread(bench: LoopBench) -> None:
    loop = stop_after(bench.loop(Line()), 2)
    with pytest.raises(PreemptedError) as caught:
        loop.train()
    # The error's traceback holds the frames of the loop: nothing of them was collected.
    assert caught.value.__traceback__ is not None
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("loader")] == []


@pytest.mark.parametrize("step", [1, 4, 6, 11, 12])
def test_training_stopped_after_a_step_ends_in_the_same_bits_when_resumed(bench: LoopBench, tmp_path: Path, kind: str, step: int) -> None:
    stopped(bench, kind, step)
    assert bench.saved[-1]["step"] == step
    assert bench.saved[-1]["epoch"] == (step - 1) // 4
    resumed = bench.train(MODULES[kind]())
    assert resumed.progress.step == NUM_STEPS
    assert outcome(resumed) == undisturbed(tmp_path, kind)


def test_training_stopped_after_each_step_ends_in_the_same_bits(bench: LoopBench, tmp_path: Path, kind: str) -> None:
    for step in range(1, NUM_STEPS + 1):
        stopped(bench, kind, step)
    assert outcome(bench.train(MODULES[kind]())) == undisturbed(tmp_path, kind)


def test_restored_optimizer_state_is_where_its_parameter_is_also_the_step(bench: LoopBench) -> None:
    state = bench.train(Line(), epochs=1)._optimizer.state()
    # A device that is not the CPU, as a GPU is: the fused kernel there refuses a step on the CPU.
    parameters = {name: nn.Parameter(parameter.detach().to("meta")) for name, parameter in Line().named_parameters()}
    elsewhere = ScheduledOptimizer(parameters, Schedule(learning_rate=0.1, total_steps=4), OptimizerSettings())
    elsewhere.restore(state)
    assert set(elsewhere.state()) == set(state)
    places = {(name.partition("/")[0], tensor.device.type) for name, tensor in elsewhere.state().items()}
    assert places == {("step", "meta"), ("exp_avg", "meta"), ("exp_avg_sq", "meta")}


def test_saves_in_between_change_no_bit(bench: LoopBench, tmp_path: Path, kind: str) -> None:
    assert outcome(bench.train(MODULES[kind](), every_seconds=0)) == undisturbed(tmp_path, kind)


def test_resumed_training_sees_the_rows_that_the_undisturbed_one_sees(bench: LoopBench, tmp_path: Path) -> None:
    rows: list[list[int]] = []

    def loss(module: nn.Module, batch: Batch) -> torch.Tensor:
        if module.training:
            rows.append(batch["features_int"][:, 0].tolist())
        return squares(module, batch)

    LoopBench(tmp_path / "undisturbed").train(loss=loss)
    whole, rows[:] = list(rows), []
    with pytest.raises(PreemptedError):
        stop_after(bench.loop(loss=loss), 6).train()
    bench.train(loss=loss)
    assert rows == whole
    for epoch in range(3):
        assert sorted(itertools.chain.from_iterable(whole[epoch * 4 : epoch * 4 + 4])) == list(range(48)), "each row once an epoch"
    assert whole[:4] != whole[4:8] != whole[8:]


def test_save_with_a_name_is_made_at_the_end_of_each_epoch(bench: LoopBench) -> None:
    bench.train()
    assert [(entry["step"], entry["epoch"]) for entry in bench.saved] == [(4, 1), (8, 2), (12, 3)]
    named = bench.named
    best = named.pop("best")
    assert named == {f"epoch_{number}": entry["uri"] for number, entry in enumerate(bench.saved, start=1)}
    assert best in named.values()


def test_save_that_is_due_is_made_after_the_step(bench: LoopBench, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = bench.loop(epochs=1)
    checkpoints = type(loop._parts.checkpoints)
    monkeypatch.setattr(checkpoints, "is_due", lambda self, step: step in (1, 3))
    loop.train()
    loop._parts.checkpoints.close()
    assert [(entry["step"], entry["epoch"]) for entry in bench.saved] == [(1, 0), (3, 0), (4, 1)]


def test_best_is_the_checkpoint_of_the_epoch_with_the_lowest_validation_loss(bench: LoopBench) -> None:
    bench.train(loss=scripted_validation([3.0, 1.0, 2.0]))
    assert bench.named["best"] == bench.named["epoch_2"] != bench.named["epoch_3"]


def test_resumed_training_saves_at_the_same_steps(bench: LoopBench, tmp_path: Path) -> None:
    undisturbed = LoopBench(tmp_path / "undisturbed")
    undisturbed.train(every_steps=5)
    with pytest.raises(PreemptedError):
        stop_after(bench.loop(every_steps=5), 6).train()
    bench.train(every_steps=5)
    assert [entry["step"] for entry in undisturbed.saved] == [4, 5, 8, 10, 12]
    assert [entry["step"] for entry in bench.saved] == [4, 5, 6, 8, 10, 12]


def test_finished_training_that_is_started_again_takes_no_step(bench: LoopBench) -> None:
    first = bench.train()
    steps: list[int] = []
    again = bench.loop()
    with after_each_step(lambda: steps.append(1)):
        again.train()
    again._parts.checkpoints.close()
    assert steps == []
    assert outcome(again) == outcome(first)


def test_training_ends_with_its_last_save_committed(bench: LoopBench) -> None:
    loop = bench.loop()
    loop.train()
    assert bench.saved[-1]["step"] == NUM_STEPS, "before anything is closed"
    loop._parts.checkpoints.close()


def test_training_whose_saves_all_fail_ends_at_the_third(bench: LoopBench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(data: memoryview) -> tuple[str, bool]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bench.store.objects, "put_block", fail)
    loop = bench.loop(epochs=10)
    with pytest.raises(UnavailableError, match="was not saved, as 2 before it"):
        loop.train()
    assert loop.progress.epoch == 4, "each epoch's save is waited for by the next one's"
    loop._parts.checkpoints.close()


def losing_a_peer(step: int) -> Any:
    """Return a loss during whose step number `step` (from 1) another rank is lost."""
    calls: list[int] = []

    def loss(module: nn.Module, batch: Batch) -> torch.Tensor:
        total = squares(module, batch)
        if module.training:
            calls.append(1)
            if len(calls) == step:
                raise PeerLostError("peer.lost", "rank 1 is gone")
        return total

    return loss


@pytest.mark.parametrize("kind", ["plain", "dropout"])
@pytest.mark.parametrize("step", [2, 5, 7])
def test_step_in_which_a_peer_is_lost_costs_no_step_before_it(bench: LoopBench, tmp_path: Path, kind: str, step: int) -> None:
    with pytest.raises(PeerLostError):
        bench.train(MODULES[kind](), loss=losing_a_peer(step))
    assert bench.saved[-1]["step"] == step - 1
    assert outcome(bench.train(MODULES[kind]())) == undisturbed(tmp_path, kind)


def test_module_with_buffers_is_not_rescued_because_the_broken_step_has_changed_them(bench: LoopBench, tmp_path: Path) -> None:
    with pytest.raises(PeerLostError):
        bench.train(Normalized(), loss=losing_a_peer(7))
    assert [entry["step"] for entry in bench.saved] == [4], "the epoch's own save"
    assert outcome(bench.train(Normalized())) == undisturbed(tmp_path, "batch norm")


def test_rescue_is_committed_before_the_error_leaves_the_loop(bench: LoopBench) -> None:
    loop = bench.loop(loss=losing_a_peer(3))
    with pytest.raises(PeerLostError):
        loop.train()
    assert [entry["step"] for entry in bench.saved] == [2]
    loop._parts.checkpoints.close()


def test_rank_that_was_asked_to_stop_while_its_peer_ended_is_preempted(bench: LoopBench) -> None:
    lost = losing_a_peer(3)

    def loss(module: nn.Module, batch: Batch) -> torch.Tensor:
        if loop.progress.step == 2:
            loop._parts.stop.request()
        return lost(module, batch)

    loop = bench.loop(loss=loss)
    with pytest.raises(PreemptedError, match="stopped after step 2, which is committed"):
        loop.train()
    assert [entry["step"] for entry in bench.saved] == [2]
    loop._parts.checkpoints.close()


def test_ranks_other_than_the_first_save_nothing(bench: LoopBench) -> None:
    with pytest.raises(PeerLostError):
        bench.train(rank=1, loss=losing_a_peer(3), gang=Gang(1, 1, torch.device("cpu")), every_seconds=0)
    context = bench.context(rank=1)
    other = stop_after(bench.loop(stage=context, gang=Gang(1, 1, torch.device("cpu"))), 2)
    with pytest.raises(PreemptedError, match="rank 1 stopped after step 2"):
        other.train()
    assert context.last_progress == {}
    other._parts.checkpoints.close()
    assert bench.store.bucket.list("") == [], "no blocks either"


def test_error_of_the_training_itself_is_not_rescued(bench: LoopBench) -> None:
    def loss(module: nn.Module, batch: Batch) -> torch.Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        bench.train(loss=loss)
    assert bench.saved == []


def test_state_holds_weights_best_weights_and_the_optimizers_moments(bench: LoopBench) -> None:
    loop = bench.train(Normalized(), epochs=1)
    restored = loop._parts.checkpoints.restore(loop._parts.checkpoints.newest_entry())
    parameters = {"line.weight", "line.bias", "norm.weight", "norm.bias"}
    module = parameters | {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert set(restored.state) == (
        {f"module/{name}" for name in module}
        | {f"best/{name}" for name in module}
        | {f"optimizer/{key}/{name}" for key in ("step", "exp_avg", "exp_avg_sq") for name in parameters}
    )
    assert float(restored.state["optimizer/step/line.weight"]) == 4.0


def test_best_weights_are_a_copy_that_later_steps_do_not_change(bench: LoopBench) -> None:
    loop = bench.train(epochs=1)
    before = outcome(loop)["best"]
    with torch.no_grad():
        loop._parts.module.get_parameter("line.weight").fill_(9.0)
    assert outcome(loop)["best"] == before


def test_progress_without_a_best_epoch_is_json_and_is_read_back() -> None:
    progress = Progress(step=3, epoch_loss=1.5)
    assert progress.to_json()["best_loss"] is None
    assert Progress.from_json(progress.to_json()) == progress
    best = Progress(step=4, epoch=1, best_epoch=1, best_loss=0.5, history=[{"epoch": 1}])
    assert Progress.from_json({**best.to_json(), "identity": "of the checkpoint"}) == best
