"""The interface of a gate, and the implementation of a gate by its name (`training.spec.descriptors.gates`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, get_args

from training.contracts import JsonObject, JsonValue, canonical_json
from training.errors import DataError, shown
from training.evaluation.record import EvaluationRecord
from training.format import figure, finite, percent
from training.registry.ledger.reasons import Reason
from training.spec.descriptors.gate_descriptor import GateDescriptor, Severity
from training.spec.descriptors.gates import GATES
from training.spec.registry import imported
from training.spec.scalar_types import Section
from training.spec.sections.evaluation import Evaluate

MAX_LISTED: Final = 5
"""Parts that were not judged and that a reason names; the record has all."""
MILDEST_LAST: Final[tuple[Severity, ...]] = ("fail", "approve", "warn")


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """What a gate judges, and by which settings."""

    gate: str
    record: EvaluationRecord
    rules: Evaluate
    settings: Section | None
    """Of `evaluate.gates.<name>`, for a gate of another distribution."""
    severity: Severity

    def reason(self, *, passed: bool, words: str, numbers: JsonObject | None = None, severity: Severity | None = None) -> Reason:
        """Return an outcome; absent: with the severity of the gate."""
        return Reason(gate=self.gate, passed=passed, severity=severity or self.severity, words=words, numbers=numbers or {})

    def milder(self, severity: Severity) -> str:
        """Return the key by which the gate's effect would be milder; empty where it is as mild already, or where no key changes it."""
        gate = GATES.get(self.gate)
        is_milder = MILDEST_LAST.index(severity) > MILDEST_LAST.index(self.severity)
        return f"evaluate.severity: {{{self.gate}: {severity}}}" if is_milder and gate is not None and gate.has_severity else ""

    def missing(self, what: str, *, hint: str = "evaluate again") -> Reason:
        """Return a reason that rejects at every severity, because `what` was not measured."""
        words = f"{what} is missing or no number, and what was not measured rejects ({hint})"
        return self.reason(passed=False, severity="fail", words=words)

    def not_judged(self, what: str, places: Mapping[str, int], *, severity: Severity | None = None) -> Reason:
        """Return that parts of the rows cannot be judged, whatever the model: not passed, with the share of rows of the largest parts.

        Args:
            what: the parts have in common.
            places: of each part to its rows.
            severity: absent: that of the gate.
        """
        largest = sorted(places.items(), key=lambda item: -item[1])[:MAX_LISTED]
        shares = [num_rows / self.record.num_rows if self.record.num_rows else None for _, num_rows in largest]
        words = [f"{place} ({percent(share)} of the rows)" for (place, _), share in zip(largest, shares, strict=True)]
        words += [f"{len(places) - MAX_LISTED} more"] if len(places) > MAX_LISTED else []
        listed: list[JsonValue] = [
            {"where": place, "rows": num_rows, "share": share} for (place, num_rows), share in zip(largest, shares, strict=True)
        ]
        numbers: dict[str, JsonValue] = {"not_judged": len(places), "largest": listed}
        return self.reason(passed=False, severity=severity, words=f"not judged: {what}: {', '.join(words)}", numbers=numbers)

    def at_most(self, value: float | None, limit: float, what: str, *, unit: str = "") -> Reason:
        """Judge a measurement by an upper limit; one that is missing or not finite rejects at every severity."""
        known = finite(value)
        if known is None:
            return self.missing(what)
        words = f"{what} {figure(known)}{unit}, required <= {figure(limit)}{unit}"
        return self.reason(passed=known <= limit, words=words, numbers={"value": known, "limit": limit})


Judge = Callable[[Case], Iterable[Reason]]
"""A gate: a pure function of a case, without clock, files and network. One of another distribution yields at least one reason."""


def judge_of(name: str, gate: GateDescriptor) -> Judge:
    """Return the implementation of a gate.

    Raises:
        SpecError: `gate.module`, that of a distribution cannot be imported, or has no function `judge`.
    """
    place = f"training.registry.gates.{gate.module}:judge_{name}" if gate.module else GATES.implementation_of(name)
    judge: Judge = imported(name, place, callable, code="gate.module", hint="define judge(case), a function that yields reasons")
    return judge


def judged(name: str, gate: GateDescriptor, record: EvaluationRecord, rules: Evaluate) -> tuple[Reason, ...]:
    """Return the reasons of one gate; one that a spec names and that gives none rejects.

    Raises:
        DataError: `gate.failed`, a gate of another distribution raised an error or returned something else.
        SpecError: `gate.module`.
    """
    judge, severity = judge_of(name, gate), rules.severity.get(name) or rules.severity.get(gate.inherits) or gate.severity
    case = Case(gate=name, record=record, rules=rules, settings=None, severity=severity)
    if gate.settings is None:
        return tuple(judge(case))
    case = replace(case, settings=gate.settings.model_validate(rules.gates[name]))
    try:
        found = tuple(judge(case))
    except (Exception, SystemExit) as err:
        message = f"the gate {name} failed: {type(err).__name__}: {err}"
        raise DataError("gate.failed", message[:1000], hint="nothing was decided; repair the distribution that adds it") from err
    for fault in filter(None, (_fault(one, name) for one in found)):
        message = f"the gate {name} returned {fault}"
        raise DataError("gate.failed", message[:1000], hint="return case.reason(...), case.at_most(...) or case.missing(...)")
    return found or (case.reason(passed=False, severity="fail", words=f"the gate {name} is configured and gave no reason, which rejects"),)


def _fault(found: object, gate: str) -> str:
    """Return what is wrong with an outcome of a gate of another distribution, or nothing: an unknown severity would reject nothing."""
    if not isinstance(found, Reason) or found.gate != gate:
        return f"{shown(found)}, not a Reason of its own"
    for name, is_right in (
        ("passed", isinstance(found.passed, bool)),
        ("words", isinstance(found.words, str)),
        ("severity", found.severity in get_args(Severity)),
        ("numbers", isinstance(found.numbers, dict) and _is_json(found.numbers)),
    ):
        if not is_right:
            return f"a Reason whose {name} is {shown(getattr(found, name))}, a {type(getattr(found, name)).__name__}"
    return ""


def _is_json(values: JsonObject) -> bool:
    try:
        canonical_json(values)
    except ValueError:
        return False
    return True
