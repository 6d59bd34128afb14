"""The gate on the interval of the gain: the wider of rows and blocks, and what it says about them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from training.evaluation.record import EvaluationRecord
from training.registry.gates.interface import Case
from training.registry.gates.significance import blocks_of_labels, significance
from training.spec.descriptors.gate_descriptor import Severity
from training.spec.sections.evaluation import Evaluate

BLOCKS: dict[str, Any] = {
    "low": 0.002,
    "high": 0.02,
    "clusters": "time",
    "columns": "",
    "num_clusters": 14,
    "num_blocks": 14,
    "block_seconds": 86400.0,
    "automatic_seconds": 7200.0,
    "lag1": 0.553,
    "bin_seconds": 1800.0,
    "too_few_blocks": False,
    "bounded": True,
}
COMPARISON: dict[str, Any] = {
    **{"gain": 0.01, "low": 0.002, "high": 0.02, "probability": 0.99, "num_units": 900, "row_low": 0.005, "row_high": 0.015},
    "decided_by": "blocks",
}
DAY = timedelta(days=1)
RULES = Evaluate(task="binary", primary="auc")


def judged(*, blocks: dict[str, Any] | None = BLOCKS, rules: Evaluate = RULES, **comparison: Any) -> Any:
    record = EvaluationRecord.of({"comparison": {**COMPARISON, "blocks": blocks, **comparison}})
    case = Case(gate="significance", record=record, rules=rules, settings=None, severity=rules.severity.get("significance", "fail"))
    return significance(case, record.comparison, "the champion")


def judged_blocks(blocks: dict[str, Any]) -> Any:
    comparison = EvaluationRecord.of({"comparison": {**COMPARISON, "blocks": blocks}}).comparison
    assert comparison is not None
    return comparison.blocks


def test_the_reason_names_the_wider_interval_the_blocks_and_the_autocorrelation() -> None:
    reason = judged()
    assert reason.passed
    assert reason.words == (
        "95 % interval of the gain over the champion [+0.002, +0.02] (wider by blocks of time; 14 blocks of 1d, "
        "lag-1 autocorrelation of the gain 0.55), lower end > 0 required"
    )
    assert reason.numbers["num_blocks"] == 14
    assert reason.numbers["row_low"] == 0.005


def test_a_low_end_at_zero_fails_and_rows_may_be_the_wider_ones() -> None:
    reason = judged(low=0.0, decided_by="rows")
    assert not reason.passed
    assert "wider by rows; 14 blocks" in reason.words
    assert reason.words.endswith(
        "lower end > 0 required; this test split only shows gains above 0.01, a smaller one looks like chance: "
        "what helps is a longer data.split.test, or a person who decides (evaluate.severity: {significance: approve})"
    )


@pytest.mark.parametrize(
    ("gate", "given", "wanted", "key"),
    [
        ("leakage", "fail", "warn", "evaluate.severity: {leakage: warn}"),
        ("leakage", "approve", "warn", "evaluate.severity: {leakage: warn}"),
        ("leakage", "warn", "warn", ""),
        ("significance", "fail", "approve", "evaluate.severity: {significance: approve}"),
        ("significance", "approve", "approve", ""),
        ("significance", "warn", "approve", ""),
        ("canary", "fail", "approve", ""),  # No key gives it a severity.
    ],
)
def test_key_is_advised_only_where_it_makes_the_gate_milder(gate: str, given: Severity, wanted: Severity, key: str) -> None:
    case = Case(gate=gate, record=EvaluationRecord.of({}), rules=RULES, settings=None, severity=given)
    assert case.milder(wanted) == key


def test_a_candidate_that_is_surely_worse_is_not_advised_a_longer_test() -> None:
    assert judged(low=-0.02, high=-0.002).words.endswith("lower end > 0 required")


def test_too_few_blocks_are_named_with_what_was_used_instead() -> None:
    few = {**BLOCKS, "clusters": "entity", "columns": "customer", "num_clusters": 300, "num_blocks": 2, "too_few_blocks": True}
    assert judged(blocks=few).words == (
        "95 % interval of the gain over the champion [+0.002, +0.02] (wider by entities; too few blocks: 2 of 1d, 8 required, "
        "lag-1 autocorrelation of the gain 0.55; 300 entities (customer) instead), lower end > 0 required"
    )


@pytest.mark.parametrize(
    ("seconds", "length"),
    [
        (86_400.0, "1d"),
        (129_600.5, "1.5d"),
        (3_600.0, "1h"),
        (5_400.5, "1.5h"),
        (60.0, "1m"),
        (90.5, "1.5min"),
        (233_280_001.0, "2700d"),
        ("nan", "unknown length"),
    ],
)
def test_the_length_of_a_block_has_the_unit_that_it_is_at_least_one_of(seconds: float | str, length: str) -> None:
    assert f"14 blocks of {length}," in judged(blocks={**BLOCKS, "block_seconds": seconds}).words


@pytest.mark.parametrize(
    ("blocks", "is_enough", "words"),
    [
        ({}, True, "14 blocks of 1d, 8 required"),
        ({"num_blocks": 5, "too_few_blocks": True}, False, "what helps is "),
        ({"bounded": False}, False, "what helps is "),
    ],
)
def test_split_has_enough_blocks_where_they_bound_an_interval(blocks: dict[str, Any], is_enough: bool, words: str) -> None:
    found, said = blocks_of_labels(judged_blocks({**BLOCKS, **blocks}), DAY)
    assert found == is_enough
    assert words in said


@pytest.mark.parametrize(("automatic", "helps"), [(600.0, "evaluate.entities"), (86400.0, "a longer data.split.test")])
def test_an_unbounded_interval_fails_by_its_severity_and_says_what_helps(automatic: float, helps: str) -> None:
    none = {**BLOCKS, "clusters": "none", "num_clusters": 0, "num_blocks": 2, "too_few_blocks": True, "bounded": False}
    unbounded: dict[str, Any] = {
        "blocks": {**none, "low": "-inf", "high": "inf", "automatic_seconds": automatic},
        "low": "-inf",
        "high": "inf",
    }
    reason = judged(**unbounded)
    assert (reason.passed, reason.severity) == (False, "fail")
    assert "too few blocks: 2 of 1d" in reason.words
    assert "no entities or groups to use instead" in reason.words
    assert helps in reason.words
    assert "or a person who decides (evaluate.severity: {significance: approve})" in reason.words
    asking = RULES.model_copy(update={"severity": {"significance": "approve"}})
    asked = judged(**unbounded, rules=asking)
    assert asked.severity == "approve"
    assert "a person who decides" not in asked.words


def test_test_rows_of_one_instant_are_named_as_the_reason_of_an_unbounded_interval() -> None:
    none = {**BLOCKS, "clusters": "none", "num_clusters": 0, "num_blocks": 1, "block_seconds": 0.0, "too_few_blocks": True}
    blocks = {**none, "bounded": False, "low": "-inf", "high": "inf", "automatic_seconds": 0.0}
    reason = judged(blocks=blocks, low="-inf", high="inf")
    assert not reason.passed
    assert "what helps is event times that differ, since all test rows have the same one, or evaluate.entities" in reason.words


def test_entities_of_test_rows_of_one_instant_are_no_lack_of_blocks() -> None:
    of_one_instant: dict[str, Any] = {"num_blocks": 1, "block_seconds": 0.0, "too_few_blocks": True, "automatic_seconds": 0.0}
    blocks = {**BLOCKS, **of_one_instant, "clusters": "entity", "columns": "customer", "num_clusters": 900}
    reason = judged(blocks=blocks, low=-0.01, high=0.02)
    assert "(wider by entities; 900 entities (customer), as all test rows have one instant), lower end > 0 required" in reason.words
    assert "what helps is a larger data.split.test, or a person who decides" in reason.words
    assert blocks_of_labels(judged_blocks(blocks), DAY) == (True, "900 entities (customer), as all test rows have one instant")


def test_an_evaluation_without_an_interval_by_blocks_is_rejected() -> None:
    lenient = RULES.model_copy(update={"severity": {"significance": "warn"}})
    missing = judged(blocks=None, rules=lenient)
    assert (missing.passed, missing.severity) == (False, "fail")


@pytest.mark.parametrize("low", ["nan", "-inf"])
def test_ends_that_are_no_numbers_reject(low: Any) -> None:
    assert not judged(low=low).passed
