"""Fitting trees: rounds, early stopping, stopped and resumed, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import xgboost

from tests.unit.training.engine.loop_bench import reported_by
from tests.unit.training.models.family_bench import FamilyBench
from training.errors import DivergedError, PreemptedError
from training.models.base import FitContext, FitResult
from training.models.boosted_trees.module import FAMILY, _Rounds


def fit(context: FitContext) -> FitResult:
    try:
        return FAMILY.fit(context)
    finally:
        context.checkpoints.close()


def scripted(monkeypatch: pytest.MonkeyPatch, losses: list[float]) -> None:
    """Let the nth round have the nth of these validation losses."""
    record = _Rounds.record

    def scripted_record(self: _Rounds, train_loss: float, validation_loss: float) -> None:
        record(self, train_loss, losses[self.num_rounds])

    monkeypatch.setattr(_Rounds, "record", scripted_record)


@pytest.fixture
def bench(tmp_path: Path) -> FamilyBench:
    return FamilyBench(tmp_path, "binary")


@pytest.mark.parametrize(("patience", "rounds"), [(1, 3), (2, 6), (3, 7), (None, 8)])
def test_boosting_ends_after_the_rounds_without_a_better_one_that_the_spec_allows(
    bench: FamilyBench, monkeypatch: pytest.MonkeyPatch, patience: int | None, rounds: int
) -> None:
    losses = [4.0, 3.0, 3.0, 2.0, 2.5, 2.5, 2.5, 1.0]
    scripted(monkeypatch, losses)
    result = fit(bench.fit_context("boosted_trees", epochs=8, early_stopping=patience))
    assert result.num_steps == rounds
    assert result.best_epoch == {3: 2, 6: 4, 7: 4, 8: 8}[rounds]
    assert result.validation_loss == losses[result.best_epoch - 1]
    booster = xgboost.Booster()
    booster.load_model(bytearray(result.weights))
    assert booster.num_boosted_rounds() == result.best_epoch, "the model ends at the best round"


@pytest.mark.parametrize("task", ["binary", "ranking"])
@pytest.mark.parametrize("round_number", [1, 5, 9])
def test_trees_stopped_after_a_round_end_in_the_same_bits_when_resumed(tmp_path: Path, task: str, round_number: int) -> None:
    undisturbed = fit(FamilyBench(tmp_path / "undisturbed", task).fit_context("boosted_trees", epochs=10))
    bench = FamilyBench(tmp_path / "stopped", task)

    def judge(rounds: int, loss: float) -> bool:
        if rounds == round_number:
            context.stop.request()
        return False

    context = bench.fit_context("boosted_trees", epochs=10, judge=judge)
    with pytest.raises(PreemptedError, match=f"stopped after round {round_number}, which is committed") as caught:
        fit(context)
    assert caught.value.code == "train.preempted"
    assert bench.saved[-1]["step"] == round_number
    resumed = fit(bench.fit_context("boosted_trees", epochs=10))
    assert resumed.weights == undisturbed.weights
    assert resumed.history == undisturbed.history
    assert (resumed.best_epoch, resumed.validation_loss, resumed.num_steps) == (undisturbed.best_epoch, undisturbed.validation_loss, 10)


def test_saves_in_between_change_no_bit_and_are_made_after_each_round_that_is_due(bench: FamilyBench, tmp_path: Path) -> None:
    undisturbed = fit(FamilyBench(tmp_path / "undisturbed", "binary").fit_context("boosted_trees", epochs=4))
    assert fit(bench.fit_context("boosted_trees", epochs=4, every_seconds=0)).weights == undisturbed.weights
    assert bench.saved[0]["step"] == 1
    assert FamilyBench(tmp_path / "rare", "binary").saved == []


def test_rounds_are_the_steps_of_an_interval(bench: FamilyBench) -> None:
    fit(bench.fit_context("boosted_trees", epochs=5, every_steps=2))
    assert [saved["step"] for saved in bench.saved] == [2, 4]


def test_finished_or_stopped_boosting_that_is_started_again_adds_no_round(bench: FamilyBench, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, [2.0, 3.0, 3.0, 3.0, 3.0, 3.0])

    def save_each(self: _Rounds) -> bool:
        self.context.checkpoints.wait()
        return True

    monkeypatch.setattr(_Rounds, "checkpoint_due", property(save_each))
    first = fit(bench.fit_context("boosted_trees", epochs=6, early_stopping=2))
    again = fit(bench.fit_context("boosted_trees", epochs=6, early_stopping=2))
    assert (first.num_steps, again.num_steps) == (3, 3)
    assert again.weights == first.weights
    whole = fit(bench.fit_context("boosted_trees", epochs=3))
    assert (whole.num_steps, whole.weights) == (3, first.weights)


def test_judge_ends_the_boosting_and_every_round_is_tracked_and_reported(bench: FamilyBench) -> None:
    context = bench.fit_context("boosted_trees", epochs=9, judge=lambda rounds, loss: rounds == 3)
    result = fit(context)
    assert result.num_steps == 3
    assert [step for step, _metrics in bench.tracker.logged] == [1, 2, 3]
    assert all(metrics["training_throughput_samples_per_sec"] > 0 for _step, metrics in bench.tracker.logged)
    assert [metrics["validation_loss"] for _step, metrics in bench.tracker.logged] == [entry["validation_loss"] for entry in result.history]
    reported = reported_by(context.progress)
    assert [(entry["done"], entry["total"], entry["unit"]) for entry in reported] == [(1, 9, "rounds"), (2, 9, "rounds"), (3, 9, "rounds")]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_loss_that_is_not_finite_ends_the_boosting(bench: FamilyBench, monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    scripted(monkeypatch, [1.0, value])
    with pytest.raises(DivergedError, match="round 2: ") as caught:
        fit(bench.fit_context("boosted_trees", epochs=4))
    assert caught.value.code == "loss.not_finite"


def test_gain_of_a_ranking_counts_as_a_loss_and_falls(tmp_path: Path) -> None:
    result = fit(FamilyBench(tmp_path, "ranking").fit_context("boosted_trees", epochs=10))
    assert -1 <= result.history[-1]["train_loss"] < result.history[0]["train_loss"] < 0


def test_scores_of_several_classes_are_a_probability_for_each(tmp_path: Path) -> None:
    bench = FamilyBench(tmp_path, "multiclass")
    result = fit(bench.fit_context("boosted_trees", epochs=3))
    assert result.architecture == {"objective": "multi:softprob", "num_class": 3, "log_labels": False}
