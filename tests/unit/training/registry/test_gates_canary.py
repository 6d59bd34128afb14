"""A canary is rolled back as soon as it is surely bad, promoted when it has proved itself, and waited for in between."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from training.contracts import canonical_json
from training.registry.gates import CanaryVerdict, judge_canary
from training.spec.evaluation import Evaluate
from training.spec.promotion import Canary

NAN = float("nan")
SINCE = datetime(2026, 3, 1, 4, 0, tzinfo=UTC)
RULES = Evaluate.model_validate({"task": "binary", "primary": "auc", "minimum": {"auc": 0.6}})
CANARY = Canary.model_validate({"for": "3d", "support": 1000, "tolerance": 0.005, "patience": "30d"})
ALIKE = {"gain": 0.0, "low": -0.01, "high": 0.01, "probability": 0.5, "num_units": 2000}


ALARM = {"is_worse": True, "e_value": 23.0, "required": 20.0, "mean": -0.1, "num_blocks": 9, "clusters": "time", "block_seconds": 3600.0}


def verdict(*, days: float = 4.0, rules: Evaluate = RULES, canary: Canary = CANARY, **changes: Any) -> CanaryVerdict:
    """Judge a canary that is as good as the champion, but for `changes`."""
    evaluation = {
        "baseline": "champion",
        "metrics": {"auc": 0.7},
        "champion_metrics": {"auc": 0.7},
        "comparison": ALIKE,
        "checks": {"constant": False},
        "num_rows": 2000,
        **changes,
    }
    return judge_canary(evaluation, canary, rules=rules, since=SINCE, now=SINCE + timedelta(days=days))


def words(found: CanaryVerdict) -> set[str]:
    return {reason.gate for reason in found.reasons if not reason.passed}


def test_canary_that_is_no_worse_is_promoted_after_the_time_and_the_support() -> None:
    found = verdict(days=3.0, num_rows=1000)
    assert found.outcome == "promote"
    assert words(found) == set()
    assert "judged on 1000 rows with labels, 1000 asked" in found.summary
    assert canonical_json(found.reasons_json())


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"days": 2.99}, {"time"}),
        ({"num_rows": 999}, {"support"}),
        ({"days": 0.1, "num_rows": 12}, {"time", "support"}),
        ({"num_rows": 0, "metrics": {}, "champion_metrics": {}, "comparison": None}, {"support", "finite"}),
        ({"num_rows": 5, "metrics": {"auc": "nan"}, "champion_metrics": {"auc": "nan"}, "comparison": None}, {"support", "finite"}),
        ({"metrics": {"auc": "nan"}, "champion_metrics": {"auc": "nan"}, "comparison": {"gain": "nan"}}, {"finite"}),
        ({"comparison": {**ALIKE, "gain": NAN}}, {"finite"}),
        ({"comparison": {**ALIKE, "probability": "nan"}}, {"finite"}),
        ({"comparison": None}, {"finite"}),
        ({"baseline": "its train rows end after the rows begin", "comparison": None, "champion_metrics": {}}, {"finite"}),
    ],
)
def test_canary_is_waited_for_in_words_that_say_what_is_missing(changes: dict[str, Any], missing: set[str]) -> None:
    found = verdict(**changes)
    assert found.outcome == "waiting"
    assert words(found) == missing


@pytest.mark.parametrize("days", [0.01, 4.0])
@pytest.mark.parametrize(
    ("changes", "gate"),
    [
        ({"metrics": {"auc": "nan"}}, "finite"),
        ({"metrics": {"auc": NAN}, "num_rows": 3}, "finite"),
        ({"metrics": {}}, "finite"),
        ({"metrics": {"auc": 0.59}}, "minimum"),
        ({"metrics": {"auc": 0.59}, "num_rows": 100}, "minimum"),
        ({"checks": {"constant": True}}, "constant"),
        ({"comparison": {**ALIKE, "gain": -0.02}, "alarm": ALARM}, "significance"),
    ],
)
def test_bad_canary_is_rolled_back_at_once(changes: dict[str, Any], gate: str, days: float) -> None:
    found = verdict(days=days, **changes)
    assert found.outcome == "roll_back"
    assert words(found) == {gate}


def test_few_rows_are_noise_and_roll_nothing_back() -> None:
    noise = {"metrics": {"auc": 0.1}, "checks": {"constant": True}, "comparison": {**ALIKE, "gain": -0.5, "high": -0.1}}
    assert verdict(num_rows=99, **noise).outcome == "waiting"
    assert verdict(num_rows=100, **noise).outcome == "roll_back"
    small = CANARY.model_copy(update={"support": 20})
    assert verdict(num_rows=19, canary=small, **noise).outcome == "waiting"
    assert verdict(num_rows=20, canary=small, **noise).outcome == "roll_back"


@pytest.mark.parametrize(("gain", "outcome"), [(0.1, "promote"), (-0.005, "promote"), (-0.0051, "roll_back")])
def test_at_the_end_the_tolerance_decides(gain: float, outcome: str) -> None:
    found = verdict(comparison={**ALIKE, "gain": gain})
    assert found.outcome == outcome
    assert words(found) == (set() if outcome == "promote" else {"tolerance"})


def test_patience_ends_the_wait_for_labels_and_not_the_wait_for_time() -> None:
    assert verdict(days=29.9, num_rows=999).outcome == "waiting"
    late = verdict(days=30.0, num_rows=999)
    assert late.outcome == "roll_back"
    assert words(late) == {"support", "patience"}
    assert verdict(days=30.0, comparison={"gain": "nan"}).outcome == "roll_back"
    slow = CANARY.model_copy(update={"for_": timedelta(days=60)})
    assert verdict(days=31.0, canary=slow).outcome == "waiting"
    assert verdict(days=31.0, canary=slow, num_rows=999).outcome == "roll_back"


def test_minimum_that_only_warns_is_said_and_promotes() -> None:
    lenient = RULES.model_copy(update={"severity": {"minimum": "warn"}})
    found = verdict(rules=lenient, metrics={"auc": 0.59})
    assert found.outcome == "promote"
    assert words(found) == {"minimum"}
    asking = RULES.model_copy(update={"severity": {"minimum": "approve"}})
    assert verdict(rules=asking, metrics={"auc": 0.59}).outcome == "roll_back"


def test_without_a_champion_the_minimum_decides_alone() -> None:
    alone: dict[str, Any] = {"baseline": "no champion", "champion_metrics": {}, "comparison": None}
    assert verdict(**alone).outcome == "promote"
    assert verdict(**alone, metrics={"auc": 0.5}).outcome == "roll_back"
    assert verdict(**alone, metrics={"auc": "nan"}).outcome == "waiting"


@pytest.mark.parametrize(
    "alarm",
    [None, {}, {**ALARM, "is_worse": False, "e_value": 19.0}, {**ALARM, "is_worse": "yes"}, {**ALARM, "e_value": "nan"}],
)
def test_without_an_alarm_no_interval_below_zero_rolls_a_canary_back(alarm: dict[str, Any] | None) -> None:
    found = verdict(days=1.0, comparison={**ALIKE, "gain": -0.02, "high": -0.001}, alarm=alarm)
    assert found.outcome == "waiting"


def test_an_alarm_says_by_how_many_completed_blocks() -> None:
    found = verdict(comparison={**ALIKE, "gain": -0.02}, alarm=ALARM)
    assert found.summary == "evidence that the canary is worse: e-value 23 by 9 completed blocks of 1h, 20 required for an alarm"


def test_a_canary_whose_interval_is_unbounded_is_judged_by_the_tolerance_at_the_end() -> None:
    assert verdict(comparison={**ALIKE, "low": "-inf", "high": "inf"}).outcome == "promote"
    assert verdict(comparison={**ALIKE, "gain": -0.1, "low": "-inf", "high": "inf"}).outcome == "roll_back"
