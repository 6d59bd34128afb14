"""A candidate that is the champion or the canary itself, as after an edit of the thresholds alone: it is not compared with itself."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.unit.training.registry.good_evaluation import BETTER, GOOD, failed, judged

EQUAL = {**BETTER, "blocks": None, "gain": 0.0, "low": 0.0, "high": 0.0, "probability": 0.5, "num_units": 900}


def measured_against_itself(alias: str, **changes: Any) -> dict[str, Any]:
    """`GOOD` of a candidate with the weights of that alias; the other alias has others."""
    evaluation = copy.deepcopy(GOOD) | {"candidate": {"weights_digest": "own"}, **changes}
    evaluation[alias]["weights_digest"] = "own"
    evaluation["comparison" if alias == "champion" else "canary_comparison"] = EQUAL
    return evaluation


def words_of(decision: Any, gate: str) -> list[str]:
    return [reason.words for reason in decision.reasons if reason.gate == gate]


@pytest.mark.parametrize("approval", ["automatic", "required"])
def test_the_champion_measured_against_itself_is_accepted_without_a_request_for_approval(approval: str) -> None:
    decision = judged(measured_against_itself("champion"), approval=approval)
    assert decision.outcome == "accepted"
    assert words_of(decision, "baseline") == [
        "the candidate is the champion (version 6): same weights; only absolute gates apply, no new champion"
    ]
    assert {reason.gate for reason in decision.reasons}.isdisjoint({"improvement", "significance", "slices", "drift", "canary", "approval"})


def test_the_champion_that_does_not_pass_a_new_minimum_is_rejected_by_that_gate_alone() -> None:
    decision = judged(measured_against_itself("champion"), minimum={"auc": 0.9})
    assert decision.outcome == "rejected"
    assert failed(decision) == ["minimum"]


def test_the_champion_is_not_accepted_with_a_number_that_is_missing() -> None:
    assert failed(judged(measured_against_itself("champion", latency=None))) == ["latency"] * 3


def test_the_canary_measured_again_is_compared_with_the_champion_and_not_with_itself() -> None:
    decision = judged(measured_against_itself("canary"))
    assert decision.outcome == "accepted"
    assert words_of(decision, "canary") == ["the candidate is the canary (version 5): same weights; it stays canary"]
    assert failed(judged(measured_against_itself("canary", comparison=EQUAL))) == ["improvement", "significance"]


def test_an_evaluation_that_does_not_name_its_weights_is_compared_as_any_other() -> None:
    evaluation = measured_against_itself("champion", candidate={"weights_digest": ""})
    evaluation["champion"]["weights_digest"] = ""
    assert failed(judged(evaluation)) == ["improvement", "significance"]
