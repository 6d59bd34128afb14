"""The outcome of a gate, and how gates read a number: anything missing or not finite rejects."""

from __future__ import annotations

from dataclasses import dataclass, field

from training.contracts import JsonObject
from training.format import figure, finite
from training.registry.verdicts import ReasonJson
from training.spec.gate import Severity


@dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """The outcome of one gate."""

    gate: str
    passed: bool
    words: str
    severity: Severity = "fail"
    """What it does where it is not passed."""
    numbers: JsonObject = field(default_factory=dict)
    """What it judged by."""

    def to_json(self) -> ReasonJson:
        """Return it as the ledger keeps it."""
        return ReasonJson(gate=self.gate, passed=self.passed, words=self.words, severity=self.severity, numbers=dict(self.numbers))


def missing(gate: str, what: str, *, hint: str = "evaluate again") -> Reason:
    """Return a reason that rejects at every severity."""
    words = f"{what} is missing or no number, and what was not measured rejects ({hint})"
    return Reason(gate=gate, passed=False, severity="fail", words=words)


def at_most(gate: str, value: float | None, limit: float, what: str, *, severity: Severity, unit: str = "") -> Reason:
    """Judge a measurement by an upper limit; one that is missing or not finite rejects at every severity."""
    known = finite(value)
    if known is None:
        return missing(gate, what)
    words = f"{what} {figure(known)}{unit}, required <= {figure(limit)}{unit}"
    return Reason(gate=gate, passed=known <= limit, severity=severity, words=words, numbers={"value": known, "limit": limit})
