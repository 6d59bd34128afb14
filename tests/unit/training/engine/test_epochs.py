"""What an epoch ends with: validation, the best weights, early stopping, pruning."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.training.engine.loop_bench import (
    Line,
    LoopBench,
    Normalized,
    RecordingTracker,
    after_each_step,
    outcome,
    scripted_validation,
    squares,
    stop_after,
)
from training.data.dataset.loader import Batch
from training.engine.parallel.gang import Gang
from training.errors import PreemptedError


def epochs_done(bench: LoopBench, losses: list[float], patience: int | None) -> tuple[int, int]:
    """Return the epochs done and the best one, of a training whose validation losses are given."""
    loop = bench.train(loss=scripted_validation(losses), epochs=len(losses), early_stopping=patience)
    assert [entry["validation_loss"] for entry in loop.progress.history] == pytest.approx(losses[: loop.progress.epoch])
    assert [entry["epoch"] for entry in loop.progress.history] == list(range(1, loop.progress.epoch + 1))
    assert loop.progress.best_loss == pytest.approx(losses[loop.progress.best_epoch - 1])
    return loop.progress.epoch, loop.progress.best_epoch


@pytest.mark.parametrize(
    ("patience", "done"), [(1, 3), (2, 6), (3, 7), (None, 8)], ids=["patience 1", "patience 2", "patience 3", "no early stopping"]
)
def test_training_ends_after_the_epochs_without_a_better_one_that_the_spec_allows(
    bench: LoopBench, patience: int | None, done: int
) -> None:
    losses = [4.0, 3.0, 3.5, 2.0, 2.5, 2.5, 2.5, 1.0]
    assert epochs_done(bench, losses, patience) == (done, {3: 2, 6: 4, 7: 4, 8: 8}[done])


def test_equal_loss_is_no_better_epoch(bench: LoopBench) -> None:
    assert epochs_done(bench, [2.0, 2.0, 2.0, 2.0], 2) == (3, 1)


def test_best_weights_are_those_of_the_best_epoch_and_not_the_last(bench: LoopBench) -> None:
    stopped = bench.train(loss=scripted_validation([3.0, 1.0, 2.0, 2.0]), epochs=4)
    other = LoopBench(bench.folder / "other").loop(loss=scripted_validation([3.0, 1.0, 2.0, 2.0]), epochs=4)
    at_step: dict[int, dict[str, list[float]]] = {}

    def record() -> None:
        at_step[len(at_step) + 1] = {name: p.detach().tolist() for name, p in other._parts.module.named_parameters()}

    with after_each_step(record):
        other.train()
    other._parts.checkpoints.close()
    assert outcome(stopped)["best"] == at_step[8] != at_step[16]
    assert outcome(stopped)["weights"] == at_step[16]


def test_training_that_stopped_early_trains_no_further_when_it_is_started_again(bench: LoopBench) -> None:
    losses = [1.0, 2.0, 3.0, 4.0, 5.0]
    first = bench.train(loss=scripted_validation(losses), epochs=5, early_stopping=2)
    again = bench.train(loss=scripted_validation(losses), epochs=5, early_stopping=2)
    assert first.progress.epoch == 3
    assert outcome(again) == outcome(first)
    assert len(bench.saved) == 3


def test_judge_sees_every_epoch_and_ends_the_training_when_it_says_so(bench: LoopBench) -> None:
    seen: list[tuple[int, float]] = []

    def judge(epochs: int, loss: float) -> bool:
        seen.append((epochs, loss))
        return epochs == 2

    loop = bench.train(judge=judge, epochs=5)
    assert loop.progress.epoch == 2
    assert [epochs for epochs, _loss in seen] == [1, 2]
    assert [loss for _epochs, loss in seen] == [entry["validation_loss"] for entry in loop.progress.history]
    assert loop.best


def test_validation_loss_is_the_mean_over_all_validation_rows_without_gradients_or_dropout(bench: LoopBench) -> None:
    seen: list[tuple[bool, bool]] = []
    module = Line()

    def loss(inner: nn.Module, batch: Batch) -> torch.Tensor:
        if not inner.training:
            seen.append((torch.is_grad_enabled(), isinstance(inner, Line)))
        return squares(inner, batch)

    loop = bench.train(module, loss=loss, epochs=1)
    module.eval()
    with torch.no_grad():
        rows = list(bench.loader("validation").batches(0))
        expected = sum(float(squares(module, batch)) for batch in rows) / sum(len(batch["label"]) for batch in rows)
    assert loop.progress.history[0]["validation_loss"] == pytest.approx(expected, rel=1e-6)
    assert seen == [(False, True), (False, True)]


def test_module_is_in_training_mode_again_after_each_validation(bench: LoopBench) -> None:
    modes: list[bool] = []

    def loss(module: nn.Module, batch: Batch) -> torch.Tensor:
        modes.append(module.training)
        return squares(module, batch)

    bench.train(Normalized(), loss=loss, epochs=2)
    assert modes == ([True] * 4 + [False] * 2) * 2


def test_training_loss_of_an_epoch_is_the_mean_over_all_units(bench: LoopBench) -> None:
    totals: list[float] = []

    def loss(module: nn.Module, batch: Batch) -> torch.Tensor:
        total = squares(module, batch)
        if module.training:
            totals.append(float(total.detach()))
        return total

    loop = bench.train(loss=loss, epochs=2)
    expected = [sum(totals[:4]) / 48, sum(totals[4:]) / 48]
    assert [entry["train_loss"] for entry in loop.progress.history] == pytest.approx(expected, rel=1e-6)


def test_training_loss_of_a_resumed_epoch_counts_the_steps_before_the_stop(bench: LoopBench) -> None:
    undisturbed = LoopBench(bench.folder / "undisturbed").train(epochs=1)
    with pytest.raises(PreemptedError):
        stop_after(bench.loop(epochs=1), 3).train()
    assert bench.train(epochs=1).progress.history == undisturbed.progress.history


@pytest.mark.parametrize("has_split", [True, False])
def test_training_loss_decides_where_there_are_no_validation_rows(bench: LoopBench, has_split: bool) -> None:
    bench.meta["shards"]["validation"] = []
    loop = bench.train(validation=bench.loader("validation") if has_split else None)
    assert loop.progress.best_epoch > 0
    for entry in loop.progress.history:
        assert entry["validation_loss"] == entry["train_loss"]


@pytest.mark.usefixtures("process_group")
def test_other_ranks_neither_judge_nor_track_nor_save_and_act_on_what_the_first_one_says(
    bench: LoopBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judge(epochs: int, loss: float) -> bool:
        pytest.fail("a rank other than the first judges")

    given: list[tuple[float, ...]] = []
    shares: list[float] = []

    def from_first(self: Gang, *numbers: float) -> list[float]:
        if len(numbers) == 1:
            shares.append(numbers[0])
            return [9.0]
        given.append(numbers)
        return [0.5, 0.25, float(len(given) == 2)]

    monkeypatch.setattr(Gang, "sum", from_first)
    tracker: Any = RecordingTracker()
    loop = bench.train(rank=1, judge=judge, tracker=tracker, gang=Gang(1, 2, torch.device("cpu")), epochs=5, every_seconds=0)
    assert loop.progress.epoch == 2, "the first one gave it up"
    assert given == [(0.0, 0.0, 0.0)] * 2, "only the first one's losses count"
    assert sum(share > 0 for share in shares) == 2, "it validates its share of each epoch"
    assert [entry["train_loss"] for entry in loop.progress.history] == [0.5, 0.5]
    assert [entry["validation_loss"] for entry in loop.progress.history] == [0.25, 0.25]
    assert not any("epoch" in metrics for _step, metrics in tracker.logged)
    assert bench.store.bucket.list("") == [], "no blocks of a checkpoint either"


def test_every_validation_begins_with_the_buffers_of_the_first_rank(bench: LoopBench, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []
    monkeypatch.setattr(Gang, "copy_from_first", lambda _self, tensors: copied.append(len(list(tensors))))
    module = Normalized()
    bench.train(module, epochs=2)
    assert copied == [len(list(module.buffers()))] * 2
