"""A mean error that is most of the rmse is a warning."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.training.registry.good_evaluation import GOOD, decide, failed
from training.registry.gates.judging import Decision
from training.spec.sections.evaluation import Evaluate


def judged(metrics: dict[str, float], *, primary: str = "rmse", **rules: Any) -> Decision:
    alone = {**GOOD, "metrics": metrics, "champion_metrics": metrics, "slices": [], "baselines": {"why_none": "in this test"}}
    return decide(alone, Evaluate.model_validate({"task": "regression", "primary": primary, **rules}), approval="automatic")


@pytest.mark.parametrize(("bias", "level"), [(6.0, "high"), (-6.0, "low")])
def test_bias_of_more_than_half_of_the_rmse_warns_with_what_the_rmse_would_be(bias: float, level: str) -> None:
    decision = judged({"rmse": 10.0, "bias": bias})
    assert (decision.outcome, failed(decision)) == ("accepted", ["bias"])
    words = f"bias {bias:+}, 60 % of the rmse 10, required <= 50 %: predictions are too {level} on average, else the rmse would be 8"
    assert words.replace(".0", "") in decision.summary
    assert judged({"rmse": 10.0, "bias": bias}, severity={"bias": "fail"}).outcome == "rejected"


@pytest.mark.parametrize(("metrics", "primary"), [({"rmse": 10.0, "bias": 5.0}, "rmse"), ({"rmse": 0.0, "bias": 0.0}, "rmse")])
def test_bias_of_half_of_the_rmse_passes(metrics: dict[str, float], primary: str) -> None:
    assert failed(judged(metrics, primary=primary)) == []


def test_bias_of_a_model_of_a_quantile_is_not_judged() -> None:
    assert failed(judged({"rmse": 10.0, "bias": 9.0, "pinball_loss@90": 1.0}, primary="pinball_loss@90")) == []


def test_bias_that_was_not_measured_rejects() -> None:
    assert judged({"rmse": 10.0}).outcome == "rejected"


@pytest.mark.parametrize(("bias", "gates"), [(-3.0, ["minimum"]), (0.0, []), (3.0, ["maximum"])])
def test_bounds_of_the_bias_are_on_both_sides(bias: float, gates: list[str]) -> None:
    assert failed(judged({"rmse": 10.0, "bias": bias}, minimum={"bias": -2}, maximum={"bias": 2})) == gates
