"""What retraining more often costs is arithmetic; what it gains is said only where later runs have shown it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import theilslopes

from training.registry.ledger.ledger import Entry, Ledger
from training.registry.ledger.retraining import LaterRun, decay, retraining_lines

FALLING = [LaterRun(age_days=day, champion=0.7 - 0.002 * day, weights_digest="w1") for day in range(1, 15)]
"""AUC falls by exactly 0.002 a day."""


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(f"sqlite:///{tmp_path}/nightshift.db")


def decided(ledger: Ledger, day: int, champion: Any, candidate: Any = 0.7, *, run_cost: float | None = 200.0, **changed: Any) -> None:
    """Record the decision of a later run, with the champion of 1 January."""
    evidence = {
        "as_of": f"2026-01-{1 + day:02}T00:00:00+00:00",
        "champion": {"weights_digest": "w1", "as_of": "2026-01-01T00:00:00+00:00"},
        "champion_metrics": {"auc": champion},
        "metrics": {"auc": candidate},
        "retraining": {"primary": "auc", "run_cost": run_cost, "currency": "EUR"},
    }
    entry = Entry(
        model="m",
        key=f"k{day}",
        weights_digest=f"w{day + 1}",
        version=str(day + 1),
        action="recorded",
        outcome="rejected",
        reasons=[],
        evidence=evidence,
        decided_by="night",
    )
    ledger.record(replace(entry, **changed))


def test_a_year_of_retraining_costs_its_runs_and_gains_the_decay_at_the_mean_age(ledger: Ledger) -> None:
    for day in range(1, 15):
        decided(ledger, day, 0.7 - 0.002 * day)
    assert retraining_lines(ledger, "m") == [
        "decay: auc gets worse by +0.002 a day (95 % interval +0.002 to +0.002), in 14 runs at ages up to 14 days",
        "weekly: 52 runs, 10,400 EUR a year; auc worse than fresh by 0.007 at the champion's mean age",
        "daily: 365 runs, 73,000 EUR a year; auc worse than fresh by 0.001 at the champion's mean age",
        "hourly: 8760 runs, 1,752,000 EUR a year; auc worse than fresh by 4.17e-05 at the champion's mean age",
    ]


def test_decisions_by_a_person_and_runs_without_a_number_are_not_measured(ledger: Ledger) -> None:
    for day in range(1, 7):
        decided(ledger, day, 0.7 - 0.002 * day, **({"outcome": "needs_approval"} if day == 6 else {}))
    decided(ledger, 7, "nan")
    (asked,) = ledger.open_requests("m")
    decided(ledger, 8, 0.1, weights_digest=asked.weights_digest, request_key=asked.key)
    lines = retraining_lines(ledger, "m")
    assert lines[0].startswith("decay: too few runs to say (6 measured")
    assert lines[1] == "weekly: 52 runs, 10,400 EUR a year"


def test_unknown_cost_is_said_with_what_to_set(ledger: Ledger) -> None:
    decided(ledger, 1, 0.7, run_cost=None)
    lines = retraining_lines(ledger, "m")
    assert lines[1] == "weekly: 52 runs"
    assert lines[-1] == "what a run costs is not known: set costs.run, or costs.hour, in the YAML"


def test_model_without_a_decision_on_a_candidate_has_no_lines(ledger: Ledger) -> None:
    assert retraining_lines(ledger, "m") == []


@pytest.mark.parametrize("num_runs", [0, 1, 6])
def test_too_few_runs_have_no_decay(num_runs: int) -> None:
    assert decay(FALLING[:num_runs], is_lower_better=False) is None
    assert decay(FALLING[:7], is_lower_better=False) is not None


def test_runs_each_with_another_champion_give_no_advice() -> None:
    assert (
        decay([LaterRun(age_days=1, champion=0.7 - 0.01 * day, weights_digest=str(day)) for day in range(30)], is_lower_better=False)
        is None
    )


def test_runs_without_decay_say_so(ledger: Ledger) -> None:
    for day in range(1, 15):
        decided(ledger, day, 0.7 + 0.001 * (-1) ** day)
    assert retraining_lines(ledger, "m")[0].endswith("; the interval is not above zero, so no decay is shown")


def test_metric_that_is_better_when_lower_decays_by_rising() -> None:
    rising = [LaterRun(age_days=day, champion=0.5 + 0.003 * day) for day in range(1, 15)]
    worse, better = decay(rising, is_lower_better=True), decay(rising, is_lower_better=False)
    assert worse is not None
    assert better is not None
    assert worse.per_day == pytest.approx(0.003)
    assert better.per_day == pytest.approx(-0.003)


@pytest.mark.parametrize("seed", range(5))
def test_decay_and_its_interval_are_scipys(seed: int) -> None:
    generator = np.random.default_rng(seed)
    ages = np.arange(1.0, 21.0)
    values = 0.7 - 0.001 * ages + generator.normal(scale=0.005, size=20)
    found = decay([LaterRun(age_days=age, champion=value) for age, value in zip(ages, values, strict=True)], is_lower_better=False)
    assert found is not None
    known = theilslopes(-values, ages, alpha=0.95)
    assert (found.per_day, found.low, found.high) == pytest.approx((known.slope, known.low_slope, known.high_slope))


def test_one_odd_run_hardly_matters() -> None:
    odd = [*FALLING[:-1], LaterRun(age_days=14, champion=0.1, weights_digest="w1")]
    found = decay(odd, is_lower_better=False)
    assert found is not None
    assert found.per_day == pytest.approx(0.002, rel=0.01)


def test_champions_are_compared_with_themselves_alone() -> None:
    first = [LaterRun(age_days=day, champion=0.70 - 0.002 * day, weights_digest="w1") for day in range(1, 8)]
    second = [LaterRun(age_days=day, champion=0.90 - 0.002 * day, weights_digest="w2") for day in range(5, 12)]
    found = decay([*first, *second], is_lower_better=False)
    assert found is not None
    assert (found.per_day, found.low, found.high) == pytest.approx((0.002, 0.002, 0.002))
    assert found.num_runs == 14


def test_hard_and_easy_runs_cancel_against_each_runs_own_candidate() -> None:
    swing = [0.05 * np.sin(day) for day in range(1, 15)]
    runs = [
        LaterRun(age_days=day, champion=0.7 + swing[day - 1] - 0.002 * day, candidate=0.7 + swing[day - 1], weights_digest="w1")
        for day in range(1, 15)
    ]
    found = decay(runs, is_lower_better=False)
    assert found is not None
    assert (found.per_day, found.low, found.high) == pytest.approx((0.002, 0.002, 0.002))
    alone = decay([LaterRun(age_days=run.age_days, champion=run.champion) for run in runs], is_lower_better=False)
    assert alone is not None
    assert alone.low < 0


def test_interval_holds_the_true_decay_in_nineteen_of_twenty_histories() -> None:
    generator = np.random.default_rng(7)
    hits = 0
    for _ in range(400):
        runs = [
            LaterRun(age_days=age, champion=0.7 - 0.001 * age + generator.normal(scale=0.003), weights_digest=version)
            for version, size in (("1", 8), ("2", 6), ("3", 5))
            for age in range(1, size + 1)
        ]
        found = decay(runs, is_lower_better=False)
        assert found is not None
        hits += found.low <= 0.001 <= found.high
    assert 0.92 <= hits / 400 <= 0.98
