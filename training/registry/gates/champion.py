"""Gates on a candidate beside the champion, or beside the canary that is under way."""

from __future__ import annotations

from collections.abc import Iterator

from training.contracts import JsonValue
from training.evaluation.record import EvaluationRecord, Rival, Slice
from training.format import change, figure, finite
from training.registry.gates.interface import Case
from training.registry.gates.significance import significance
from training.registry.ledger.reasons import Reason
from training.spec.descriptors.metrics import is_lower_better


def is_compared(record: EvaluationRecord) -> bool:
    """Return whether the gates that compare with the champion judge: there is one, it scored the same rows, and has other weights."""
    return record.baseline == "champion" and record.champion is not None and not has_weights_of(record, record.champion)


def has_weights_of(record: EvaluationRecord, rival: Rival | None) -> bool:
    """Return whether the candidate has the weights of the champion or of the canary that it was measured against."""
    weights = "" if record.candidate is None else record.candidate.weights_digest
    return rival is not None and weights != "" and weights == rival.weights_digest


def judge_baseline(case: Case) -> Iterator[Reason]:
    """Whether there is a champion to compare with."""
    record = case.record
    baseline, champion = record.baseline, record.champion
    if baseline == "no champion" and champion is None:
        yield case.reason(passed=True, words="no champion yet: only absolute gates apply")
        return
    if champion is not None and has_weights_of(record, champion):
        yield _same_weights(case, "champion", champion, "only absolute gates apply, no new champion")
        return
    if baseline != "champion" or champion is None:
        words = f"the champion is not a baseline: {baseline}, and no model replaces one that it is not compared with"
        if "after the test rows begin" in str(baseline):
            words += "; what helps is newer rows, a shorter data.split.test, or another promote.model, which begins without a champion"
        yield case.reason(passed=False, words=words)
        return
    words = f"champion version {champion.version} scored the same rows"
    yield case.reason(passed=True, words=words)


def _same_weights(case: Case, alias: str, rival: Rival, effect: str) -> Reason:
    return case.reason(passed=True, words=f"the candidate is the {alias} (version {rival.version}): same weights; {effect}")


def judge_improvement(case: Case) -> Iterator[Reason]:
    """Whether the gain over the champion is as large as the spec asks."""
    record, rules = case.record, case.rules
    old = finite(record.champion_metrics.get(rules.primary))
    gain = None if record.comparison is None else finite(record.comparison.gain)
    if old is None or gain is None:
        yield case.missing(f"the champion's {rules.primary} or the difference")
        return
    if rules.improvement.relative is not None:
        asked = rules.improvement.relative * abs(old)
        words = f"{rules.improvement.relative:.3g} of the champion's {figure(old)} = {figure(asked)}"
    else:
        asked = rules.improvement.absolute or 0.0
        words = figure(asked)
    yield case.reason(
        passed=gain > asked,
        words=f"{rules.primary} gain {change(gain)}, required > {words}",
        numbers={"metric": rules.primary, "gain": gain, "champion": old, "asked": asked, "relative": rules.improvement.relative},
    )


def judge_slices(case: Case) -> Iterator[Reason]:
    """The worst drop of any slice with support, those that were not judged; every column that the spec slices by must be there."""
    rules, found = case.rules, case.record.slices
    if rules.slice_drop is None:
        return
    measured = {name for entry in found for name in entry.columns}
    absent = [name for name in rules.slices if name not in measured]
    if absent:
        yield case.missing(f"any slice by {', '.join(absent)}")
        return
    large = [entry for entry in found if not entry.is_small]
    judged, without = [entry for entry in large if not _has_none(entry)], [entry for entry in large if _has_none(entry)]
    drops = []
    for entry in judged:
        new, old = finite(entry.candidate), finite(entry.champion)
        if new is None or old is None:
            yield case.missing(f"{rules.primary} where {_place(entry)}")
            return
        drops.append(new - old if is_lower_better(rules.primary) else old - new)
    if without:
        words = f"slices whose labels allow no {rules.primary} ({without[0].why_none})"
        yield case.not_judged(words, {_place(entry): entry.support for entry in without}, severity="warn")
    if not large:
        words = f"not judged: none of {len(found)} slices has slice_support = {rules.slice_support} rows"
        yield case.reason(passed=False, severity="warn", words=words)
    if not drops:
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
    yield case.reason(passed=drops[worst] <= rules.slice_drop, words=words, numbers=numbers)


def _has_none(entry: Slice) -> bool:
    """Return whether the labels of a slice alone allow no value. NaN is another matter: a model failed to give one."""
    return bool(entry.why_none) and entry.candidate is None and entry.champion is None


def judge_drift(case: Case) -> Iterator[Reason]:
    """Whether the predictions are distributed as those of the champion."""
    checks = case.record.checks
    psi = None if checks is None or checks.drift is None else checks.drift.psi
    yield case.at_most(psi, case.rules.checks.drift, "drift of the predictions (PSI)")


def judge_canary(case: Case) -> Iterator[Reason]:
    """Only one canary at a time: a candidate takes the place of one that is under way by being significantly better."""
    record, canary = case.record, case.record.canary
    if canary is None or has_weights_of(record, record.champion):
        return
    if has_weights_of(record, canary):
        yield _same_weights(case, "canary", canary, "it stays canary")
        return
    if record.canary_baseline is not None:
        words = f"the canary, version {canary.version}, is not compared: {record.canary_baseline}"
        yield case.reason(passed=False, words=words)
        return
    yield significance(case, record.canary_comparison, f"the canary, version {canary.version},")


def _place(entry: Slice) -> str:
    return " and ".join(f"{name} = {value}" for name, value in entry.columns.items())
