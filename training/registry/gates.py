"""Gates: pure functions of an evaluation's numbers and the spec's rules to a decision with reasons.

They fail closed: a number that a rule needs and that is missing or not finite rejects, whatever the gate's severity. A severity says what a
person can live with, and of what was not measured nobody knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Final, Literal

from training.errors import shown
from training.registry.bounds import bounds, canary_bounds
from training.registry.naive import naive_baseline
from training.registry.reasons import Reason
from training.registry.reasons import entries as _entries
from training.registry.reasons import missing as _missing
from training.registry.reasons import number as _number
from training.registry.reasons import table as _table
from training.registry.significance_gates import canary_alarm, significance
from training.spec.metrics import is_lower_better
from training.spec.sections.evaluation import Evaluate, Severity
from training.spec.sections.promotion import Canary, Promote
from training.spec.types import duration_text

Outcome = Literal["accepted", "rejected", "needs_approval"]
CanaryOutcome = Literal["waiting", "promote", "roll_back"]

FORMAT_VERSION: Final = 3
"""Newest format of `metrics.json` that the gates can read. Older ones lack measurements, which counts against the model."""
LOADED_SHARE: Final = 0.1
"""Share of the calls' time spent waiting for a CPU above which a latency over its limit is inconclusive."""
EARLY_SUPPORT: Final = 100
"""Rows with labels (fewer where the canary's support is smaller) below which a canary's numbers are noise: one row is always constant."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Judged:
    reasons: tuple[Reason, ...]

    def reasons_json(self) -> list[dict[str, Any]]:
        """Return the reasons as the ledger keeps them."""
        return [asdict(reason) for reason in self.reasons]


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


def decide(evaluation: Mapping[str, Any], rules: Evaluate, *, approval: str, promote: Promote | None = None) -> Decision:
    """Decide about a candidate.

    A gate that is not passed does what its severity says: `fail` rejects, `approve` asks a person, `warn` is only said. Whatever is missing
    or not finite rejects at every severity, and so does a champion that is not a baseline: nobody can approve what was not compared.

    A candidate with the champion's weights, as after an edit of the thresholds alone, is not compared with itself, and no approval is
    requested: the gates that need no champion decide, and the ledger moves nothing.

    Args:
        evaluation: `metrics.json` of the evaluation.
        rules: the spec's thresholds.
        approval: `automatic`; with anything else nothing is accepted here but the champion itself.
        promote: the spec's section; where it has a `canary`, a candidate has to beat the one that is under way.
    """
    reasons = [*_candidate(evaluation, rules), *naive_baseline(evaluation, rules), *_against_champion(evaluation, rules)]
    reasons += [*_fairness(evaluation, rules), *_latency(evaluation, rules), *_checks(evaluation, rules)]
    if promote is not None and promote.canary is not None:
        reasons += _canary(evaluation, rules)
    failed = {reason.severity for reason in reasons if not reason.passed}
    if "fail" in failed:
        return Decision(outcome="rejected", reasons=tuple(reasons))
    if _is_seated(evaluation, "champion"):
        # Nothing moves, so there is nothing that a person could approve.
        return Decision(outcome="accepted", reasons=tuple(reasons))
    if approval != "automatic":
        words = "the spec asks for a person's approval (promote.approval), so nothing is promoted by itself"
        reasons.append(Reason(gate="approval", passed=True, words=words, severity="approve"))
    asks = approval != "automatic" or "approve" in failed
    return Decision(outcome="needs_approval" if asks else "accepted", reasons=tuple(reasons))


def judge_canary(
    evaluation: Mapping[str, Any],
    canary_rules: Canary,
    *,
    rules: Evaluate,
    since: datetime,
    now: datetime,
    approved: Sequence[Mapping[str, Any]] = (),
) -> CanaryVerdict:
    """Judge a canary by what arrived since it became one.

    It is rolled back at once where its primary metric is not a number and the champion's on the same rows is one, and, with
    `EARLY_SUPPORT` rows, beyond a bound (unless that only warns, or a person approved it), when it is constant, or when its alarm says
    that it is surely worse. It is promoted after the time and the support that the rules ask for if it is not worse than tolerated, and
    rolled back if it is. Without the support, or on rows that have no such metric, it waits for as long as the rules have patience. The
    alarm is always valid (`evaluation.bootstrap.sequential`): looking again and again makes a false one no likelier.

    Args:
        evaluation: `metrics` are the canary's, `champion_metrics` the champion's, on the same rows; `comparison` is canary minus
            champion; `alarm` is that of `evaluation.bootstrap.sequential`; without it nothing is rolled back by significance; `num_rows`
            counts rows with labels; `checks.constant` says whether all its predictions are alike; `baseline` is `no champion` where
            there is none: then the minimum decides alone.
        canary_rules: the spec's `promote.canary`.
        rules: the spec's `evaluate`, for the primary metric and the minimum.
        since: when it became canary; `since` and `now` both with a time zone.
        approved: `decisions.approved_findings`.
    """
    num_rows = int(_number(evaluation.get("num_rows")) or 0)
    reasons = list(_canary_alarms(evaluation, canary_rules, rules, num_rows, approved))
    if any(not reason.passed and reason.severity != "warn" for reason in reasons):
        return CanaryVerdict(outcome="roll_back", reasons=tuple(reasons))
    waits = list(_canary_waits(canary_rules, rules, evaluation, num_rows, elapsed_seconds=(now - since).total_seconds()))
    reasons += waits
    missing = {reason.gate for reason in waits if not reason.passed}
    if missing:
        late = now - since >= canary_rules.patience and missing != {"time"}
        if late:
            words = f"what is missing had not come within {duration_text(canary_rules.patience)} (promote.canary.patience)"
            reasons.append(Reason(gate="patience", passed=False, words=words))
        return CanaryVerdict(outcome="roll_back" if late else "waiting", reasons=tuple(reasons))
    tolerated = _tolerated(evaluation, canary_rules, rules)
    return CanaryVerdict(outcome="promote" if tolerated.passed else "roll_back", reasons=(*reasons, tolerated))


def _candidate(evaluation: Mapping[str, Any], rules: Evaluate) -> Iterator[Reason]:
    """What the candidate must be by itself."""
    version = evaluation.get("format_version")
    if version is not None and (not isinstance(version, int) or not 1 <= version <= FORMAT_VERSION):
        words = f"the evaluation has format {shown(version)}, this version reads up to {FORMAT_VERSION}: upgrade Nightshift"
        yield Reason(gate="finite", passed=False, words=words)
    yield _finite(_table(evaluation, "metrics"), rules)
    yield from bounds(evaluation, rules)
    constant = _table(evaluation, "checks").get("constant")
    if not isinstance(constant, bool):
        yield _missing("constant", "whether the predictions are all alike")
    else:
        words = "every prediction is the same" if constant else "predictions differ from row to row"
        yield Reason(gate="constant", passed=not constant, words=words)


def _finite(metrics: Mapping[str, Any], rules: Evaluate) -> Reason:
    needed = dict.fromkeys([rules.primary, *rules.metrics, *metrics])
    wrong = [name for name in needed if _number(metrics.get(name)) is None]
    if wrong:
        words = f"metric not finite: {', '.join(wrong)} {'is' if len(wrong) == 1 else 'are'} missing or no number"
        return Reason(gate="finite", passed=False, words=words, numbers=_told(metrics, wrong))
    value = _number(metrics[rules.primary])
    return Reason(gate="finite", passed=True, words=f"{rules.primary} is {value:.6g}", numbers={rules.primary: value})


def _against_champion(evaluation: Mapping[str, Any], rules: Evaluate) -> Iterator[Reason]:
    """What the candidate must be beside the champion, where there is one."""
    baseline, champion = evaluation.get("baseline"), evaluation.get("champion")
    if baseline == "no champion" and champion is None:
        yield Reason(gate="baseline", passed=True, words="no champion yet: only absolute gates apply")
        return
    if _is_seated(evaluation, "champion"):
        yield _same_weights("baseline", "champion", champion, "only absolute gates apply, no new champion")
        return
    if baseline != "champion" or not isinstance(champion, Mapping):
        words = f"the champion is not a baseline: {baseline}; nothing is promoted backwards"
        yield Reason(gate="baseline", passed=False, words=words)
        return
    words = f"champion version {champion.get('version')} scored the same rows"
    yield Reason(gate="baseline", passed=True, words=words)
    yield _improvement(evaluation, rules)
    yield significance(evaluation, "comparison", "significance", "the champion", rules)
    yield from _slices(evaluation, rules)
    yield _at_most("drift", _table(evaluation, "checks", "drift").get("psi"), rules.checks.drift, "drift of the predictions (PSI)", rules)


def _is_seated(evaluation: Mapping[str, Any], alias: str) -> bool:
    """Return whether the candidate has the weights of the champion or of the canary that it was measured against."""
    weights = _table(evaluation, "candidate").get("weights_digest")
    return isinstance(weights, str) and weights != "" and weights == _table(evaluation, alias).get("weights_digest")


def _same_weights(gate: str, alias: str, seat: Any, effect: str) -> Reason:
    return Reason(gate=gate, passed=True, words=f"the candidate is the {alias} (version {seat.get('version')}): same weights; {effect}")


def _improvement(evaluation: Mapping[str, Any], rules: Evaluate) -> Reason:
    old = _number(_table(evaluation, "champion_metrics").get(rules.primary))
    gain = _number(_table(evaluation, "comparison").get("gain"))
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


def _slices(evaluation: Mapping[str, Any], rules: Evaluate) -> Iterator[Reason]:
    """The worst drop of any slice with support; every column that the spec slices by must be there."""
    if rules.slice_drop is None:
        return
    found = _entries(evaluation.get("slices"))
    measured = {name for entry in found for name in _table(entry, "columns")}
    absent = [name for name in rules.slices if name not in measured]
    if absent:
        yield _missing("slices", f"any slice by {', '.join(absent)}")
        return
    judged = [entry for entry in found if entry.get("is_small") is not True]
    drops = []
    for entry in judged:
        new, old = _number(entry.get("candidate")), _number(entry.get("champion"))
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
    numbers = {"columns": dict(_table(judged[worst], "columns")), "drop": drops[worst], "allowed": rules.slice_drop, "slices": len(drops)}
    words = f"of {len(drops)} slices none may be worse by more than {rules.slice_drop:.6g}: {_place(judged[worst])} by {drops[worst]:+.6g}"
    yield Reason(gate="slices", passed=drops[worst] <= rules.slice_drop, severity=rules.severity_of("slices"), words=words, numbers=numbers)


def _fairness(evaluation: Mapping[str, Any], rules: Evaluate) -> Iterator[Reason]:
    limits = {"equal_opportunity": rules.fairness.equal_opportunity, "calibration": rules.fairness.calibration}
    for name, limit in limits.items():
        for column in rules.sensitive if limit is not None else ():
            measured = _table(evaluation, "fairness", column)
            values = _entries(measured.get("values"))
            gap = measured.get(f"{name}_gap")
            what = f"{name.replace('_', ' ')} gap between values of {column}"
            if gap is None and values and sum(entry.get("is_small") is not True for entry in values) < 2:
                words = f"{what}: not judged, fewer than two values have slice_support = {rules.slice_support} rows"
                yield Reason(gate="fairness", passed=False, severity="warn", words=words)
            elif limit is not None:
                yield _at_most("fairness", gap, limit, what, rules)


def _latency(evaluation: Mapping[str, Any], rules: Evaluate) -> Iterator[Reason]:
    measured = _table(evaluation, "latency", "1")
    for name in ("p50", "p95", "p99"):
        limit = getattr(rules.latency_ms, name)
        if limit is not None:
            reason = _at_most("latency", measured.get(f"{name}_ms"), limit, f"{name} of one prediction", rules, unit=" ms")
            yield reason if reason.passed else _unless_loaded(reason, _number(measured.get("waited_share")))


def _unless_loaded(reason: Reason, waited_share: float | None) -> Reason:
    """Return a latency above its limit as a warning where the machine was too loaded to say: a model is not rejected for its neighbours.

    Waiting for a CPU is not in the figure; what remains of the load, caches and cores that are shared, doubles it at most. A model that
    misses its limit by more is judged on any machine.
    """
    value, limit = reason.numbers.get("value"), reason.numbers.get("limit")
    if waited_share is None or waited_share <= LOADED_SHARE or value is None or limit is None or value > 2 * limit:
        return reason
    words = f"{reason.words}: inconclusive, its calls waited {waited_share:.0%} of their time for a CPU; measure again on an idle machine"
    severity: Severity = "warn" if reason.severity == "fail" else reason.severity
    return replace(reason, words=words, severity=severity, numbers={**reason.numbers, "waited_share": waited_share})


def _checks(evaluation: Mapping[str, Any], rules: Evaluate) -> Iterator[Reason]:
    leak = _table(evaluation, "checks", "leakage")
    value, limit = _number(leak.get("value")), rules.checks.leakage
    if value is not None:
        words = f"{leak.get('feature')} alone ranks the labels by {value:.6g}, required < {limit:.6g}"
        words += "" if value < limit else "; remove it where it is known only after the decision, else set severity: {leakage: warn}"
        numbers = {"feature": leak.get("feature"), "value": value, "limit": limit}
        yield Reason(gate="leakage", passed=value < limit, severity=rules.severity_of("leakage"), words=words, numbers=numbers)
    elif rules.task != "language":  # A text has no features that could be the label.
        yield _missing("leakage", "how well any one feature alone ranks the labels")
    if rules.checks.overlap is not None:
        what = "share of the test rows' entities that the training rows have"
        yield _at_most("overlap", _table(evaluation, "checks", "overlap").get("share"), rules.checks.overlap, what, rules)


def _canary(evaluation: Mapping[str, Any], rules: Evaluate) -> Iterator[Reason]:
    """Only one canary at a time: a candidate takes the place of one that is under way by being surely better."""
    canary = evaluation.get("canary")
    if canary is None or _is_seated(evaluation, "champion"):
        return
    if _is_seated(evaluation, "canary"):
        yield _same_weights("canary", "canary", canary, "it stays canary")
        return
    version = canary.get("version") if isinstance(canary, Mapping) else canary
    yield significance(evaluation, "canary_comparison", "canary", f"the canary, version {version},", rules)


def _canary_alarms(
    evaluation: Mapping[str, Any], canary_rules: Canary, rules: Evaluate, num_rows: int, approved: Sequence[Mapping[str, Any]]
) -> Iterator[Reason]:
    metrics = _table(evaluation, "metrics")
    value, old = _number(metrics.get(rules.primary)), _number(_table(evaluation, "champion_metrics").get(rules.primary))
    if value is None and old is not None:
        words = f"the canary's {rules.primary} is not a number, the champion's on the same rows is {old:.6g}"
        yield Reason(gate="finite", passed=False, words=words, numbers={"champion": old})
        return
    if value is None or num_rows < min(EARLY_SUPPORT, canary_rules.support):
        return
    yield from canary_bounds(evaluation, rules, approved)
    if _table(evaluation, "checks").get("constant") is True:
        yield Reason(gate="constant", passed=False, words="every prediction of the canary is the same")
    yield from canary_alarm(evaluation, rules)


def _canary_waits(
    canary_rules: Canary, rules: Evaluate, evaluation: Mapping[str, Any], num_rows: int, *, elapsed_seconds: float
) -> Iterator[Reason]:
    """What has to be there before a canary can be judged at all; a reason that is not passed is still missing."""
    asked_seconds = canary_rules.for_.total_seconds()
    words = f"canary for {elapsed_seconds / 3600:.1f} h, required >= {asked_seconds / 3600:.1f} h"
    numbers: dict[str, Any] = {"elapsed_seconds": elapsed_seconds, "asked_seconds": asked_seconds}
    yield Reason(gate="time", passed=elapsed_seconds >= asked_seconds, words=words, numbers=numbers)
    words = f"judged on {num_rows} rows with labels, required >= {canary_rules.support}"
    numbers = {"num_rows": num_rows, "asked": canary_rules.support}
    yield Reason(gate="support", passed=num_rows >= canary_rules.support, words=words, numbers=numbers)
    needed = [_table(evaluation, "metrics").get(rules.primary)]
    if evaluation.get("baseline") != "no champion":
        # Not the ends of the interval: with too few blocks it is unbounded.
        needed += [_table(evaluation, "comparison").get(name) for name in ("gain", "probability")]
    if any(_number(value) is None for value in needed):
        yield Reason(gate="finite", passed=False, words=f"{rules.primary} cannot be told yet on the rows that have labels")


def _tolerated(evaluation: Mapping[str, Any], canary_rules: Canary, rules: Evaluate) -> Reason:
    gain = _number(_table(evaluation, "comparison").get("gain"))
    if gain is None:
        return Reason(gate="tolerance", passed=True, words="there is no champion to be worse than")
    words = f"{rules.primary} gain over the champion {gain:+.6g}, required >= {0.0 - canary_rules.tolerance:+.6g}"
    numbers = {"gain": gain, "tolerance": canary_rules.tolerance}
    return Reason(gate="tolerance", passed=gain >= -canary_rules.tolerance, words=words, numbers=numbers)


def _at_most(gate: str, value: Any, limit: float, what: str, rules: Evaluate, *, unit: str = "") -> Reason:
    number = _number(value)
    if number is None:
        return _missing(gate, what)
    words = f"{what} {number:.6g}{unit}, required <= {limit:.6g}{unit}"
    return Reason(
        gate=gate, passed=number <= limit, severity=rules.severity_of(gate), words=words, numbers={"value": number, "limit": limit}
    )


def _told(values: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: None if values.get(name) is None else shown(values[name]) for name in names}


def _place(entry: Mapping[str, Any]) -> str:
    return " and ".join(f"{name} = {value}" for name, value in _table(entry, "columns").items())


def _line(words: Sequence[str]) -> str:
    return " ".join("; ".join(words).split())
