"""A canary is rolled back as soon as it is surely bad, promoted when it has proved itself, and waited for in between."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.unit.training.registry.good_evaluation import BETTER
from training.contracts import canonical_json
from training.evaluation.record import EvaluationRecord
from training.registry.gates.judging import CanaryDecision, judge_canary
from training.spec.sections.evaluation import Evaluate
from training.spec.sections.promotion import Canary

NAN = float("nan")
SINCE = datetime(2026, 3, 1, 4, 0, tzinfo=UTC)
RULES = Evaluate.model_validate({"task": "binary", "primary": "auc", "minimum": {"auc": 0.6}})
CANARY = Canary.model_validate({"for": "3d", "support": 1000, "tolerance": 0.005, "patience": "30d"})
ALIKE = {**BETTER, "blocks": None, "gain": 0.0, "low": -0.01, "high": 0.01, "probability": 0.5, "num_units": 2000}


ALARM = {
    "is_worse": True,
    "e_value": 23.0,
    "required": 20.0,
    "mean": -0.1,
    "num_blocks": 9,
    "required_blocks": 8,
    "clusters": "time",
    "block_seconds": 3600.0,
}


def judged(*, days: float = 4.0, rules: Evaluate = RULES, canary: Canary = CANARY, approved: Any = (), **changes: Any) -> CanaryDecision:
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
    return judge_canary(
        EvaluationRecord.of(evaluation), canary, rules=rules, since=SINCE, now=SINCE + timedelta(days=days), approved=approved
    )


def words(found: CanaryDecision) -> set[str]:
    return {reason.gate for reason in found.reasons if not reason.passed}


def test_canary_that_is_no_worse_is_promoted_after_the_time_and_the_support() -> None:
    found = judged(days=3.0, num_rows=1000)
    assert found.outcome == "promote"
    assert words(found) == set()
    assert "judged on 1000 rows with labels, required >= 1000" in found.summary
    assert canonical_json([reason.to_json() for reason in found.reasons])


def test_a_canary_that_waits_in_simulated_time_says_so_before_what_is_missing() -> None:
    record, now = EvaluationRecord(baseline="champion", num_rows=0, metrics={}), SINCE + timedelta(days=1)
    found = judge_canary(record, CANARY, rules=RULES, since=SINCE, now=now, simulated=True)
    began = "simulated time: as of 2026-03-02T04:00:00+00:00, canary as of 2026-03-01T04:00:00+00:00; canary for 24.0 h"
    assert (found.outcome, found.summary[: len(began)]) == ("waiting", began)


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"days": 2.99}, {"time"}),
        ({"num_rows": 999}, {"support"}),
        ({"days": 0.1, "num_rows": 12}, {"time", "support"}),
        ({"num_rows": 0, "metrics": {}, "champion_metrics": {}, "comparison": None}, {"support", "finite"}),
        ({"num_rows": 5, "metrics": {"auc": "nan"}, "champion_metrics": {"auc": "nan"}, "comparison": None}, {"support", "finite"}),
        ({"metrics": {"auc": "nan"}, "champion_metrics": {"auc": "nan"}, "comparison": {**ALIKE, "gain": "nan"}}, {"finite"}),
        ({"comparison": {**ALIKE, "gain": NAN}}, {"finite"}),
        ({"comparison": {**ALIKE, "probability": "nan"}}, {"finite"}),
        ({"comparison": None}, {"finite"}),
        ({"baseline": "its train rows end after the rows begin", "comparison": None, "champion_metrics": {}}, {"finite"}),
    ],
)
def test_canary_is_waited_for_in_words_that_say_what_is_missing(changes: dict[str, Any], missing: set[str]) -> None:
    found = judged(**changes)
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
    found = judged(days=days, **changes)
    assert found.outcome == "roll_back"
    assert words(found) == {gate}


def test_few_rows_are_noise_and_roll_nothing_back() -> None:
    noise = {"metrics": {"auc": 0.1}, "checks": {"constant": True}, "comparison": {**ALIKE, "gain": -0.5, "high": -0.1}}
    assert judged(num_rows=99, **noise).outcome == "waiting"
    assert judged(num_rows=100, **noise).outcome == "roll_back"
    small = CANARY.model_copy(update={"support": 20})
    assert judged(num_rows=19, canary=small, **noise).outcome == "waiting"
    assert judged(num_rows=20, canary=small, **noise).outcome == "roll_back"


@pytest.mark.parametrize(("gain", "outcome"), [(0.1, "promote"), (-0.005, "promote"), (-0.0051, "roll_back")])
def test_at_the_end_the_tolerance_decides(gain: float, outcome: str) -> None:
    found = judged(comparison={**ALIKE, "gain": gain})
    assert found.outcome == outcome
    assert words(found) == (set() if outcome == "promote" else {"tolerance"})


def test_patience_ends_the_wait_for_labels_and_not_the_wait_for_time() -> None:
    assert judged(days=29.9, num_rows=999).outcome == "waiting"
    late = judged(days=30.0, num_rows=999)
    assert late.outcome == "roll_back"
    assert words(late) == {"support", "patience"}
    assert judged(days=30.0, comparison={**ALIKE, "gain": "nan"}).outcome == "roll_back"
    slow = CANARY.model_copy(update={"for_": timedelta(days=60)})
    assert judged(days=31.0, canary=slow).outcome == "waiting"
    assert judged(days=31.0, canary=slow, num_rows=999).outcome == "roll_back"


def test_canary_whose_rows_allow_no_bounded_metric_waits_until_its_patience_and_says_why() -> None:
    rules = Evaluate.model_validate({"task": "binary", "primary": "profit", "metrics": {"profit": "shop:profit"}, "minimum": {"auc": 0.6}})
    rows: dict[str, Any] = {"metrics": {"profit": 3.0, "auc": "nan"}, "champion_metrics": {"profit": 3.0, "auc": "nan"}}
    rows["without_value"] = {"auc": "one class only"}
    found = judged(rules=rules, **rows)
    assert (found.outcome, words(found)) == ("waiting", {"finite"})
    assert found.summary == "auc cannot be computed yet on the rows that have labels: one class only"
    late = judged(rules=rules, days=30.0, **rows)
    assert (late.outcome, words(late)) == ("roll_back", {"finite", "patience"})
    assert judged(rules=rules, **{**rows, "without_value": {}}).outcome == "roll_back"


def test_minimum_that_only_warns_is_said_and_promotes() -> None:
    lenient = RULES.model_copy(update={"severity": {"minimum": "warn"}})
    found = judged(rules=lenient, metrics={"auc": 0.59})
    assert found.outcome == "promote"
    assert words(found) == {"minimum"}
    asking = RULES.model_copy(update={"severity": {"minimum": "approve"}})
    assert judged(rules=asking, metrics={"auc": 0.59}).outcome == "roll_back"


def test_without_a_champion_the_minimum_decides_alone() -> None:
    alone: dict[str, Any] = {"baseline": "no champion", "champion_metrics": {}, "comparison": None}
    assert judged(**alone).outcome == "promote"
    assert judged(**alone, metrics={"auc": 0.5}).outcome == "roll_back"
    assert judged(**alone, metrics={"auc": "nan"}).outcome == "waiting"


@pytest.mark.parametrize(
    "alarm",
    [None, {**ALARM, "is_worse": False, "e_value": 19.0}, {**ALARM, "e_value": "nan"}],
)
def test_without_an_alarm_no_interval_below_zero_rolls_a_canary_back(alarm: dict[str, Any] | None) -> None:
    found = judged(days=1.0, comparison={**ALIKE, "gain": -0.02, "high": -0.001}, alarm=alarm)
    assert found.outcome == "waiting"


def test_an_alarm_says_by_how_many_completed_blocks() -> None:
    found = judged(comparison={**ALIKE, "gain": -0.02}, alarm=ALARM)
    assert found.summary == "evidence that the canary is worse: e-value 23 by 9 completed blocks of 1h with rows, 20 required for an alarm"


@pytest.mark.parametrize(
    ("changes", "blocks"),
    [
        ({"num_blocks": 4, "block_seconds": 18_000.0, "required_blocks": 8}, "4 completed blocks of 5h with rows, at least 8 required"),
        # A record without the field.
        ({"num_blocks": 7, "block_seconds": 18_000.0}, "7 completed blocks of 5h with rows, at least 8 required"),
        ({"num_blocks": 3, "clusters": "entity", "block_seconds": 0.0, "required_blocks": 8}, "3 entities, at least 8 required"),
        (
            {"num_blocks": 0, "clusters": "none", "block_seconds": 0.0, "required_blocks": 8},
            "0 blocks (rows of fewer than 8 hours, and no entities or groups), at least 8 required",
        ),
    ],
)
def test_too_few_blocks_for_an_alarm_are_counted_and_the_tolerance_decides(changes: dict[str, Any], blocks: str) -> None:
    few = {**ALARM, "is_worse": False, "e_value": 1.0, **changes}
    waiting = judged(days=1.0, alarm=few)
    (reason,) = [reason for reason in waiting.reasons if reason.gate == "significance"]
    assert reason.words == f"no alarm by significance can be raised yet: {blocks}; promote.canary.tolerance decides at the end"
    assert (reason.passed, reason.numbers["num_blocks"], reason.numbers["required_blocks"]) == (True, changes["num_blocks"], 8)
    assert judged(comparison={**ALIKE, "gain": -0.1}, alarm=few).outcome == "roll_back"
    enough = next(reason for reason in judged(alarm={**few, "num_blocks": 8, "clusters": "time"}).reasons if reason.gate == "significance")
    assert enough.words.startswith("evidence that the canary is")


def approved(**numbers: Any) -> list[dict[str, Any]]:
    """Return what a person approved, as `decisions.approved_findings`."""
    return [{"gate": "minimum", "words": "auc 0.59, required >= 0.6", "numbers": numbers, "by": "eve"}]


ASKING = RULES.model_copy(update={"severity": {"minimum": "approve"}})


@pytest.mark.parametrize("days", [1.0, 4.0])
@pytest.mark.parametrize("numbers", [{"metric": "auc", "value": 0.59, "bound": 0.6}, {"metric": "auc"}, {}])
def test_bound_that_a_person_approved_does_not_roll_the_canary_back(numbers: dict[str, Any], days: float) -> None:
    found = judged(days=days, rules=ASKING, metrics={"auc": 0.58}, approved=approved(**numbers))
    assert found.outcome == ("promote" if days == 4.0 else "waiting")
    (reason,) = [reason for reason in found.reasons if reason.gate == "minimum"]
    assert (reason.passed, reason.severity) == (False, "warn")
    assert reason.words == "auc 0.58, required >= 0.6; eve approved a candidate that misses this bound"


@pytest.mark.parametrize(("value", "outcome"), [(0.59, "waiting"), (0.585, "roll_back")], ids=["twice the miss", "more than twice"])
def test_approval_of_a_small_miss_covers_no_large_one(value: float, outcome: str) -> None:
    allowed = approved(metric="auc", bound=0.6, value=value)
    assert judged(days=1.0, rules=ASKING, metrics={"auc": 0.58 if value == 0.59 else 0.3}, approved=allowed).outcome == outcome


@pytest.mark.parametrize(
    "numbers", [{"metric": "f1", "bound": 0.6}, {"metric": "auc", "bound": 0.5}], ids=["another metric", "another bound"]
)
def test_approval_covers_no_other_metric_and_no_other_bound(numbers: dict[str, Any]) -> None:
    found = judged(rules=ASKING, metrics={"auc": 0.58}, approved=approved(**numbers))
    assert (found.outcome, words(found)) == ("roll_back", {"minimum"})


@pytest.mark.parametrize(
    ("changes", "gate"),
    [
        ({"comparison": {**ALIKE, "gain": -0.02}, "alarm": ALARM}, "significance"),
        ({"comparison": {**ALIKE, "gain": -0.02}}, "tolerance"),
        ({"checks": {"constant": True}}, "constant"),
        ({"metrics": {"auc": "nan"}}, "finite"),
    ],
)
def test_canary_whose_bound_was_approved_is_still_held_to_the_champion(changes: dict[str, Any], gate: str) -> None:
    found = judged(**{"rules": ASKING, "metrics": {"auc": 0.58}, "approved": approved(metric="auc", bound=0.6), **changes})
    assert found.outcome == "roll_back"
    assert words(found) - {"minimum"} == {gate}


def test_metric_that_was_not_measured_is_not_covered_by_an_approval() -> None:
    both = Evaluate.model_validate({**RULES.model_dump(exclude_defaults=True), "minimum": {"f1": 0.6}, "severity": {"minimum": "approve"}})
    assert judged(rules=both, approved=approved()).outcome == "roll_back"


def test_a_canary_whose_interval_is_unbounded_is_judged_by_the_tolerance_at_the_end() -> None:
    assert judged(comparison={**ALIKE, "low": "-inf", "high": "inf"}).outcome == "promote"
    assert judged(comparison={**ALIKE, "gain": -0.1, "low": "-inf", "high": "inf"}).outcome == "roll_back"


def test_canary_without_a_number_of_rows_was_judged_on_none() -> None:
    support = next(reason for reason in judged(num_rows=None).reasons if reason.gate == "support")
    assert (support.passed, support.numbers["num_rows"]) == (False, 0)
