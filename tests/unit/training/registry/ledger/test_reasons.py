"""A reason's verdict, and a decision in one line: the change of the metric, its interval, what is required, what else spoke against it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.training.registry.good_evaluation import ALL, BETTER, GOOD, RANKING
from training.evaluation.record import EvaluationRecord
from training.format import share_change
from training.registry.gates.judging import decide
from training.registry.ledger.ledger import Entry
from training.registry.ledger.reasons import Reason, comparison_line, headline, reason_line
from training.spec.sections.evaluation import Evaluate


def entry(reasons: Sequence[Any], outcome: str = "rejected", action: str = "recorded", **fields: Any) -> Entry:
    return Entry(
        **{
            "model": "search",
            "key": "k",
            "weights_digest": "w7" * 32,
            "version": "7",
            "action": action,
            "outcome": outcome,
            "reasons": reasons,
            "evidence": {},
        },
        **{"decided_by": "night", **fields},
    )


def reasons_of(gain: float, low: float, high: float, rules: Evaluate = RANKING, **fields: Any) -> list[Any]:
    """Return the reasons of the real gates for a candidate with this gain over a champion of 0.5."""
    metric = rules.primary
    known = {"champion": GOOD["champion"], "baseline": "champion", "checks": {"constant": False}, "baselines": GOOD["baselines"]}
    comparison = {**BETTER, "gain": gain, "low": low, "high": high}
    values = {"metrics": {metric: 0.5 + gain}, "champion_metrics": {metric: 0.5}, "comparison": comparison}
    record = EvaluationRecord.model_validate({**known, **values, **fields})
    return [reason for reason in decide(record, rules, approval="automatic").reasons if reason.gate in GATES]


GATES = ("improvement", "significance", "baseline")


def test_a_rejection_names_the_change_its_interval_and_what_is_required_in_per_cent_of_the_champion() -> None:
    line = headline(entry(reasons_of(0.0005, -0.004, 0.005)))
    assert line == "rejected: ndcg@10 +0.1 % [-0.8 %, +1.0 %], required > 0.5 %; version 7 of search"


def test_what_rejected_a_version_comes_before_warnings() -> None:
    reasons = [
        Reason(gate="naive_baseline", passed=False, severity="warn", words="no better than the mean"),
        Reason(gate="leakage", passed=False, severity="fail", words="a column tells the label"),
    ]
    assert headline(entry(reasons)) == "rejected: a column tells the label; warning: no better than the mean; version 7 of search"


def test_an_improvement_that_may_be_chance_says_that_the_lower_end_is_missing() -> None:
    assert comparison_line(reasons_of(0.01, -0.004, 0.02)) == "ndcg@10 +2.0 % [-0.8 %, +4.0 %], required > 0.5 % and lower end > 0"


def test_a_threshold_in_the_metrics_unit_is_written_in_it() -> None:
    assert comparison_line(reasons_of(0.01, 0.001, 0.02, ALL)) == "auc +0.01 [+0.001, +0.02], required > 0"


def test_an_unbounded_interval_is_said_and_no_number_is_invented() -> None:
    unbounded = {"passed": False, "numbers": {"low": None, "high": None}}
    reasons = [replace(each, **unbounded if each.gate == "significance" else {}) for each in reasons_of(0.01, 0.001, 0.02)]
    assert comparison_line(reasons) == "ndcg@10 +2.0 % [unbounded, unbounded], required > 0.5 % and lower end > 0"


def test_what_else_failed_follows_and_a_standing_comes_first() -> None:
    reasons = [
        *reasons_of(0.01, 0.001, 0.02),
        Reason(gate="latency", passed=False, severity="fail", words="p99 30 ms,\nrequired <= 20 ms"),
        Reason(gate="overlap", passed=False, severity="warn", words="overlap 0.3"),
        Reason(gate="standing", passed=False, words="a later version is champion"),
    ]
    assert headline(entry(reasons, semantic_version="1.2.0")) == (
        "rejected: a later version is champion; ndcg@10 +2.0 % [+0.2 %, +4.0 %], required > 0.5 %; p99 30 ms, required <= 20 ms; "
        "warning: overlap 0.3; version 1.2.0 of search"
    )


def test_a_first_champion_names_the_limits_that_it_passed() -> None:
    reasons = [
        Reason(gate="finite", passed=True, words="ndcg@10 is 0.64"),
        Reason(gate="minimum", passed=True, words="ndcg@10 0.64, required >= 0.3"),
        Reason(gate="baseline", passed=True, words="no champion yet: only absolute gates apply"),
    ]
    assert headline(entry(reasons, "accepted", "promoted")) == (
        "promoted: ndcg@10 0.64, required >= 0.3; no champion yet: only absolute gates apply; version 7 of search"
    )


@pytest.mark.parametrize(
    ("outcome", "action", "passed", "words", "expected"),
    [
        ("approved", "promoted", True, "approved by ada: fine", "promoted: approved by ada: fine; version 7 of search"),
        ("declined", "recorded", False, "declined by ada: no", "declined: declined by ada: no; version 7 of search"),
    ],
)
def test_an_answer_is_named_and_not_the_rule_that_asked(outcome: str, action: str, passed: bool, words: str, expected: str) -> None:
    asked = Reason(gate="approval", passed=False, severity="approve", words="the spec asks for a person's approval")
    answer = Reason(gate="approval", passed=passed, words=words)
    assert headline(entry([asked, answer], outcome, action)) == expected


@pytest.mark.parametrize(
    ("value", "beside", "text"),
    [
        (0.001, None, "+0.1 %"),
        (-0.0081, None, "-0.8 %"),
        (0.0, None, "0 %"),
        (0.0002, None, "+0.02 %"),
        (0.00496, 0.005, "+0.496 %"),
        (0.004996, 0.005, "+0.4996 %"),
        (0.0049, 0.005, "+0.49 %"),
    ],
)
def test_a_change_has_digits_enough_to_be_told_from_its_threshold(value: float, beside: float | None, text: str) -> None:
    assert share_change(value, beside=beside) == text


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ({"passed": True, "severity": "warn"}, "pass"),
        ({"passed": False, "severity": "fail"}, "FAIL"),
        ({"passed": False, "severity": "warn"}, "warn"),
        ({"passed": False, "severity": "approve"}, "ask"),
        # A person's answer has no severity.
        ({"passed": False}, "FAIL"),
    ],
)
def test_gate_that_only_warns_or_asks_is_not_shown_as_a_failure(reason: dict[str, Any], word: str) -> None:
    kept = {"gate": "g", "words": "w", **reason}
    assert reason_line(Reason.from_json(kept)) == f"{word} g: w"


@pytest.mark.parametrize("of_gate", [{}, {"severity": "warn", "numbers": {"a": 1}}])
def test_a_reason_is_kept_as_it_was_read(of_gate: dict[str, Any]) -> None:
    kept = {"gate": "g", "passed": False, "words": "w", **of_gate}
    assert Reason.from_json(kept).to_json() == kept
