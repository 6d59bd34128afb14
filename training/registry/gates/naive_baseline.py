"""The gate `naive_baseline`: a model must be better than what needs no training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from training.contracts import JsonValue
from training.evaluation.record import Baselines, NaiveBaseline
from training.format import change, figure, finite
from training.registry.gates.interface import Case
from training.registry.ledger.reasons import Reason
from training.spec.descriptors.metrics import is_lower_better
from training.spec.sections.evaluation import Evaluate


def judge_naive_baseline(case: Case) -> Iterator[Reason]:
    """Yield whether the candidate's primary metric is better than the best baseline's, and a warning for each other metric that is not.

    The point estimate decides; the paired interval is shown. A first champion fails by it; once there is a champion, the other gates hold
    the candidate to that, and this one warns. `evaluate.severity` overrides both.
    """
    record, rules, is_asked = case.record, case.rules, case.gate in case.rules.severity
    if not is_asked and record.champion is not None:
        case = replace(case, severity="warn")
    found = record.baselines or Baselines()
    why = _why_none(found, rules)
    if why is not None:
        # A configured gate that cannot judge is a warning.
        severity = "warn" if is_asked else case.severity
        yield case.reason(passed=not is_asked, severity=severity, words=f"no naive baseline to compare with: {why}")
        return
    best = found.best_entry
    value, other = finite(record.metrics.get(rules.primary)), None if best is None else finite(best.metrics.get(rules.primary))
    if best is None or value is None or other is None:
        what = f"{rules.primary} of the candidate or of the best naive baseline"
        # It fails closed only where the gate is in force.
        yield case.reason(passed=False, words=f"{what} was not measured") if case.severity == "warn" else case.missing(what)
        return
    gain = other - value if is_lower_better(rules.primary) else value - other
    low, high = (finite(getattr(found.comparison, end, None)) for end in ("low", "high"))
    interval = "" if low is None or high is None else f", {100 * rules.confidence:.4g} % interval [{change(low)}, {change(high)}]"
    words = f"{rules.primary} {figure(value)}, best naive baseline {best.name} {figure(other)}: gain {change(gain)}{interval}, required > 0"
    milder = case.milder("approve")
    if gain <= 0 and milder:
        words += (
            f"; what helps is features that say more than {best.name} (data.windows has lags), another train.model or settings of it, "
            f"leaving out rows whose values are wrong (data.source.where), or a person who decides ({milder})"
        )
    numbers: dict[str, JsonValue] = {"baseline": best.name, "value": other, "gain": gain, "low": low, "high": high}
    yield case.reason(passed=gain > 0, words=words, numbers=numbers)
    yield from _other_metrics(case, found, best)


def _why_none(found: Baselines, rules: Evaluate) -> str | None:
    if not rules.baseline.enabled:
        return "switched off (evaluate.baseline.enabled)"
    if rules.task == "language":
        return "the task language has none"
    return found.why_none


def _other_metrics(case: Case, found: Baselines, best: NaiveBaseline) -> Iterator[Reason]:
    worse = [name for name in found.worse if name != case.rules.primary]
    if worse:
        values = {name: (finite(case.record.metrics.get(name)), finite(best.metrics.get(name))) for name in worse}
        differences = ", ".join(f"{name} {_digits(new)} against {_digits(old)}" for name, (new, old) in values.items())
        yield case.reason(passed=False, severity="warn", words=f"worse than the naive baseline {best.name}: {differences}")


def _digits(value: float | None) -> str:
    return "unknown" if value is None else figure(value)
