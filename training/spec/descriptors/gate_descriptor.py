"""The descriptor of a gate: what the spec, its rules and the reference must know. It is implemented in `training.registry.gates`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from training.spec.scalar_types import Section

if TYPE_CHECKING:
    from training.spec.sections.evaluation import Evaluate

Severity = Literal["fail", "warn", "approve"]
Applies = Literal["always", "champion", "canary"]
"""For every candidate; only with a champion that can be compared; only where the pipeline has canaries."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GateDescriptor:
    """What configures a gate, and when it judges."""

    module: str = ""
    """File of training/registry/gates/ that has its function `judge_<name>`; empty: `module.py` of its own package, with `judge`."""
    settings: type[Section] | None = None
    """Of `evaluate.gates.<name>`, for a gate of another distribution; None: it has keys of `evaluate`."""
    severity: Severity = "fail"
    """Where `evaluate.severity` has none for it."""
    inherits: str = ""
    """The gate whose severity it has instead."""
    has_severity: bool = True
    """Whether `evaluate.severity` may have one; without, the gate always rejects."""
    applies: Applies = "always"
    is_on: Callable[[Evaluate], bool] = lambda _: True
    """Whether a section makes it judge anything."""
    switch: str = ""
    """What turns it on, as the hint of an error."""
