"""The registry of gates: which there are, and their descriptors.

A gate of this repository is a row of `GATES` next to its keys in `training/spec/sections/evaluation.py`, and a module of training/registry/
that judges. A distribution adds one by an entry point of the group `nightshift.gates` whose value is a package with a light `gate.py` (its
`DESCRIPTOR`) and a `module.py` (its `GATE`). It judges where a spec names it in `evaluate.gates`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Final

from training.errors import Problem, SpecError, shown
from training.spec.gate import GateDescriptor, Severity
from training.spec.installed import Installed, installed_descriptor, installed_packages
from training.spec.sections.evaluation import GATES, Evaluate

ENTRY_POINTS: Final = "nightshift.gates"
"""Group of entry points; name: of the gate, value: its package."""

_BY_NAME: Final = {descriptor.name: descriptor for descriptor in GATES}
_RESERVED: Final = ("approval", "overrides", "registered", "standing", "rollback", "time", "support", "tolerance", "patience")
"""Names of reasons that are no gate's."""


def installed_gates() -> Installed:
    """Return the gates that installed distributions add."""
    return installed_packages(ENTRY_POINTS, (*_BY_NAME, *_RESERVED))


def gate_package(name: str) -> str | None:
    """Return the package of a gate that a distribution adds, None for all others.

    Raises:
        SpecError: `entry_point.ambiguous`, `entry_point.value`: the entry point of that name is broken.
    """
    return None if name in _BY_NAME else installed_gates().package_of(name)


@functools.cache
def descriptor_of_gate(name: str) -> GateDescriptor | None:
    """Return the descriptor of a gate, None where there is none of that name.

    Raises:
        SpecError: `gate.descriptor`, that of a distribution cannot be imported or has no settings; `entry_point.ambiguous`.
    """
    if name in _BY_NAME or (package := gate_package(name)) is None:
        return _BY_NAME.get(name)
    found = installed_descriptor(name, f"{package}.gate", GateDescriptor, code="gate.descriptor")
    if found.name != name or found.settings is None or found.module:
        message = f"the descriptor of the gate {shown(name)} in {package}.gate does not fit"
        hint = f"set name={name!r}, settings=<a Section>, and no module"
        raise SpecError(f"{package}.gate", [Problem(code="gate.descriptor", message=message, hint=hint)])
    return found


def known_gates() -> tuple[str, ...]:
    """Return the names that `evaluate.severity` may have, those of this repository first."""
    return (*(descriptor.name for descriptor in GATES if descriptor.has_severity), *sorted(installed_gates().packages))


def gates_of(rules: Evaluate) -> Iterator[GateDescriptor]:
    """Yield the gates that judge by a section, in the order of a decision's reasons: those of this repository, then the section's `gates`.

    Raises:
        SpecError: `gate.unknown`, none of that name is installed here; `gate.descriptor`.
    """
    yield from GATES
    for name in rules.gates:
        found = descriptor_of_gate(name)
        if found is None or found.settings is None:
            problem = Problem(code="gate.unknown", message=f"there is no gate {shown(name)}", hint="install the distribution that adds it")
            raise SpecError("evaluate.gates", [problem])
        yield found


def severity_of(rules: Evaluate, gate: GateDescriptor) -> Severity:
    """Return what a gate that is not passed does."""
    return rules.severity_of(gate.name, gate.severity)


def is_on(rules: Evaluate, gate: GateDescriptor) -> bool:
    """Return whether a section makes a gate judge anything."""
    return gate.is_on(rules) if gate.settings is None else gate.name in rules.gates
