"""Gates: pure functions of numbers to a decision with reasons. Whatever is missing or not finite rejects."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from training.spec.evaluation import LOWER_IS_BETTER, Evaluate

Outcome = Literal["accepted", "rejected", "needs_approval"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """One gate's word."""

    gate: str
    passed: bool
    words: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    outcome: Outcome
    reasons: tuple[Reason, ...]

    @property
    def summary(self) -> str:
        """The failed gates' words, or all of them where none failed."""
        failed = [reason.words for reason in self.reasons if not reason.passed]
        return "; ".join(failed or [reason.words for reason in self.reasons])

    def reasons_json(self) -> list[dict[str, Any]]:
        return [asdict(reason) for reason in self.reasons]


def decide(evaluation: Mapping[str, Any], rules: Evaluate, *, approval: str) -> Decision:
    """Decide about a candidate.

    Args:
        evaluation: `metrics.json` of the evaluation: `metrics`, `champion_metrics`, `comparison`, `baseline`.
        rules: the spec's thresholds.
        approval: `automatic`, or `required`: then nothing is accepted here.
    """
    reasons = [*_finite(evaluation, rules), *_minimum(evaluation, rules), *_improvement(evaluation, rules)]
    if not all(reason.passed for reason in reasons):
        return Decision(outcome="rejected", reasons=tuple(reasons))
    if approval == "required":
        words = "the spec asks for a person's approval (promote.approval), so nothing is promoted by itself"
        return Decision(outcome="needs_approval", reasons=(*reasons, Reason(gate="approval", passed=True, words=words)))
    return Decision(outcome="accepted", reasons=tuple(reasons))


def _finite(evaluation: Mapping[str, Any], rules: Evaluate) -> list[Reason]:
    value = _number(evaluation.get("metrics", {}).get(rules.primary))
    if value is None:
        return [Reason(gate="finite", passed=False, words=f"metric not finite: {rules.primary} is missing or no number")]
    return [Reason(gate="finite", passed=True, words=f"{rules.primary} is {value:.6g}")]


def _minimum(evaluation: Mapping[str, Any], rules: Evaluate) -> list[Reason]:
    reasons = []
    for name, bound in rules.minimum.items():
        value = _number(evaluation.get("metrics", {}).get(name))
        lower = name in LOWER_IS_BETTER
        passed = value is not None and (value <= bound if lower else value >= bound)
        shown = "missing or no number" if value is None else f"{value:.6g}"
        reasons.append(
            Reason(gate="minimum", passed=passed, words=f"{name} {shown}, {'at most' if lower else 'at least'} {bound:.6g} asked")
        )
    return reasons


def _improvement(evaluation: Mapping[str, Any], rules: Evaluate) -> list[Reason]:
    baseline = evaluation.get("baseline")
    if baseline == "no champion":
        return [Reason(gate="improvement", passed=True, words="there is no champion yet: the minimum decides alone")]
    if baseline != "champion":
        return [Reason(gate="improvement", passed=False, words=f"the champion is no baseline: {baseline}; nothing is promoted backwards")]
    old = _number(evaluation.get("champion_metrics", {}).get(rules.primary))
    comparison = evaluation.get("comparison") or {}
    gain, low, high = (_number(comparison.get(name)) for name in ("gain", "low", "high"))
    if old is None or gain is None or low is None or high is None:
        return [Reason(gate="improvement", passed=False, words=f"the champion's {rules.primary} or the difference is missing or no number")]
    asked, words = _asked(rules, old)
    enough = Reason(gate="improvement", passed=gain > asked, words=f"{rules.primary} better by {gain:+.6g}, more than {words} asked")
    interval = f"[{low:+.6g}, {high:+.6g}]"
    sure = Reason(
        gate="significance", passed=low > 0, words=f"{rules.confidence:.0%} interval of the gain {interval}, lower end above zero asked"
    )
    return [enough, sure]


def _asked(rules: Evaluate, old: float) -> tuple[float, str]:
    improvement = rules.improvement
    if improvement.relative is not None:
        asked = improvement.relative * abs(old)
        return asked, f"{improvement.relative:.3g} of the champion's {old:.6g} = {asked:.6g}"
    asked = improvement.absolute or 0.0
    return asked, f"{asked:.6g}"


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
