"""Gates on what a candidate is by itself: finite metrics, predictions that differ, fairness, latency, leakage, overlap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from training.contracts import JsonValue, json_number
from training.errors import shown
from training.evaluation_record import Checks, EvaluationRecord, Fairness, Latency, Leakage
from training.format import figure, finite
from training.registry.gate import Gate, RulesGate
from training.registry.reasons import Reason, at_most, missing
from training.spec.gate import Severity
from training.spec.sections.evaluation import Evaluate

LOADED_SHARE: Final = 0.1
"""Share of the calls' time spent waiting for a CPU above which a latency over its limit is inconclusive."""


def _finite(record: EvaluationRecord, rules: Evaluate) -> Iterator[Reason]:
    metrics = record.metrics
    needed = dict.fromkeys([rules.primary, *rules.metrics, *metrics])
    wrong = [name for name in needed if finite(metrics.get(name)) is None]
    if wrong:
        words = f"metric not finite: {', '.join(wrong)} {'is' if len(wrong) == 1 else 'are'} missing or no number"
        values = {name: shown(json_number(metrics[name])) if name in metrics else None for name in wrong}
        yield Reason(gate="finite", passed=False, words=words, numbers=values)
        return
    value = metrics[rules.primary]
    yield Reason(gate="finite", passed=True, words=f"{rules.primary} is {figure(value)}", numbers={rules.primary: value})


def _constant(record: EvaluationRecord, rules: Evaluate) -> Iterator[Reason]:
    constant = None if record.checks is None else record.checks.constant
    if constant is None:
        yield missing("constant", "whether the predictions are all alike")
    else:
        words = "every prediction is the same" if constant else "predictions differ from row to row"
        yield Reason(gate="constant", passed=not constant, words=words)


def _fairness(record: EvaluationRecord, rules: Evaluate) -> Iterator[Reason]:
    for name in ("equal_opportunity", "calibration"):
        limit: float | None = getattr(rules.fairness, name)
        for column in rules.sensitive if limit is not None else ():
            measured = record.fairness.get(column, Fairness())
            gap: float | None = getattr(measured, f"{name}_gap")
            what = f"{name.replace('_', ' ')} gap between values of {column}"
            if gap is None and measured.values and sum(entry.is_small is not True for entry in measured.values) < 2:
                words = f"{what}: not judged, fewer than two values have slice_support = {rules.slice_support} rows"
                yield Reason(gate="fairness", passed=False, severity="warn", words=words)
            elif limit is not None:
                yield at_most("fairness", gap, limit, what, severity=rules.severity_of("fairness"))


def _latency(record: EvaluationRecord, rules: Evaluate) -> Iterator[Reason]:
    measured, limits = (record.latency or {}).get("1", Latency()), rules.latency_ms
    both = (("p50", measured.p50_ms, limits.p50), ("p95", measured.p95_ms, limits.p95), ("p99", measured.p99_ms, limits.p99))
    for name, value, limit in both:
        if limit is not None:
            reason = at_most("latency", value, limit, f"{name} of one prediction", severity=rules.severity_of("latency"), unit=" ms")
            yield reason if reason.passed else _unless_loaded(reason, value, limit, finite(measured.waited_share))


def _unless_loaded(reason: Reason, value: float | None, limit: float, waited_share: float | None) -> Reason:
    """Return a latency above its limit as a warning where the machine was too loaded to say: a model is not rejected for its neighbours.

    Waiting for a CPU is not in the figure; what remains of the load, caches and cores that are shared, doubles it at most. A model that
    misses its limit by more is judged on any machine.
    """
    if waited_share is None or waited_share <= LOADED_SHARE or finite(value) is None or value is None or value > 2 * limit:
        return reason
    words = f"{reason.words}: inconclusive, its calls waited {waited_share:.0%} of their time for a CPU; measure again on an idle machine"
    severity: Severity = "warn" if reason.severity == "fail" else reason.severity
    return replace(reason, words=words, severity=severity, numbers={**reason.numbers, "waited_share": waited_share})


def _leakage(record: EvaluationRecord, rules: Evaluate) -> Iterator[Reason]:
    checks = record.checks or Checks()
    leak, limit = checks.leakage or Leakage(), rules.checks.leakage
    value = finite(leak.value)
    if value is not None:
        words = f"{leak.feature} alone ranks the labels by {figure(value)}, required < {figure(limit)}"
        words += "" if value < limit else "; remove it where it is known only after the decision, else set severity: {leakage: warn}"
        numbers: dict[str, JsonValue] = {"feature": leak.feature, "value": value, "limit": limit}
        yield Reason(gate="leakage", passed=value < limit, severity=rules.severity_of("leakage"), words=words, numbers=numbers)
    elif rules.task != "language":  # A text has no features that could be the label.
        yield missing("leakage", "how well any one feature alone ranks the labels")


def _overlap(record: EvaluationRecord, rules: Evaluate) -> Iterator[Reason]:
    if rules.checks.overlap is not None:
        checks = record.checks or Checks()
        share = None if checks.overlap is None else checks.overlap.share
        what = "share of the test rows' entities that the training rows have"
        yield at_most("overlap", share, rules.checks.overlap, what, severity=rules.severity_of("overlap"))


GATES: Final[Mapping[str, Gate]] = {
    "finite": RulesGate(_finite),
    "constant": RulesGate(_constant),
    "fairness": RulesGate(_fairness),
    "latency": RulesGate(_latency),
    "leakage": RulesGate(_leakage),
    "overlap": RulesGate(_overlap),
}
