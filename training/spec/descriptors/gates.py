"""The registry of gates.

A gate of this repository is a row of `BUILT_IN_GATES` next to its keys in `training/spec/sections/evaluation.py`, and a module of
training/registry/gates/ that judges. A distribution adds one by an entry point of the group `nightshift.gates`: its value is a package
with a light `gate.py` (its `DESCRIPTOR`) and a `module.py` (its function `judge`). It judges where a spec names it in `evaluate.gates`.
"""

from __future__ import annotations

from typing import Final

from training.errors import shown, spec_error
from training.spec.descriptors.gate_descriptor import GateDescriptor
from training.spec.registry import Registry
from training.spec.sections.evaluation import BUILT_IN_GATES, Evaluate

GATES: Final[Registry[GateDescriptor]] = Registry(
    group="nightshift.gates",
    built_in=BUILT_IN_GATES,
    # Names of reasons that are no gate's.
    reserved=("approval", "overrides", "registered", "standing", "simulated", "rollback", "time", "support", "tolerance", "patience"),
    descriptor_at="{}.gate:DESCRIPTOR",
    implementation_at="{}.module:judge",
    fits=lambda found: isinstance(found, GateDescriptor) and found.settings is not None and not found.module,
    code="gate.descriptor",
    hint="assign DESCRIPTOR = training.spec.descriptors.gate_descriptor.GateDescriptor(...), with settings and no module",
)


def gates_of(rules: Evaluate) -> dict[str, GateDescriptor]:
    """Return the gates that judge by a section, in the order of a decision's reasons: those of this repository, then the section's `gates`.

    Raises:
        SpecError: `gate.unknown`, none of that name is installed here; `gate.descriptor`.
    """
    found = dict(BUILT_IN_GATES)
    for name in rules.gates:
        gate = GATES.get(name)
        if gate is None:
            raise spec_error(
                "evaluate.gates", "gate.unknown", f"there is no gate {shown(name)}", hint="install the distribution that adds it"
            )
        found[name] = gate
    return found
