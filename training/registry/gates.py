"""Gates: pure functions of an evaluation's numbers and the spec's rules to a decision with reasons.

They fail closed: a number that a rule needs and that is missing or not finite rejects, whatever the gate's severity. A severity says what a
person can live with, and of what was not measured nobody knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Literal

from training.contracts import JsonValue
from training.errors import shown
from training.evaluation_record import Checks, Comparison, EvaluationRecord, Fairness, Latency, Leakage, Rival, Slice, figure_json
from training.registry.bounds import bounds, canary_bounds
from training.registry.naive import naive_baseline
from training.registry.reasons import Reason
from training.registry.reasons import missing as _missing
from training.registry.reasons import number as _number
from training.registry.significance_gates import canary_alarm, significance
from training.registry.verdicts import ApprovedFinding, ReasonJson
from training.spec.metrics import is_lower_better
from training.spec.sections.evaluation import Evaluate, Severity
from training.spec.sections.promotion import Canary, Promote
from training.spec.types import duration_text

Outcome = Literal["accepted", "rejected", "needs_approval"]
CanaryOutcome = Literal["waiting", "promote", "roll_back"]

LOADED_SHARE: Final = 0.1
"""Share of the calls' time spent waiting for a CPU above which a latency over its limit is inconclusive."""
EARLY_SUPPORT: Final = 100
"""Rows with labels (fewer where the canary's support is smaller) below which a canary's numbers are noise: one row is always constant."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Judged:
    reasons: tuple[Reason, ...]

    def reasons_json(self) -> list[ReasonJson]:
        """Return the reasons as the ledger keeps them."""
        return [reason.to_json() for reason in self.reasons]


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision(_Judged):
    """What becomes of a candidate."""

    outcome: Outcome

    @property
    def summary(self) -> str:
        """One line: the words of the gates that made the outcome, and of those that only warn."""
        failed = [reason for reason in self.reasons if not reason.passed]
        if self.outcome == "rejected":
            return _line([reason.words for reason in failed if reason.severity == "fail"])
        asked = [reason.words for reason in failed if reason.severity == "approve"]
        asked += [reason.words for reason in self.reasons if reason.gate == "approval"]
        warned = [f"warning: {reason.words}" for reason in failed if reason.severity == "warn"]
        passed = [] if asked else [reason.words for reason in self.reasons if reason.passed]
        return _line([*asked, *warned, *passed])


@dataclass(frozen=True, kw_only=True, slots=True)
class CanaryVerdict(_Judged):
    """What becomes of a canary now."""

    outcome: CanaryOutcome

    @property
    def summary(self) -> str:
        """One line: what is against it, or everything where nothing is."""
        return _line([reason.words for reason in self.reasons if not reason.passed] or [reason.words for reason in self.reasons])


def decide(record: EvaluationRecord, rules: Evaluate, *, approval: str, promote: Promote | None = None) -> Decision:
    """Decide about a candidate.

    A gate that is not passed does what its severity says: `fail` rejects, `approve` asks a person, `warn` is only said. Whatever is missing
    or not finite rejects at every severity, and so does a champion that is not a baseline: nobody can approve what was not compared.

    A candidate with the champion's weights, as after an edit of the thresholds alone, is not compared with itself, and no approval is
    requested: the gates that need no champion decide, and the ledger moves nothing.

    Args:
        record: of the evaluation.
        rules: the spec's thresholds.
        approval: `automatic`; with anything else nothing is accepted here but the champion itself.
        promote: the spec's section; where it has a `canary`, a candidate has to beat the one that is under way.
    """
    reasons = [*_candidate(record, rules), *naive_baseline(record, rules), *_against_champion(record, rules)]
    reasons += [*_fairness(record, rules), *_latency(record, rules), *_checks(record, rules)]
    if promote is not None and promote.canary is not None:
        reasons += _canary(record, rules)
    failed = {reason.severity for reason in reasons if not reason.passed}
    if "fail" in failed:
        return Decision(outcome="rejected", reasons=tuple(reasons))
    if _is_seated(record, record.champion):
        # Nothing moves, so there is nothing that a person could approve.
        return Decision(outcome="accepted", reasons=tuple(reasons))
    if approval != "automatic":
        words = "the spec asks for a person's approval (promote.approval), so nothing is promoted by itself"
        reasons.append(Reason(gate="approval", passed=True, words=words, severity="approve"))
    asks = approval != "automatic" or "approve" in failed
    return Decision(outcome="needs_approval" if asks else "accepted", reasons=tuple(reasons))


def judge_canary(
    record: EvaluationRecord,
    canary_rules: Canary,
    *,
    rules: Evaluate,
    since: datetime,
    now: datetime,
    approved: Sequence[ApprovedFinding] = (),
) -> CanaryVerdict:
    """Judge a canary by what arrived since it became one.

    It is rolled back at once where its primary metric is not a number and the champion's on the same rows is one, and, with
    `EARLY_SUPPORT` rows, beyond a bound (unless that only warns, or a person approved it), when it is constant, or when its alarm says
    that it is surely worse. It is promoted after the time and the support that the rules ask for if it is not worse than tolerated, and
    rolled back if it is. Without the support, or on rows that have no such metric, it waits for as long as the rules have patience. The
    alarm is always valid (`evaluation.bootstrap.sequential`): looking again and again makes a false one no likelier.

    Args:
        record: `metrics` are the canary's, `champion_metrics` the champion's, on the same rows; `comparison` is canary minus
            champion; `alarm` is that of `evaluation.bootstrap.sequential`; without it nothing is rolled back by significance; `num_rows`
            counts rows with labels; `checks.constant` says whether all its predictions are alike; `baseline` is `no champion` where
            there is none: then the minimum decides alone.
        canary_rules: the spec's `promote.canary`.
        rules: the spec's `evaluate`, for the primary metric and the minimum.
        since: when it became canary; `since` and `now` both with a time zone.
        approved: `decisions.approved_findings`.
    """
    num_rows = record.num_rows or 0
    reasons = list(_canary_alarms(record, canary_rules, rules, num_rows, approved))
    if any(not reason.passed and reason.severity != "warn" for reason in reasons):
        return CanaryVerdict(outcome="roll_back", reasons=tuple(reasons))
    waits = list(_canary_waits(canary_rules, rules, record, num_rows, elapsed_seconds=(now - since).total_seconds()))
    reasons += waits
    missing = {reason.gate for reason in waits if not reason.passed}
    if missing:
        late = now - since >= canary_rules.patience and missing != {"time"}
        if late:
            words = f"what is missing had not come within {duration_text(canary_rules.patience)} (promote.canary.patience)"
            reasons.append(Reason(gate="patience", passed=False, words=words))
        return CanaryVerdict(outcome="roll_back" if late else "waiting", reasons=tuple(reasons))
    tolerated = _tolerated(record, canary_rules, rules)
    return CanaryVerdict(outcome="promote" if tolerated.passed else "roll_back", reasons=(*reasons, tolerated))


def _candidate(record: EvaluationRecord, rules: Evaluate) -> Iterator[Reason]:
    """What the candidate must be by itself."""
    yield _finite(record.metrics, rules)
    yield from bounds(record, rules)
    constant = None if record.checks is None else record.checks.constant
    if constant is None:
        yield _missing("constant", "whether the predictions are all alike")
    else:
        words = "every prediction is the same" if constant else "predictions differ from row to row"
        yield Reason(gate="constant", passed=not constant, words=words)


def _finite(metrics: Mapping[str, float], rules: Evaluate) -> Reason:
    needed = dict.fromkeys([rules.primary, *rules.metrics, *metrics])
    wrong = [name for name in needed if _number(metrics.get(name)) is None]
    if wrong:
        words = f"metric not finite: {', '.join(wrong)} {'is' if len(wrong) == 1 else 'are'} missing or no number"
        values = {name: shown(figure_json(metrics[name])) if name in metrics else None for name in wrong}
        return Reason(gate="finite", passed=False, words=words, numbers=values)
    value = metrics[rules.primary]
    return Reason(gate="finite", passed=True, words=f"{rules.primary} is {value:.6g}", numbers={rules.primary: value})


def _against_champion(record: EvaluationRecord, rules: Evaluate) -> Iterator[Reason]:
    """What the candidate must be beside the champion, where there is one."""
    baseline, champion = record.baseline, record.champion
    if baseline == "no champion" and champion is None:
        yield Reason(gate="baseline", passed=True, words="no champion yet: only absolute gates apply")
        return
    if champion is not None and _is_seated(record, champion):
        yield _same_weights("baseline", "champion", champion, "only absolute gates apply, no new champion")
        return
    if baseline != "champion" or champion is None:
        words = f"the champion is not a baseline: {baseline}; nothing is promoted backwards"
        yield Reason(gate="baseline", passed=False, words=words)
        return
    words = f"champion version {champion.version} scored the same rows"
    yield Reason(gate="baseline", passed=True, words=words)
    yield _improvement(record, rules)
    yield significance(record, record.comparison, "significance", "the champion", rules)
    yield from _slices(record, rules)
    drift = None if record.checks is None or record.checks.drift is None else record.checks.drift.psi
    yield _at_most("drift", drift, rules.checks.drift, "drift of the predictions (PSI)", rules)


def _is_seated(record: EvaluationRecord, rival: Rival | None) -> bool:
    """Return whether the candidate has the weights of the champion or of the canary that it was measured against."""
    weights = "" if record.candidate is None else record.candidate.weights_digest
    return rival is not None and weights != "" and weights == rival.weights_digest


def _same_weights(gate: str, alias: str, rival: Rival, effect: str) -> Reason:
    return Reason(gate=gate, passed=True, words=f"the candidate is the {alias} (version {rival.version}): same weights; {effect}")


def _improvement(record: EvaluationRecord, rules: Evaluate) -> Reason:
    old = _number(record.champion_metrics.get(rules.primary))
    gain = None if record.comparison is None else _number(record.comparison.gain)
    if old is None or gain is None:
        return _missing("improvement", f"the champion's {rules.primary} or the difference")
    if rules.improvement.relative is not None:
        asked = rules.improvement.relative * abs(old)
        words = f"{rules.improvement.relative:.3g} of the champion's {old:.6g} = {asked:.6g}"
    else:
        asked = rules.improvement.absolute or 0.0
        words = f"{asked:.6g}"
    return Reason(
        gate="improvement",
        passed=gain > asked,
        severity=rules.severity_of("improvement"),
        words=f"{rules.primary} gain {gain:+.6g}, required > {words}",
        numbers={"gain": gain, "champion": old, "asked": asked},
    )


def _slices(record: EvaluationRecord, rules: Evaluate) -> Iterator[Reason]:
    """The worst drop of any slice with support; every column that the spec slices by must be there."""
    if rules.slice_drop is None:
        return
    found = record.slices
    measured = {name for entry in found for name in entry.columns}
    absent = [name for name in rules.slices if name not in measured]
    if absent:
        yield _missing("slices", f"any slice by {', '.join(absent)}")
        return
    judged = [entry for entry in found if entry.is_small is not True]
    drops = []
    for entry in judged:
        new, old = _number(entry.candidate), _number(entry.champion)
        if new is None or old is None:
            hint = "a slice whose labels are all alike has no such metric: raise evaluate.slice_support"
            yield _missing("slices", f"{rules.primary} where {_place(entry)}", hint=hint)
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
    words = f"of {len(drops)} slices none may be worse by more than {rules.slice_drop:.6g}: {_place(judged[worst])} by {drops[worst]:+.6g}"
    yield Reason(gate="slices", passed=drops[worst] <= rules.slice_drop, severity=rules.severity_of("slices"), words=words, numbers=numbers)


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
                yield _at_most("fairness", gap, limit, what, rules)


def _latency(record: EvaluationRecord, rules: Evaluate) -> Iterator[Reason]:
    measured, limits = (record.latency or {}).get("1", Latency()), rules.latency_ms
    both = (("p50", measured.p50_ms, limits.p50), ("p95", measured.p95_ms, limits.p95), ("p99", measured.p99_ms, limits.p99))
    for name, value, limit in both:
        if limit is not None:
            reason = _at_most("latency", value, limit, f"{name} of one prediction", rules, unit=" ms")
            yield reason if reason.passed else _unless_loaded(reason, value, limit, _number(measured.waited_share))


def _unless_loaded(reason: Reason, value: float | None, limit: float, waited_share: float | None) -> Reason:
    """Return a latency above its limit as a warning where the machine was too loaded to say: a model is not rejected for its neighbours.

    Waiting for a CPU is not in the figure; what remains of the load, caches and cores that are shared, doubles it at most. A model that
    misses its limit by more is judged on any machine.
    """
    if waited_share is None or waited_share <= LOADED_SHARE or _number(value) is None or value is None or value > 2 * limit:
        return reason
    words = f"{reason.words}: inconclusive, its calls waited {waited_share:.0%} of their time for a CPU; measure again on an idle machine"
    severity: Severity = "warn" if reason.severity == "fail" else reason.severity
    return replace(reason, words=words, severity=severity, numbers={**reason.numbers, "waited_share": waited_share})


def _checks(record: EvaluationRecord, rules: Evaluate) -> Iterator[Reason]:
    checks = record.checks or Checks()
    leak, limit = checks.leakage or Leakage(), rules.checks.leakage
    value = _number(leak.value)
    if value is not None:
        words = f"{leak.feature} alone ranks the labels by {value:.6g}, required < {limit:.6g}"
        words += "" if value < limit else "; remove it where it is known only after the decision, else set severity: {leakage: warn}"
        numbers: dict[str, JsonValue] = {"feature": leak.feature, "value": value, "limit": limit}
        yield Reason(gate="leakage", passed=value < limit, severity=rules.severity_of("leakage"), words=words, numbers=numbers)
    elif rules.task != "language":  # A text has no features that could be the label.
        yield _missing("leakage", "how well any one feature alone ranks the labels")
    if rules.checks.overlap is not None:
        what = "share of the test rows' entities that the training rows have"
        yield _at_most("overlap", None if checks.overlap is None else checks.overlap.share, rules.checks.overlap, what, rules)


def _canary(record: EvaluationRecord, rules: Evaluate) -> Iterator[Reason]:
    """Only one canary at a time: a candidate takes the place of one that is under way by being surely better."""
    canary = record.canary
    if canary is None or _is_seated(record, record.champion):
        return
    if _is_seated(record, canary):
        yield _same_weights("canary", "canary", canary, "it stays canary")
        return
    yield significance(record, record.canary_comparison, "canary", f"the canary, version {canary.version},", rules)


def _canary_alarms(
    record: EvaluationRecord, canary_rules: Canary, rules: Evaluate, num_rows: int, approved: Sequence[ApprovedFinding]
) -> Iterator[Reason]:
    value, old = _number(record.metrics.get(rules.primary)), _number(record.champion_metrics.get(rules.primary))
    if value is None and old is not None:
        words = f"the canary's {rules.primary} is not a number, the champion's on the same rows is {old:.6g}"
        yield Reason(gate="finite", passed=False, words=words, numbers={"champion": old})
        return
    if value is None or num_rows < min(EARLY_SUPPORT, canary_rules.support):
        return
    yield from canary_bounds(record, rules, approved)
    if record.checks is not None and record.checks.constant is True:
        yield Reason(gate="constant", passed=False, words="every prediction of the canary is the same")
    yield from canary_alarm(record, rules)


def _canary_waits(
    canary_rules: Canary, rules: Evaluate, record: EvaluationRecord, num_rows: int, *, elapsed_seconds: float
) -> Iterator[Reason]:
    """What has to be there before a canary can be judged at all; a reason that is not passed is still missing."""
    asked_seconds = canary_rules.for_.total_seconds()
    words = f"canary for {elapsed_seconds / 3600:.1f} h, required >= {asked_seconds / 3600:.1f} h"
    numbers: dict[str, JsonValue] = {"elapsed_seconds": elapsed_seconds, "asked_seconds": asked_seconds}
    yield Reason(gate="time", passed=elapsed_seconds >= asked_seconds, words=words, numbers=numbers)
    words = f"judged on {num_rows} rows with labels, required >= {canary_rules.support}"
    numbers = {"num_rows": num_rows, "asked": canary_rules.support}
    yield Reason(gate="support", passed=num_rows >= canary_rules.support, words=words, numbers=numbers)
    needed = [record.metrics.get(rules.primary)]
    if record.baseline != "no champion":
        # Not the ends of the interval: with too few blocks it is unbounded.
        comparison = record.comparison or Comparison()
        needed += [comparison.gain, comparison.probability]
    if any(_number(value) is None for value in needed):
        yield Reason(gate="finite", passed=False, words=f"{rules.primary} cannot be told yet on the rows that have labels")


def _tolerated(record: EvaluationRecord, canary_rules: Canary, rules: Evaluate) -> Reason:
    gain = None if record.comparison is None else _number(record.comparison.gain)
    if gain is None:
        return Reason(gate="tolerance", passed=True, words="there is no champion to be worse than")
    words = f"{rules.primary} gain over the champion {gain:+.6g}, required >= {0.0 - canary_rules.tolerance:+.6g}"
    numbers = {"gain": gain, "tolerance": canary_rules.tolerance}
    return Reason(gate="tolerance", passed=gain >= -canary_rules.tolerance, words=words, numbers=numbers)


def _at_most(gate: str, value: float | None, limit: float, what: str, rules: Evaluate, *, unit: str = "") -> Reason:
    number = _number(value)
    if number is None:
        return _missing(gate, what)
    words = f"{what} {number:.6g}{unit}, required <= {limit:.6g}{unit}"
    return Reason(
        gate=gate, passed=number <= limit, severity=rules.severity_of(gate), words=words, numbers={"value": number, "limit": limit}
    )


def _place(entry: Slice) -> str:
    return " and ".join(f"{name} = {value}" for name, value in entry.columns.items())


def _line(words: Sequence[str]) -> str:
    return " ".join("; ".join(words).split())
