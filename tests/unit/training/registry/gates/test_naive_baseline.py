"""The gate `naive_baseline`: fails a first champion that is not better than what needs no training, and warns later."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.training.registry.good_evaluation import BETTER, CHAMPION, PRIOR
from training.evaluation.record import EvaluationRecord
from training.registry.gates.judging import Decision, decide
from training.spec.sections.evaluation import Evaluate


def evaluated(mae: float, naive: Any, *, champion: bool = False, worse: tuple[str, ...] = (), **changes: Any) -> dict[str, Any]:
    entries = [
        {**PRIOR, "name": "mean", "metrics": {"mae": 150.0, "rmse": 200.0}},
        {**PRIOR, "name": "seasonal_7d", "metrics": {"mae": naive, "rmse": 31.0}},
    ]
    return {
        "format_version": 1,
        "champion": CHAMPION if champion else None,
        "baseline": "champion" if champion else "no champion",
        "metrics": {"mae": mae, "rmse": 40.0, "bias": 0.0},
        "champion_metrics": {"mae": mae + 0.01, "rmse": 41.0} if champion else {},
        "comparison": BETTER if champion else None,
        "slices": [],
        "checks": {"leakage": {"feature": "x", "value": 0.6}, "drift": {"psi": 0.01}, "constant": False},
        "baselines": {
            "why_none": None,
            "best": "seasonal_7d",
            "found": entries,
            "comparison": {**BETTER, "gain": 1, "low": -2.0, "high": 4.0},
            "worse": list(worse),
        },
        **changes,
    }


def judged(evaluation: dict[str, Any], **rules: Any) -> Decision:
    return decide(
        EvaluationRecord.of(evaluation), Evaluate.model_validate({"task": "regression", "primary": "mae", **rules}), approval="automatic"
    )


def words_of(decision: Decision) -> list[str]:
    return [reason.words for reason in decision.reasons if reason.gate == "naive_baseline"]


@pytest.mark.parametrize(("mae", "outcome"), [(24.1, "accepted"), (24.2, "rejected"), (24.3, "rejected")])
def test_first_champion_must_be_better_than_the_best_baseline_by_its_point_estimate_alone(mae: float, outcome: str) -> None:
    decision = judged(evaluated(mae, 24.2))
    assert decision.outcome == outcome
    (words,) = words_of(decision)
    # The interval includes zero: it is shown, not gated.
    assert f"mae {mae:g}, best naive baseline seasonal_7d 24.2: gain" in words
    assert "95 % interval [-2, +4], required > 0" in words
    assert ("what helps is features that say more than seasonal_7d (data.windows has lags)" in words) is (outcome == "rejected")


def test_once_there_is_a_champion_it_is_a_warning_in_the_decision() -> None:
    decision = judged(evaluated(30.0, 24.2, champion=True))
    assert decision.outcome == "accepted"
    assert decision.summary.startswith("warning: mae 30, best naive baseline seasonal_7d 24.2: gain -5.8")


@pytest.mark.parametrize("champion", [False, True])
def test_severity_of_the_spec_holds_with_and_without_a_champion(champion: bool) -> None:
    outcomes = {
        severity: judged(evaluated(30.0, 24.2, champion=champion), severity={"naive_baseline": severity}).outcome
        for severity in ("warn", "approve", "fail")
    }
    assert outcomes == {"warn": "accepted", "approve": "needs_approval", "fail": "rejected"}


@pytest.mark.parametrize("value", [float("nan"), "nan", "inf"])
def test_missing_numbers_reject_only_where_the_gate_is_in_force(value: Any) -> None:
    first, later = evaluated(20.0, value), evaluated(20.0, value, champion=True)
    assert judged(first).outcome == "rejected"
    assert judged(later).outcome == "accepted"
    assert "was not measured" in judged(later).summary
    assert judged(later, severity={"naive_baseline": "approve"}).outcome == "rejected"


@pytest.mark.parametrize("record", [None, {}, {"best": "gone", "found": []}, {"best": None, "found": []}])
def test_record_without_baselines_rejects_a_first_champion(record: Any) -> None:
    decision = judged(evaluated(20.0, 24.2, baselines=record))
    assert decision.outcome == "rejected"
    assert "evaluate again" in decision.summary


def test_other_metrics_that_are_worse_are_a_warning_and_never_more() -> None:
    first = judged(evaluated(20.0, 24.2, worse=("rmse", "mae")))
    assert first.outcome == "accepted"
    assert first.summary.startswith("warning: worse than the naive baseline seasonal_7d: rmse 40 against 31;")
    assert judged(evaluated(20.0, 24.2, worse=("rmse",)), severity={"naive_baseline": "fail"}).outcome == "accepted"


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        ({}, "the key has no column"),
        ({"baseline": {"enabled": False}}, "switched off (evaluate.baseline.enabled)"),
        ({"task": "language", "primary": "loss"}, "the task language has none"),
    ],
)
def test_task_without_a_baseline_says_so_and_passes(rules: dict[str, Any], why: str) -> None:
    evaluation = evaluated(20.0, 24.2, baselines={"why_none": "the key has no column"} if not rules else None)
    decision = judged({**evaluation, "metrics": {**evaluation["metrics"], "loss": 1.0}}, **rules)
    assert decision.outcome == "accepted"
    assert words_of(decision) == [f"no naive baseline to compare with: {why}"]


def test_gate_that_the_spec_asks_for_and_that_has_no_baseline_is_a_warning() -> None:
    evaluation = evaluated(20.0, 24.2, baselines={"why_none": "no training label was known when the first test row was decided"})
    decision = judged(evaluation, severity={"naive_baseline": "fail"})
    assert decision.outcome == "accepted"
    assert [(reason.passed, reason.severity) for reason in decision.reasons if reason.gate == "naive_baseline"] == [(False, "warn")]
