"""Gates fail closed: a table of numbers and what they decide."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.training.registry.good_evaluation import (
    CHAMPION,
    GATES,
    GOOD,
    NEEDED,
    WITH_CANARY,
    changed,
    decide,
    failed,
    is_refused,
    judged,
    prefixes,
    without,
)
from training.contracts import canonical_json
from training.registry.ledger.reasons import reason_line
from training.spec.sections.evaluation import Evaluate

NAN, INF = float("nan"), float("inf")


def test_metrics_that_are_not_finite_are_named_with_their_values() -> None:
    evaluation = changed(("metrics", "auc"), "nan")
    del evaluation["metrics"]["revenue"]
    reason = next(reason for reason in judged(evaluation).reasons if reason.gate == "finite")
    assert reason.numbers == {"auc": "'nan'", "revenue": None}


def test_better_candidate_is_accepted_with_every_gates_words_and_numbers() -> None:
    decision = judged(GOOD)
    assert decision.outcome == "accepted"
    assert tuple(reason.gate for reason in decision.reasons) == GATES
    by_gate = {reason.gate: reason for reason in decision.reasons}
    assert by_gate["improvement"].numbers == {
        **{"metric": "auc", "gain": 0.01, "champion": 0.7, "asked": 0.0},
        "relative": None,
    }
    assert by_gate["slices"].numbers["columns"] == {"origin": "JFK"}
    assert by_gate["slices"].numbers["drop"] == pytest.approx(0.01)
    assert by_gate["latency"].words == "p99 of one prediction 3 ms, required <= 20 ms"
    assert by_gate["overlap"].severity == "warn"
    numbers = json.loads(canonical_json([reason.to_json() for reason in decision.reasons]))[-1]["numbers"]
    assert numbers.items() >= {"low": 0.001, "high": 0.02, "confidence": 0.95, "num_blocks": 14}.items()
    assert "\n" not in decision.summary


def test_without_limits_only_what_every_model_must_be_is_judged() -> None:
    rules = Evaluate(task="binary", primary="auc")
    decision = decide(GOOD, rules, approval="automatic", promote=WITH_CANARY)
    assert [r.gate for r in decision.reasons] == [
        *("finite", "constant", "naive_baseline", "baseline", "improvement", "significance", "drift", "leakage", "canary"),
    ]


def test_first_candidate_is_judged_by_itself() -> None:
    alone = {**GOOD, "champion": None, "canary": None, "champion_metrics": {}, "comparison": None, "canary_comparison": None}
    first = {**alone, "baseline": "no champion", "checks": {**GOOD["checks"], "drift": None}}
    assert judged(first).outcome == "accepted"
    assert failed(judged({**first, "metrics": {**GOOD["metrics"], "auc": 0.59}})) == ["minimum"]
    assert failed(judged({**first, "latency": None})) == ["latency"] * 3
    assert failed(judged({**first, "champion": CHAMPION})) == ["baseline"]
    assert failed(judged({**GOOD, "champion": None})) == ["baseline"]


@pytest.mark.parametrize(
    ("path", "value", "gates"),
    [
        (("metrics", "auc"), 0.59, ["minimum"]),
        (("metrics", "log_loss"), 0.71, ["maximum"]),
        (("comparison", "gain"), 0.0, ["improvement"]),
        (("comparison", "gain"), -0.01, ["improvement"]),
        (("comparison", "low"), 0.0, ["significance"]),
        (("comparison", "low"), -0.001, ["significance"]),
        (("slices", 0, "candidate"), 0.679, ["slices"]),
        (("slices", 1, "champion"), 0.72, ["slices"]),
        (("slices", 2, "is_small"), False, ["slices"]),
        (("fairness", "origin", "equal_opportunity_gap"), 0.11, ["fairness"]),
        (("fairness", "origin", "calibration_gap"), 0.06, ["fairness"]),
        (("latency", "1", "p50_ms"), 5.1, ["latency"]),
        (("latency", "1", "p95_ms"), 10.1, ["latency"]),
        (("latency", "1", "p99_ms"), 20.1, ["latency"]),
        (("checks", "leakage", "value"), 0.98, ["leakage"]),
        (("checks", "constant"), True, ["constant"]),
        (("canary_comparison", "low"), 0.0, ["canary"]),
        (("baseline",), "it is later (as of 2026-03-02)", ["baseline"]),
    ],
)
def test_what_is_not_enough_rejects_by_its_own_gate(path: tuple[str | int, ...], value: Any, gates: list[str]) -> None:
    decision = judged(changed(path, value))
    assert decision.outcome == "rejected"
    assert failed(decision) == gates


@pytest.mark.parametrize(
    ("path", "limit"),
    [
        (("metrics", "auc"), 0.6),
        (("metrics", "log_loss"), 0.7),
        (("fairness", "origin", "equal_opportunity_gap"), 0.1),
        (("latency", "1", "p95_ms"), 10),
        (("checks", "overlap", "share"), 0.2),
        (("checks", "drift", "psi"), 0.25),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else None,
)
def test_value_exactly_at_its_limit_passes(path: tuple[str | int, ...], limit: float) -> None:
    assert failed(judged(changed(path, limit))) == []


def test_reason_about_the_canary_names_its_version() -> None:
    [reason] = [reason for reason in judged(GOOD).reasons if reason.gate == "canary"]
    assert "the canary, version 5," in reason.words


@pytest.mark.parametrize(
    ("path", "value", "gate"), [(("checks", "overlap", "share"), 0.21, "overlap"), (("checks", "drift", "psi"), 0.26, "drift")]
)
def test_overlap_and_drift_are_only_said_unless_the_spec_is_stricter(path: tuple[str, ...], value: float, gate: str) -> None:
    decision = judged(changed(path, value))
    assert decision.outcome == "accepted"
    assert failed(decision) == [gate]
    assert decision.summary.startswith("warning: ")
    assert judged(changed(path, value), severity={gate: "approve"}).outcome == "needs_approval"
    assert judged(changed(path, value), severity={gate: "fail"}).outcome == "rejected"


@pytest.mark.parametrize(
    ("path", "value", "gate"),
    [
        (("metrics", "auc"), 0.59, "minimum"),
        (("metrics", "log_loss"), 0.71, "minimum"),
        (("comparison", "gain"), -0.01, "improvement"),
        (("comparison", "low"), -0.01, "significance"),
        (("slices", 0, "candidate"), 0.6, "slices"),
        (("fairness", "origin", "calibration_gap"), 0.06, "fairness"),
        (("latency", "1", "p99_ms"), 21.0, "latency"),
        (("checks", "leakage", "value"), 0.99, "leakage"),
        (("checks", "overlap", "share"), 0.3, "overlap"),
        (("checks", "drift", "psi"), 0.3, "drift"),
    ],
)
def test_severity_says_what_a_gate_does_that_is_not_passed(path: tuple[str | int, ...], value: float, gate: str) -> None:
    outcomes = {severity: judged(changed(path, value), severity={gate: severity}).outcome for severity in ("warn", "approve", "fail")}
    assert outcomes == {"warn": "accepted", "approve": "needs_approval", "fail": "rejected"}
    assert judged(changed(path, value), severity={gate: "warn"}, approval="required").outcome == "needs_approval"


@pytest.mark.parametrize("severity", ["warn", "approve"])
@pytest.mark.parametrize("path", NEEDED, ids=lambda path: ".".join(map(str, path)))
def test_what_is_missing_or_not_finite_rejects_at_every_severity(path: tuple[str | int, ...], severity: str) -> None:
    names = ("minimum", "improvement", "significance", "slices", "fairness", "latency", "leakage", "overlap", "drift")
    lenient = dict.fromkeys(names, severity)
    for value in (NAN, INF, -INF, "nan", "0.5", None, [], 10**400, True if path[-1] != "constant" else 1):
        assert is_refused(changed(path, value), lenient), value
    for prefix in prefixes(path):
        if not isinstance(prefix[-1], int):
            assert is_refused(without(prefix), lenient), prefix
            assert is_refused(changed(prefix, None), lenient), prefix


@given(
    st.sampled_from(NEEDED), st.sampled_from([NAN, INF, -INF, "nan", "inf", None]), st.sampled_from(["automatic", "required"]), st.data()
)
def test_nothing_unknown_is_ever_accepted_or_put_to_a_person(path: tuple[str, ...], value: Any, approval: str, data: st.DataObject) -> None:
    names = ("minimum", "improvement", "significance", "slices", "fairness", "latency", "leakage", "overlap", "drift")
    severity = data.draw(st.dictionaries(st.sampled_from(names), st.sampled_from(["warn", "approve", "fail"])))
    assert is_refused(changed(path, value), severity, approval)


@given(
    st.lists(st.tuples(st.sampled_from([path for path in NEEDED if path[-1] != "constant"]), st.floats(-2, 30)), max_size=4),
    st.sampled_from(["minimum", "improvement", "significance", "slices", "fairness", "latency", "leakage", "overlap", "drift"]),
    st.dictionaries(st.sampled_from(["minimum", "improvement", "slices", "latency"]), st.sampled_from(["warn", "approve", "fail"])),
    st.sampled_from(["automatic", "required"]),
)
def test_stricter_severity_never_decides_more_leniently(
    changes: list[tuple[tuple[str | int, ...], float]], gate: str, others: dict[str, str], approval: str
) -> None:
    evaluation = copy.deepcopy(GOOD)
    for path, value in changes:
        place: Any = evaluation
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
    strictness = ["accepted", "needs_approval", "rejected"]
    found = [
        strictness.index(judged(evaluation, severity={**others, gate: severity}, approval=approval).outcome)
        for severity in ("warn", "approve", "fail")
    ]
    assert found == sorted(found)


def test_approval_is_never_taken_for_granted() -> None:
    decision = judged(GOOD, approval="required")
    assert decision.outcome == "needs_approval"
    assert decision.summary == "an approval is required (promote.approval)"
    assert reason_line(decision.reasons[-1]) == "ask approval: an approval is required (promote.approval)"
    assert judged(GOOD, approval="whatever").outcome == "needs_approval"
    assert judged(changed(("metrics", "auc"), NAN), approval="required").outcome == "rejected"


def test_drift_of_the_data_that_a_person_has_to_approve_is_a_reason_of_the_request() -> None:
    line = "[drift.exceeded] orders.price: drift against the previous snapshot: observed PSI 0.7, allowed PSI at most 0.25"
    moved = {**GOOD, "data_to_approve": [line, line.replace("price", "cost")]}
    decision = judged(moved)
    assert decision.outcome == "needs_approval"
    assert [reason.words for reason in decision.reasons if reason.gate == "data_drift"] == list(moved["data_to_approve"])
    assert line in decision.summary
    assert judged({**moved, "metrics": {**GOOD["metrics"], "auc": 0.1}}).outcome == "rejected"
    assert judged({**GOOD, "data_to_approve": []}).outcome == "accepted"


@pytest.mark.parametrize("champion", [CHAMPION, None])
@pytest.mark.parametrize("baseline", ["it is later (as of 2026-03-01)", "its train rows end after the test rows begin", None])
def test_no_approval_is_requested_for_an_older_model(baseline: Any, champion: Any) -> None:
    backwards = {**GOOD, "baseline": baseline, "champion": champion}
    lenient = dict.fromkeys(("minimum", "improvement", "significance", "slices", "drift"), "warn")
    decision = judged(backwards, severity=lenient, approval="required")
    assert decision.outcome == "rejected"
    assert "no model replaces one that it is not compared with" in decision.summary
    assert ("a shorter data.split.test" in decision.summary) == ("test rows begin" in str(baseline))
