"""The interface of a gate, and the implementation of a gate by its name (`training.spec.gates`)."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import get_args

from training.contracts import JsonObject, canonical_json
from training.errors import DataError, shown
from training.evaluation_record import EvaluationRecord
from training.registry.reasons import Reason, at_most, missing
from training.spec.gate import GateDescriptor, Severity
from training.spec.gates import GATES
from training.spec.sections.evaluation import Evaluate
from training.spec.types import Section


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """What a gate judges, and by which settings."""

    gate: str
    record: EvaluationRecord
    rules: Evaluate
    settings: Section | None
    """Of `evaluate.gates.<name>`, for a gate of another distribution."""
    severity: Severity

    def reason(self, *, passed: bool, words: str, numbers: JsonObject | None = None) -> Reason:
        """Return the outcome, with the severity of the gate."""
        return Reason(gate=self.gate, passed=passed, severity=self.severity, words=words, numbers=numbers or {})

    def missing(self, what: str) -> Reason:
        """Return a reason that rejects at every severity, because `what` was not measured."""
        return missing(self.gate, what)

    def at_most(self, value: float | None, limit: float, what: str, *, unit: str = "") -> Reason:
        """Judge a measurement by an upper limit; one that is missing or not finite rejects."""
        return at_most(self.gate, value, limit, what, severity=self.severity, unit=unit)


class Gate(ABC):
    """A pure function of a case: no clock, no files, no network."""

    @abstractmethod
    def judge(self, case: Case) -> Iterable[Reason]:
        """Yield the outcomes; a gate of another distribution yields at least one."""


@dataclass(frozen=True, slots=True)
class RulesGate(Gate):
    """A gate that is a function of the record and the section `evaluate`."""

    function: Callable[[EvaluationRecord, Evaluate], Iterable[Reason]]

    def judge(self, case: Case) -> Iterable[Reason]:
        return self.function(case.record, case.rules)


def gate_of(descriptor: GateDescriptor) -> Gate:
    """Return the implementation of a gate.

    Raises:
        SpecError: `gate.module`, that of a distribution cannot be imported, or is not a `Gate`.
    """
    if descriptor.module:
        built_in: Gate = importlib.import_module(f"training.registry.{descriptor.module}").GATES[descriptor.name]
        return built_in
    hint = "assign GATE = an object of a class derived from training.registry.gate.Gate"
    found: Gate = GATES.implementation(descriptor.name, lambda found: isinstance(found, Gate), code="gate.module", hint=hint)
    return found


def judged(descriptor: GateDescriptor, record: EvaluationRecord, rules: Evaluate) -> tuple[Reason, ...]:
    """Return the reasons of one gate; one that a spec names and that gives none rejects.

    Raises:
        DataError: `gate.failed`, a gate of another distribution raised an error or returned something else.
        SpecError: `gate.module`.
    """
    name, kind = descriptor.name, descriptor.settings
    gate, severity = gate_of(descriptor), rules.severity_of(name, descriptor.severity)
    if kind is None:
        return tuple(gate.judge(Case(gate=name, record=record, rules=rules, settings=None, severity=severity)))
    settings = kind.model_validate(rules.gates[name])
    try:
        found = tuple(gate.judge(Case(gate=name, record=record, rules=rules, settings=settings, severity=severity)))
    except (Exception, SystemExit) as err:
        message = f"the gate {name} failed: {type(err).__name__}: {err}"
        raise DataError("gate.failed", message[:1000], hint="nothing was decided; repair the distribution that adds it") from err
    for fault in filter(None, (_fault(one, name) for one in found)):
        message = f"the gate {name} returned {fault}"
        raise DataError("gate.failed", message[:1000], hint="return case.reason(...), case.at_most(...) or case.missing(...)")
    return found or (Reason(gate=name, passed=False, words=f"the gate {name} is configured and gave no reason, which rejects"),)


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
