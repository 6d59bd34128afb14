"""Gates on a candidate beside the champion, or beside the canary that is under way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from training.contracts import JsonValue
from training.evaluation_record import EvaluationRecord, Rival, Slice
from training.format import change, figure, finite
from training.registry.gate import Gate, RulesGate
from training.registry.reasons import Reason, at_most, missing
from training.registry.significance_gates import significance
from training.spec.metrics import is_lower_better
from training.spec.sections.evaluation import Evaluate


def is_compared(record: EvaluationRecord) -> bool:
    """Return whether the gates that compare with the champion judge: there is one, it scored the same rows, and has other weights."""
    return record.baseline == "champion" and record.champion is not None and not has_weights_of(record, record.champion)


def has_weights_of(record: EvaluationRecord, rival: Rival | None) -> bool:
    """Return whether the candidate has the weights of the champion or of the canary that it was measured against."""
    weights = "" if record.candidate is None else record.candidate.weights_digest
    return rival is not None and weights != "" and weights == rival.weights_digest


def _baseline(record: EvaluationRecord, rules: Evaluate) -> Iterator[Reason]:
    """Whether there is a champion to compare with."""
    baseline, champion = record.baseline, record.champion
    if baseline == "no champion" and champion is None:
        yield Reason(gate="baseline", passed=True, words="no champion yet: only absolute gates apply")
        return
    if champion is not None and has_weights_of(record, champion):
        yield _same_weights("baseline", "champion", champion, "only absolute gates apply, no new champion")
        return
    if baseline != "champion" or champion is None:
        words = f"the champion is not a baseline: {baseline}; nothing is promoted backwards"
        yield Reason(gate="baseline", passed=False, words=words)
        return
    words = f"champion version {champion.version} scored the same rows"
    yield Reason(gate="baseline", passed=True, words=words)


def _same_weights(gate: str, alias: str, rival: Rival, effect: str) -> Reason:
    return Reason(gate=gate, passed=True, words=f"the candidate is the {alias} (version {rival.version}): same weights; {effect}")


def _improvement(record: EvaluationRecord, rules: Evaluate) -> Iterator[Reason]:
    old = finite(record.champion_metrics.get(rules.primary))
    gain = None if record.comparison is None else finite(record.comparison.gain)
    if old is None or gain is None:
        yield missing("improvement", f"the champion's {rules.primary} or the difference")
        return
    if rules.improvement.relative is not None:
        asked = rules.improvement.relative * abs(old)
        words = f"{rules.improvement.relative:.3g} of the champion's {figure(old)} = {figure(asked)}"
    else:
        asked = rules.improvement.absolute or 0.0
        words = figure(asked)
    yield Reason(
        gate="improvement",
        passed=gain > asked,
        severity=rules.severity_of("improvement"),
        words=f"{rules.primary} gain {change(gain)}, required > {words}",
        numbers={"metric": rules.primary, "gain": gain, "champion": old, "asked": asked, "relative": rules.improvement.relative},
    )


def _slices(record: EvaluationRecord, rules: Evaluate) -> Iterator[Reason]:
    """The worst drop of any slice with support; every column that the spec slices by must be there."""
    if rules.slice_drop is None:
        return
    found = record.slices
    measured = {name for entry in found for name in entry.columns}
    absent = [name for name in rules.slices if name not in measured]
    if absent:
        yield missing("slices", f"any slice by {', '.join(absent)}")
        return
    judged = [entry for entry in found if entry.is_small is not True]
    drops = []
    for entry in judged:
        new, old = finite(entry.candidate), finite(entry.champion)
        if new is None or old is None:
            hint = "a slice whose labels are all alike has no such metric: raise evaluate.slice_support"
            yield missing("slices", f"{rules.primary} where {_place(entry)}", hint=hint)
            return
        drops.append(new - old if is_lower_better(rules.primary) else old - new)
    if not drops:
        words = f"not judged: none of {len(found)} slices has slice_support = {rules.slice_support} rows"
        yield Reason(gate="slices", passed=False, severity="warn", words=words)
        return
    worst = max(range(len(drops)), key=drops.__getitem__)
    numbers: dict[str, JsonValue] = {
        "columns": judged[worst].columns,
        "drop": drops[worst],
        "allowed": rules.slice_drop,
        "slices": len(drops),
    }
    allowed = f"of {len(drops)} slices none may be worse by more than {figure(rules.slice_drop)}"
    words = f"{allowed}: {_place(judged[worst])} by {change(drops[worst])}"
    yield Reason(gate="slices", passed=drops[worst] <= rules.slice_drop, severity=rules.severity_of("slices"), words=words, numbers=numbers)


def _drift(record: EvaluationRecord, rules: Evaluate) -> Iterator[Reason]:
    psi = None if record.checks is None or record.checks.drift is None else record.checks.drift.psi
    yield at_most("drift", psi, rules.checks.drift, "drift of the predictions (PSI)", severity=rules.severity_of("drift"))


def _canary(record: EvaluationRecord, rules: Evaluate) -> Iterator[Reason]:
    """Only one canary at a time: a candidate takes the place of one that is under way by being significantly better."""
    canary = record.canary
    if canary is None or has_weights_of(record, record.champion):
        return
    if has_weights_of(record, canary):
        yield _same_weights("canary", "canary", canary, "it stays canary")
        return
    yield significance(record.canary_comparison, "canary", f"the canary, version {canary.version},", rules)


def _place(entry: Slice) -> str:
    return " and ".join(f"{name} = {value}" for name, value in entry.columns.items())


GATES: Final[Mapping[str, Gate]] = {
    "baseline": RulesGate(_baseline),
    "improvement": RulesGate(_improvement),
    "slices": RulesGate(_slices),
    "drift": RulesGate(_drift),
    "canary": RulesGate(_canary),
}
