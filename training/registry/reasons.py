"""What a gate says, and how it reads a stored evaluation: anything missing or not finite is found, never guessed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from training.spec.sections.evaluation import Severity


@dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """One gate's word."""

    gate: str
    passed: bool
    words: str
    severity: Severity = "fail"
    """What it does where it is not passed."""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """What it judged by, as JSON."""


def missing(gate: str, what: str, *, hint: str = "evaluate again") -> Reason:
    """Return a reason that rejects at every severity."""
    words = f"{what} is missing or no number, and what was not measured rejects ({hint})"
    return Reason(gate=gate, passed=False, severity="fail", words=words)


def table(values: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """Return the mapping at `keys`, an empty one where there is none."""
    found: Any = values
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def entries(value: Any) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list | tuple) else []


def number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # An integer beyond all floats.
        return None
