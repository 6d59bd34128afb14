"""What retraining more often costs is arithmetic; what it gains is said only where nights have shown it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from scipy.stats import theilslopes

from training.contracts import canonical_json
from training.evaluation.cadence import Advice, Night, decay, retrain_advice, run_cost
from training.spec.models import Costs

NAN = float("nan")
COSTS = Costs(run=200)
FALLING = [Night(age_days=day, champion=0.7 - 0.002 * day, weights_digest="w1") for day in range(1, 15)]
"""AUC falls by exactly 0.002 a day."""


def option(advice: Advice, rhythm: str) -> dict[str, float]:
    return next(found for found in asdict(advice)["options"] if found["rhythm"] == rhythm)


@pytest.mark.parametrize(
    ("rhythm", "cost", "runs", "mean_age_days"),
    [("weekly", 10_400, 52, 3.5), ("daily", 73_000, 365, 0.5), ("hourly", 1_752_000, 8760, 1 / 48)],
)
def test_a_year_of_retraining_at_200_a_run_costs_what_it_costs(rhythm: str, cost: float, runs: int, mean_age_days: float) -> None:
    found = option(retrain_advice("auc", [], COSTS), rhythm)
    assert (found["cost_per_year"], found["runs_per_year"]) == (cost, runs)
    assert found["mean_age_days"] == pytest.approx(mean_age_days)


def test_staleness_costs_decay_times_mean_age() -> None:
    advice = retrain_advice("auc", FALLING, COSTS)
    assert advice.decay is not None
    assert advice.decay.per_day == pytest.approx(0.002)
    assert advice.decay.is_shown
    lost = [found.metric_lost for found in advice.options]
    assert lost == pytest.approx([0.007, 0.001, 0.002 / 48])
    assert advice.lines == (
        "Drift since the champion's training data: not measured.",
        "Decay: with age the champion's auc gets worse by +0.002 a day (95 % interval +0.002 to +0.002), "
        "14 runs against itself in earlier runs, hard and easy runs mixed in.",
        "Weekly: 10,400 USD a year (52 runs at 200 USD); mean age 3.5 days, auc worse than fresh by 0.007 (0.007 to 0.007).",
        "Daily: 73,000 USD a year (365 runs at 200 USD); mean age 0.5 days, auc worse than fresh by 0.001 (0.001 to 0.001).",
        "Hourly: 1,752,000 USD a year (8760 runs at 200 USD); mean age 0.5 hours, auc worse than fresh by 4.17e-05 (4.17e-05 to 4.17e-05).",
        "Daily instead of weekly: 62,600 USD a year more, auc better by 0.006 on average; 10,433 USD a year for each 0.001.",
        "Hourly instead of daily: 1,679,000 USD a year more, auc better by 0.000958 on average; 1,752,000 USD a year for each 0.001.",
        "Measured at ages up to 14 days; within a day, and beyond those ages, decay is taken for a straight line, "
        "and every run for a new champion: both flatter frequent retraining.",
    )
    assert json.loads(canonical_json(asdict(advice)))["decay"]["num_nights"] == 14


@pytest.mark.parametrize("num_nights", [0, 1, 6])
def test_too_few_nights_say_so_and_promise_nothing(num_nights: int) -> None:
    advice = retrain_advice("auc", FALLING[:num_nights], COSTS)
    assert advice.decay is None
    assert f"too few runs to say ({num_nights} measured" in advice.lines[1]
    assert {found.metric_lost for found in advice.options} == {None}
    assert advice.lines[-1] == "Nothing that was measured says that a higher cost buys a better model."
    assert decay("auc", FALLING[:7]) is not None


def test_nights_without_a_number_are_left_out() -> None:
    broken = [Night(age_days=15, champion=NAN), Night(age_days=float("inf"), champion=0.7), Night(**{"age_days": 16, "champion": "nan"})]
    assert decay("auc", [*FALLING, *broken]) == decay("auc", FALLING)
    assert decay("auc", [*FALLING[:6], *broken]) is None


def test_runs_each_with_another_champion_give_no_advice() -> None:
    assert decay("auc", [Night(age_days=1, champion=0.7 - 0.01 * day, weights_digest=str(day)) for day in range(30)]) is None


def test_nights_without_decay_say_that_more_money_buys_nothing() -> None:
    level = [Night(age_days=day, champion=0.7 + 0.001 * (-1) ** day) for day in range(1, 15)]
    advice = retrain_advice("auc", level, COSTS)
    assert advice.decay is not None
    assert not advice.decay.is_shown
    assert advice.lines[1].endswith("the interval is not above zero, so no decay is shown.")
    assert advice.lines[-1] == "Nothing that was measured says that a higher cost buys a better model."


def test_metric_that_is_better_when_lower_decays_by_rising() -> None:
    rising = [Night(age_days=day, champion=0.5 + 0.003 * day) for day in range(1, 15)]
    worse, better = decay("log_loss", rising), decay("auc", rising)
    assert worse is not None
    assert better is not None
    assert worse.per_day == pytest.approx(0.003)
    assert better.per_day == pytest.approx(-0.003)
    assert (worse.is_shown, better.is_shown) == (True, False)


@pytest.mark.parametrize("seed", range(5))
def test_decay_and_its_interval_are_scipys(seed: int) -> None:
    generator = np.random.default_rng(seed)
    ages = np.arange(1.0, 21.0)
    values = 0.7 - 0.001 * ages + generator.normal(scale=0.005, size=20)
    found = decay("auc", [Night(age_days=age, champion=value) for age, value in zip(ages, values, strict=True)])
    assert found is not None
    known = theilslopes(-values, ages, alpha=0.95)
    assert (found.per_day, found.low, found.high) == pytest.approx((known.slope, known.low_slope, known.high_slope))


def test_one_odd_night_hardly_matters() -> None:
    odd = [*FALLING[:-1], Night(age_days=14, champion=0.1, weights_digest="w1")]
    found = decay("auc", odd)
    assert found is not None
    assert found.per_day == pytest.approx(0.002, rel=0.01)


def test_champions_are_compared_with_themselves_alone() -> None:
    first = [Night(age_days=day, champion=0.70 - 0.002 * day, weights_digest="w1") for day in range(1, 8)]
    second = [Night(age_days=day, champion=0.90 - 0.002 * day, weights_digest="w2") for day in range(5, 12)]
    found = decay("auc", [*first, *second])
    assert found is not None
    assert (found.per_day, found.low, found.high) == pytest.approx((0.002, 0.002, 0.002))
    assert found.num_nights == 14


def test_hard_and_easy_nights_cancel_against_each_nights_own_candidate() -> None:
    swing = [0.05 * np.sin(day) for day in range(1, 15)]
    nights = [
        Night(age_days=day, champion=0.7 + swing[day - 1] - 0.002 * day, candidate=0.7 + swing[day - 1], weights_digest="w1")
        for day in range(1, 15)
    ]
    found = decay("auc", nights)
    assert found is not None
    assert found.is_paired
    assert (found.per_day, found.low, found.high) == pytest.approx((0.002, 0.002, 0.002))
    alone = decay("auc", [Night(age_days=night.age_days, champion=night.champion) for night in nights])
    assert alone is not None
    assert not alone.is_shown


def test_interval_holds_the_true_decay_in_nineteen_of_twenty_histories() -> None:
    generator = np.random.default_rng(7)
    hits = 0
    for _ in range(400):
        nights = [
            Night(age_days=age, champion=0.7 - 0.001 * age + generator.normal(scale=0.003), weights_digest=version)
            for version, size in (("1", 8), ("2", 6), ("3", 5))
            for age in range(1, size + 1)
        ]
        found = decay("auc", nights)
        assert found is not None
        hits += found.low <= 0.001 <= found.high
    assert 0.92 <= hits / 400 <= 0.98


def test_run_costs_what_the_spec_says_or_its_hours() -> None:
    assert run_cost(Costs(run=200, hour=9), 3.0) == 200
    assert run_cost(Costs(hour=2.5), 8.0) == 20
    assert run_cost(Costs(run=0)) == 0
    assert run_cost(Costs(hour=2.5)) is None
    assert run_cost(Costs(), 8.0) is None


def test_unknown_cost_is_said_with_what_to_set() -> None:
    advice = retrain_advice("auc", FALLING, Costs())
    assert advice.lines[-1] == "What a run costs is not known: set costs.run, or costs.hour, in the spec."
    assert {found.cost_per_year for found in advice.options} == {None}
    cheap = retrain_advice("auc", FALLING, Costs(hour=0.5, currency="EUR"), process_hours=0.25)
    assert "Weekly: 6.50 EUR a year (52 runs at 0.12 EUR)" in cheap.lines[2]


@pytest.mark.parametrize(
    ("drift", "words"),
    [
        (None, "not measured"),
        ({"hour": NAN, "carrier": "inf"}, "not measured"),
        ({"hour": 0.05, "carrier": 0.02}, "hour 0.05, carrier 0.02; the data are as before."),
        ({"hour": 0.2}, "hour 0.20; some of the data have moved."),
        ({"a": 0.3, "b": 0.01, "c": 0.4, "d": 0.02}, "c 0.40, a 0.30, d 0.02; 2 of 4 above 0.25: another population than the champion"),
    ],
)
def test_drift_is_said_by_its_customary_bounds(drift: dict[str, Any] | None, words: str) -> None:
    assert words in retrain_advice("auc", FALLING, COSTS, drift=drift).lines[0]
