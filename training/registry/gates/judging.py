"""Gates: pure functions of an evaluation's numbers and the spec's rules to a decision with reasons.

They fail closed: a number that a rule needs and that is missing or not finite rejects at every severity. A severity is the effect of a
measured failure; nothing is known about what was not measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from training.contracts import JsonValue, instant_text
from training.evaluation.record import EvaluationRecord
from training.format import change, figure, finite
from training.registry.gates.bounds import canary_bounds
from training.registry.gates.champion import has_weights_of, is_compared
from training.registry.gates.interface import judged
from training.registry.gates.significance import canary_alarm
from training.registry.ledger.reasons import SIMULATED, ApprovedFinding, Reason
from training.spec.descriptors.gate_descriptor import Applies
from training.spec.descriptors.gates import gates_of
from training.spec.scalar_types import duration_text
from training.spec.sections.evaluation import Evaluate
from training.spec.sections.promotion import Canary, Promote

Outcome = Literal["accepted", "rejected", "needs_approval"]
CanaryOutcome = Literal["waiting", "promote", "roll_back"]

DATA_DRIFT: Final = "data_drift"
"""Name of the reasons for what `validate.drift` found; the limits and the action are there."""
EARLY_SUPPORT: Final = 100
"""Rows with labels (fewer where the canary's support is smaller) below which a canary's numbers are noise: one row is always constant."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What becomes of a candidate."""

    outcome: Outcome
    reasons: tuple[Reason, ...]

    @property
    def summary(self) -> str:
        """One line: the words of the gates that made the outcome, and of those that only warn."""
        failed = [reason for reason in self.reasons if not reason.passed]
        if self.outcome == "rejected":
            return _line([reason.words for reason in failed if reason.severity == "fail"])
        asked = [reason.words for reason in failed if reason.severity == "approve"]
        warned = [f"warning: {reason.words}" for reason in failed if reason.severity == "warn"]
        passed = [] if asked else [reason.words for reason in self.reasons if reason.passed]
        return _line([*asked, *warned, *passed])


@dataclass(frozen=True, kw_only=True, slots=True)
class CanaryDecision:
    """What becomes of a canary now."""

    outcome: CanaryOutcome
    reasons: tuple[Reason, ...]

    @property
    def summary(self) -> str:
        """One line: what is against it, or everything where nothing is."""
        everything = all(reason.passed for reason in self.reasons)
        return _line([reason.words for reason in self.reasons if everything or not reason.passed or reason.gate == SIMULATED])


def decide(record: EvaluationRecord, rules: Evaluate, *, approval: str, promote: Promote | None = None) -> Decision:
    """Decide about a candidate.

    The severity of a gate that is not passed decides: `fail` rejects, `approve` requires approval, `warn` is only reported. A value that is
    missing or not finite rejects at every severity, and so does a champion that cannot be compared: an approval needs a comparison.

    A candidate with the champion's weights, as after an edit of the thresholds alone, is not compared with itself, and no approval is
    requested: the gates that need no champion decide, and the ledger moves nothing.

    Args:
        record: of the evaluation.
        rules: the spec's thresholds.
        approval: `automatic`; with anything else nothing is accepted here but the champion itself.
        promote: the spec's section; where it has a `canary`, a candidate has to beat the one that is under way.

    Raises:
        SpecError: `gate.unknown`, `gate.descriptor`, `gate.module`: a gate that the spec names is not installed, or is broken.
        DataError: `gate.failed`, a gate of another distribution raised an error.
    """
    applies: dict[Applies, bool] = {
        "always": True,
        "champion": is_compared(record),
        "canary": promote is not None and promote.canary is not None,
    }
    reasons = [reason for name, gate in gates_of(rules).items() if applies[gate.applies] for reason in judged(name, gate, record, rules)]
    reasons += [Reason(gate=DATA_DRIFT, passed=False, words=line, severity="approve") for line in record.data_to_approve]
    failed = {reason.severity for reason in reasons if not reason.passed}
    if "fail" in failed:
        return Decision(outcome="rejected", reasons=tuple(reasons))
    if has_weights_of(record, record.champion):
        # Nothing moves, so there is nothing that a person could approve.
        return Decision(outcome="accepted", reasons=tuple(reasons))
    if approval != "automatic":
        words = "an approval is required (promote.approval)"
        reasons.append(Reason(gate="approval", passed=False, words=words, severity="approve"))
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
    simulated: bool = False,
) -> CanaryDecision:
    """Judge a canary by what arrived since it became one.

    It is rolled back at once where its primary metric is not a number and the champion's on the same rows is one, and, with
    `EARLY_SUPPORT` rows, beyond a bound (unless that only warns, or a person approved it), when it is constant, or when its alarm says
    that it is significantly worse. It is promoted after the time and the support that the rules ask for if it is not worse than tolerated,
    and rolled back if it is. Without the support, or on rows that have no such metric, it waits for as long as the rules have patience.
    The alarm is always valid (`evaluation.bootstrap.sequential`): looking again and again makes a false one no likelier.

    Args:
        record: `metrics` are the canary's, `champion_metrics` the champion's, on the same rows; `comparison` is canary minus
            champion; `alarm` is that of `evaluation.bootstrap.sequential`; without it nothing is rolled back by significance; `num_rows`
            counts rows with labels; `checks.constant` says whether all its predictions are alike; `baseline` is `no champion` where
            there is none: then the minimum decides alone.
        canary_rules: the spec's `promote.canary`.
        rules: the spec's `evaluate`, for the primary metric and the minimum.
        since: when it became canary; `since` and `now` both with a time zone.
        approved: `decisions.approved_findings`.
        simulated: `since` and `now` are instants of simulated nights; the reasons say so.
    """
    num_rows = record.num_rows or 0
    words = f"simulated time: as of {instant_text(now)}, canary as of {instant_text(since)}"
    reasons = [Reason.said(SIMULATED, words)] if simulated else []
    reasons += _canary_alarms(record, canary_rules, rules, num_rows, approved)
    if any(not reason.passed and reason.severity != "warn" for reason in reasons):
        return CanaryDecision(outcome="roll_back", reasons=tuple(reasons))
    waits = list(_canary_waits(canary_rules, rules, record, num_rows, elapsed_seconds=(now - since).total_seconds()))
    reasons += waits
    missing = {reason.gate for reason in waits if not reason.passed}
    if missing:
        late = now - since >= canary_rules.patience and missing != {"time"}
        if late:
            words = f"what is missing had not come within {duration_text(canary_rules.patience)} (promote.canary.patience)"
            reasons.append(Reason(gate="patience", passed=False, words=words))
        return CanaryDecision(outcome="roll_back" if late else "waiting", reasons=tuple(reasons))
    tolerated = _tolerated(record, canary_rules, rules)
    return CanaryDecision(outcome="promote" if tolerated.passed else "roll_back", reasons=(*reasons, tolerated))


def _canary_alarms(
    record: EvaluationRecord, canary_rules: Canary, rules: Evaluate, num_rows: int, approved: Sequence[ApprovedFinding]
) -> Iterator[Reason]:
    value, old = finite(record.metrics.get(rules.primary)), finite(record.champion_metrics.get(rules.primary))
    if value is None and old is not None:
        words = f"the canary's {rules.primary} is not a number, the champion's on the same rows is {figure(old)}"
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
    """The conditions for judging a canary; a reason that is not passed is a condition that is not met yet."""
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
        found = record.comparison
        needed += [None] if found is None else [found.gain, found.probability]
    bounded = [name for name in (*rules.minimum, *rules.maximum) if name in record.without_value]
    missing = [rules.primary] if any(finite(value) is None for value in needed) else bounded
    for name in dict.fromkeys(missing):
        why = f": {record.without_value[name]}" if name in record.without_value else ""
        yield Reason(gate="finite", passed=False, words=f"{name} cannot be computed yet on the rows that have labels{why}")


def _tolerated(record: EvaluationRecord, canary_rules: Canary, rules: Evaluate) -> Reason:
    gain = None if record.comparison is None else finite(record.comparison.gain)
    if gain is None:
        return Reason(gate="tolerance", passed=True, words="there is no champion to be worse than")
    words = f"{rules.primary} gain over the champion {change(gain)}, required >= {change(0.0 - canary_rules.tolerance)}"
    numbers = {"gain": gain, "tolerance": canary_rules.tolerance}
    return Reason(gate="tolerance", passed=gain >= -canary_rules.tolerance, words=words, numbers=numbers)


def _line(words: Sequence[str]) -> str:
    return " ".join("; ".join(words).split())
