"""The gates `minimum` and `maximum`: absolute bounds of metrics, independent of the champion."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from training.contracts import JsonValue
from training.evaluation.record import EvaluationRecord
from training.format import figure, finite
from training.registry.gates.interface import Case, judged
from training.registry.ledger.reasons import ApprovedFinding, Reason
from training.spec.descriptors.metrics import is_lower_better
from training.spec.sections.evaluation import BUILT_IN_GATES, Evaluate

APPROVED_MISS: Final = 2.0
"""Other rows measure other values: so many times the approved miss is still what a person approved. A broken model is not."""


def judge_minimum(case: Case) -> Iterator[Reason]:
    """The bounds of `evaluate.minimum`."""
    for name, bound in case.rules.minimum.items():
        yield _bound(case, name, bound, at_most=is_lower_better(name))


def judge_maximum(case: Case) -> Iterator[Reason]:
    """The bounds of `evaluate.maximum`."""
    for name, bound in case.rules.maximum.items():
        yield _bound(case, name, bound, at_most=True)


def _bound(case: Case, name: str, bound: float, *, at_most: bool) -> Reason:
    """Judge a metric by its bound.

    A bound also rejects a candidate that is significantly better than a champion which violates the same bound by more. The reason
    states it, because keeping that champion is the worse choice; `evaluate.severity` decides.
    """
    value = finite(case.record.metrics.get(name))
    required = f"required {'<=' if at_most else '>='} {figure(bound)}"
    if value is None:
        return case.missing(f"{name}, {required},")
    passed = value <= bound if at_most else value >= bound
    numbers: dict[str, JsonValue] = {"metric": name, "value": value, "bound": bound}
    words = f"{name} {figure(value)}, {required}"
    champion = None if passed else _worse_champion(case.record, name, value, at_most=at_most)
    if champion is not None:
        numbers["champion"] = champion
        words += f"; the champion is further from it ({figure(champion)}), and the candidate is significantly better than the champion"
        milder = case.milder("approve")
        words += f" ({milder} would ask a person)" if milder else ""
    return case.reason(passed=passed, words=words, numbers=numbers)


def canary_bounds(record: EvaluationRecord, rules: Evaluate, approved: Sequence[ApprovedFinding]) -> Iterator[Reason]:
    """Yield the reasons of both gates for a canary. What a person approved about it only warns: its other gates hold it to the champion.

    An approval covers the same gate, metric and bound, and a miss of up to `APPROVED_MISS` times the one that was approved. A metric
    that was not measured is never covered. One that the labels of the rows alone give no value says nothing about the canary yet.

    Args:
        record: its `metrics` are judged.
        rules: the spec's thresholds.
        approved: `decisions.approved_findings`; what was recorded without metric or bound covers each of them.
    """
    known = {"minimum": rules.minimum, "maximum": rules.maximum}
    bounds = {gate: {name: bound for name, bound in found.items() if name not in record.without_value} for gate, found in known.items()}
    rules = rules.model_copy(update=bounds)
    for reason in [reason for gate in known for reason in judged(gate, BUILT_IN_GATES[gate], record, rules)]:
        by = next((found["by"] for found in approved if not reason.passed and _covers(found, reason)), None)
        if by is None:
            yield reason
        else:
            yield replace(reason, severity="warn", words=f"{reason.words}; {by} approved a candidate that misses this bound")


def _covers(found: ApprovedFinding, reason: Reason) -> bool:
    named = found["numbers"]
    # Reasons without numbers say that the metric is missing.
    is_same = found["gate"] == reason.gate and all(
        name in reason.numbers and named.get(name, reason.numbers[name]) == reason.numbers[name] for name in ("metric", "bound")
    )
    approved, value, bound = finite(named.get("value")), finite(reason.numbers.get("value")), finite(reason.numbers.get("bound"))
    if not is_same or approved is None or value is None or bound is None:
        return is_same
    return bool(abs(value - bound) <= APPROVED_MISS * abs(approved - bound) * (1 + 1e-9))


def _worse_champion(record: EvaluationRecord, name: str, value: float, *, at_most: bool) -> float | None:
    """Return the champion's value of `name` where it misses the bound by more and the candidate is significantly better; else None."""
    old, low = finite(record.champion_metrics.get(name)), None if record.comparison is None else finite(record.comparison.low)
    if old is None or low is None or low <= 0:
        return None
    return old if (old > value if at_most else old < value) else None
