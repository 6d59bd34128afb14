"""The gate `naive_baseline`: a model must be better than what needs no training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from training.registry.reasons import Reason, entries, missing, number, table
from training.spec.metrics import is_lower_better
from training.spec.sections.evaluation import Evaluate, Severity

GATE: Final = "naive_baseline"


def naive_baseline(evaluation: Mapping[str, Any], rules: Evaluate) -> Iterator[Reason]:
    """Yield whether the candidate's primary metric is better than the best baseline's, and a warning for each other metric that is not.

    The point estimate decides; the paired interval is shown. A first champion fails by it; once there is a champion, the other gates hold
    the candidate to that, and this one warns. `evaluate.severity` overrides both.

    Args:
        evaluation: `metrics.json`; `baselines` of it are judged.
        rules: the spec's thresholds.
    """
    severity = _severity(evaluation, rules)
    found = table(evaluation, "baselines")
    why = _why_none(found, rules)
    if why is not None:
        # A gate that the spec asks for and that cannot judge is a warning.
        is_asked = "naive_baseline" in rules.severity
        severity = "warn" if is_asked else severity
        yield Reason(gate=GATE, passed=not is_asked, severity=severity, words=f"no naive baseline to compare with: {why}")
        return
    best = next((entry for entry in entries(found.get("found")) if entry.get("name") == found.get("best")), {})
    value, other = number(table(evaluation, "metrics").get(rules.primary)), number(table(best, "metrics").get(rules.primary))
    if value is None or other is None:
        yield _not_measured(rules, severity)
        return
    gain = other - value if is_lower_better(rules.primary) else value - other
    low, high = (number(table(found, "comparison").get(name)) for name in ("low", "high"))
    interval = "" if low is None or high is None else f", {100 * rules.confidence:.4g} % interval [{low:+.6g}, {high:+.6g}]"
    words = f"{rules.primary} {value:.6g}, best naive baseline {best['name']} {other:.6g}: gain {gain:+.6g}{interval}, required > 0"
    numbers = {"baseline": best["name"], "value": other, "gain": gain, "low": low, "high": high}
    yield Reason(gate=GATE, passed=gain > 0, severity=severity, words=words, numbers=numbers)
    yield from _other_metrics(evaluation, found, best, rules)


def _why_none(found: Mapping[str, Any], rules: Evaluate) -> str | None:
    if not rules.baseline.enabled:
        return "switched off (evaluate.baseline.enabled)"
    if rules.task == "language":
        return "the task language has none"
    why = found.get("why_none")
    return why if isinstance(why, str) else None


def _severity(evaluation: Mapping[str, Any], rules: Evaluate) -> Severity:
    return rules.severity.get("naive_baseline", "fail" if evaluation.get("champion") is None else "warn")


def _not_measured(rules: Evaluate, severity: Severity) -> Reason:
    """Fail closed only where the gate is in force."""
    what = f"{rules.primary} of the candidate or of the best naive baseline"
    if severity == "warn":
        return Reason(gate=GATE, passed=False, severity="warn", words=f"{what} was not measured")
    return missing(GATE, what)


def _other_metrics(evaluation: Mapping[str, Any], found: Mapping[str, Any], best: Mapping[str, Any], rules: Evaluate) -> Iterator[Reason]:
    names = found.get("worse")
    worse = [str(name) for name in names if name != rules.primary] if isinstance(names, list | tuple) else []
    if worse:
        values = {name: (number(table(evaluation, "metrics").get(name)), number(table(best, "metrics").get(name))) for name in worse}
        told = ", ".join(f"{name} {_digits(new)} against {_digits(old)}" for name, (new, old) in values.items())
        yield Reason(gate=GATE, passed=False, severity="warn", words=f"worse than the naive baseline {best['name']}: {told}")


def _digits(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.6g}"
