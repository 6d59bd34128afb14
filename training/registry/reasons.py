"""The outcome of a gate."""

from __future__ import annotations

from dataclasses import dataclass, field

from training.contracts import JsonObject
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
