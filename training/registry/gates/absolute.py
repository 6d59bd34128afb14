"""Gates on what a candidate is by itself: finite metrics, predictions that differ, bias, fairness, latency, leakage, overlap."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from training.contracts import JsonValue, json_number
from training.errors import shown
from training.evaluation.record import FairnessGaps, ResultChecks
from training.format import change, figure, finite, percent
from training.registry.gates.interface import Case
from training.registry.ledger.reasons import Reason
from training.spec.descriptors.gate_descriptor import Severity

LOADED_SHARE: Final = 0.1
"""Share of the calls' time spent waiting for a CPU above which a latency over its limit is inconclusive."""
BIAS_SHARE: Final = 0.5
"""Of the rmse that the bias may be. Above it, a constant added to all predictions lowers the rmse by more than 13 %, because
rmse² = bias² + variance of the errors. Below it, the few blocks of a short test split move the mean error by chance."""


def judge_finite(case: Case) -> Iterator[Reason]:
    """Whether every metric that is needed is a number."""
    metrics, rules = case.record.metrics, case.rules
    needed = dict.fromkeys([rules.primary, *rules.metrics, *metrics])
    wrong = [name for name in needed if finite(metrics.get(name)) is None]
    if wrong:
        words = f"metric not finite: {', '.join(wrong)} {'is' if len(wrong) == 1 else 'are'} missing or no number"
        values = {name: shown(json_number(metrics[name])) if name in metrics else None for name in wrong}
        yield case.reason(passed=False, words=words, numbers=values)
        return
    value = metrics[rules.primary]
    yield case.reason(passed=True, words=f"{rules.primary} is {figure(value)}", numbers={rules.primary: value})


def judge_constant(case: Case) -> Iterator[Reason]:
    """Whether the predictions differ."""
    checks = case.record.checks or ResultChecks()
    if checks.constant is None:
        yield case.missing("whether the predictions are all alike")
    else:
        words = "every prediction is the same" if checks.constant else "predictions differ from row to row"
        yield case.reason(passed=not checks.constant, words=words)


def judge_bias(case: Case) -> Iterator[Reason]:
    """Whether the mean error is at most half of the rmse."""
    if not case.rules.judges_bias:
        return
    bias, rmse = (finite(case.record.metrics.get(name)) for name in ("bias", "rmse"))
    if bias is None or rmse is None:
        yield case.missing("bias or rmse")
        return
    passed, share = abs(bias) <= BIAS_SHARE * rmse, percent(abs(bias) / rmse if rmse else 0.0, 0)
    words = f"bias {change(bias)}, {share} of the rmse {figure(rmse)}, required <= {percent(BIAS_SHARE, 0)}"
    if not passed:
        level, rest = "high" if bias > 0 else "low", math.sqrt(max(rmse**2 - bias**2, 0.0))
        words += f": predictions are too {level} on average, else the rmse would be {figure(rest)}; compare the labels of the splits"
    yield case.reason(passed=passed, words=words, numbers={"bias": bias, "rmse": rmse})


def judge_fairness(case: Case) -> Iterator[Reason]:
    """Each limit of `evaluate.fairness`, by the gap between the values of each sensitive column."""
    rules = case.rules
    for name in ("equal_opportunity", "calibration"):
        limit: float | None = getattr(rules.fairness, name)
        for column in rules.sensitive if limit is not None else ():
            measured = case.record.fairness.get(column, FairnessGaps())
            gap: float | None = getattr(measured, f"{name}_gap")
            what = f"{name.replace('_', ' ')} gap between values of {column}"
            large = [entry for entry in measured.values if not entry.is_small]
            without = {entry.value: entry.support for entry in large if name == "equal_opportunity" and entry.num_positives == 0}
            if gap is None and measured.values and len(large) < 2:
                words = f"{what}: not judged, fewer than two values have slice_support = {rules.slice_support} rows"
                yield case.reason(passed=False, severity="warn", words=words)
            elif any(finite(entry.calibration_error) is None for entry in large):
                yield case.missing(f"a prediction of the rows behind the {what}")
            elif gap is None and without:
                yield case.not_judged(f"{what}, as fewer than two have a positive label; without one", without)
            elif limit is not None:
                yield case.at_most(gap, limit, what)
                if without:
                    yield case.not_judged(f"{what}, where there is no positive label", without, severity="warn")


def judge_latency(case: Case) -> Iterator[Reason]:
    """Each limit of `evaluate.latency_ms`."""
    measured = (case.record.latency or {}).get("1")
    limits: dict[str, float | None] = case.rules.latency_ms.model_dump()
    for name, limit in limits.items():
        if limit is not None:
            value: float | None = getattr(measured, f"{name}_ms", None)
            reason = case.at_most(value, limit, f"{name} of one prediction", unit=" ms")
            waited_share = None if measured is None else finite(measured.waited_share)
            yield reason if reason.passed else _unless_loaded(reason, value, limit, waited_share)


def _unless_loaded(reason: Reason, value: float | None, limit: float, waited_share: float | None) -> Reason:
    """Return a latency above its limit as a warning where the machine was too loaded to say: a model is not rejected for its neighbours.

    Waiting for a CPU is not in the figure; what remains of the load, caches and cores that are shared, doubles it at most. A model that
    misses its limit by more is judged on any machine.
    """
    if waited_share is None or waited_share <= LOADED_SHARE or finite(value) is None or value is None or value > 2 * limit:
        return reason
    words = f"{reason.words}: inconclusive, its calls waited {waited_share:.0%} of their time for a CPU; measure again on an idle machine"
    severity: Severity | None = "warn" if reason.severity == "fail" else reason.severity
    return replace(reason, words=words, severity=severity, numbers={**reason.numbers, "waited_share": waited_share})


def judge_leakage(case: Case) -> Iterator[Reason]:
    """Whether no single feature ranks the labels too well."""
    leak, limit = (case.record.checks or ResultChecks()).leakage, case.rules.checks.leakage
    value = None if leak is None else finite(leak.value)
    if leak is not None and value is not None:
        words = f"{leak.feature} alone ranks the labels by {figure(value)}, required < {figure(limit)}"
        if value >= limit:
            milder = case.milder("warn")
            words += "; remove it where it is known only after the decision" + (f", else set {milder}" if milder else "")
        numbers: dict[str, JsonValue] = {"feature": leak.feature, "value": value, "limit": limit}
        yield case.reason(passed=value < limit, words=words, numbers=numbers)
    elif case.rules.task != "language":  # A text has no features that could be the label.
        yield case.missing("how well any one feature alone ranks the labels")


def judge_overlap(case: Case) -> Iterator[Reason]:
    """The share of entities that test and training rows have in common, if it is limited."""
    limit, checks = case.rules.checks.overlap, case.record.checks or ResultChecks()
    if limit is not None:
        share = None if checks.overlap is None else checks.overlap.share
        what = "share of the test rows' entities that the training rows have"
        yield case.at_most(share, limit, what)
