"""Gates fail closed: a table of numbers and what they decide."""

from __future__ import annotations

from typing import Any

import pytest

from training.provenance import CHECKOUT
from training.registry.gates import decide
from training.spec import load_spec
from training.spec.evaluation import Evaluate

NAN, INF = float("nan"), float("inf")
RULES = load_spec(CHECKOUT / "dags/pipelines/search_ranking.yaml").evaluate
"""ndcg@10 at least 0.3, better by more than 0.5 % of the champion's, lower end of the interval above zero."""

BETTER = {"gain": 0.01, "low": 0.001, "high": 0.02}


def evaluation(**changes: Any) -> dict[str, Any]:
    return {
        "metrics": {"ndcg@10": 0.61},
        "champion_metrics": {"ndcg@10": 0.60},
        "comparison": BETTER,
        "baseline": "champion",
        **changes,
    }


def test_better_candidate_is_accepted_with_every_gates_words() -> None:
    decision = decide(evaluation(), RULES, approval="automatic")
    assert decision.outcome == "accepted"
    assert [reason.gate for reason in decision.reasons] == ["finite", "minimum", "improvement", "significance"]


def test_first_candidate_needs_the_minimum_alone() -> None:
    first = evaluation(champion_metrics={}, comparison=None, baseline="no champion")
    assert decide(first, RULES, approval="automatic").outcome == "accepted"
    assert decide({**first, "metrics": {"ndcg@10": 0.29}}, RULES, approval="automatic").outcome == "rejected"


def test_approval_is_never_taken_for_granted() -> None:
    assert decide(evaluation(), RULES, approval="required").outcome == "needs_approval"
    assert decide(evaluation(metrics={"ndcg@10": NAN}), RULES, approval="required").outcome == "rejected"


@pytest.mark.parametrize(
    ("changes", "gate"),
    [
        *[({"metrics": {"ndcg@10": value}}, "finite") for value in (NAN, INF, -INF, None, "nan", True)],
        ({"metrics": {}}, "finite"),
        ({"metrics": {"ndcg@10": 0.2}}, "minimum"),
        ({"comparison": {**BETTER, "gain": 0.003}}, "improvement"),
        ({"comparison": {**BETTER, "gain": -0.01}}, "improvement"),
        ({"comparison": {**BETTER, "low": 0.0}}, "significance"),
        ({"comparison": {**BETTER, "low": -0.001}}, "significance"),
        *[({"comparison": {**BETTER, name: "nan"}}, "improvement") for name in BETTER],
        ({"comparison": None}, "improvement"),
        ({"champion_metrics": {}}, "improvement"),
        ({"champion_metrics": {"ndcg@10": NAN}}, "improvement"),
        ({"baseline": "it is later (as of 2026-03-01)"}, "improvement"),
        ({"baseline": None}, "improvement"),
    ],
)
def test_what_is_missing_not_finite_or_not_enough_rejects(changes: dict[str, Any], gate: str) -> None:
    decision = decide(evaluation(**changes), RULES, approval="automatic")
    assert decision.outcome == "rejected"
    assert gate in {reason.gate for reason in decision.reasons if not reason.passed}


def test_absolute_improvement_is_in_the_metrics_own_units() -> None:
    rules = Evaluate.model_validate({**RULES.model_dump(mode="json"), "improvement": {"absolute": 0.02}})
    assert decide(evaluation(), rules, approval="automatic").outcome == "rejected"
    assert decide(evaluation(comparison={**BETTER, "gain": 0.021}), rules, approval="automatic").outcome == "accepted"
