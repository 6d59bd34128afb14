"""Rules about the section `evaluate` alone: every gate that is configured must be able to judge."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from training.spec.evaluation import Evaluate, Gate
from training.spec.findings import Finding

FAIRNESS_TASKS: Final = {"equal_opportunity": ("binary",), "calibration": ("binary", "multiclass")}
"""Limit of `fairness` to the tasks for which it can be computed."""
_SWITCHES: Final = {
    "minimum": "set evaluate.minimum or evaluate.maximum",
    "maximum": "set evaluate.maximum",
    "slices": "set evaluate.slices and evaluate.slice_drop",
    "fairness": "set evaluate.sensitive and a limit in evaluate.fairness",
    "latency": "set a limit in evaluate.latency_ms",
    "leakage": "the task language has no features to check",
    "overlap": "set evaluate.checks.overlap",
}
"""Gate to what turns it on."""


def slice_keys_have_slices(evaluate: Evaluate) -> Iterator[Finding]:
    """Yield a finding for each `slice_*` key that no slice would read. A default that is written out is no finding."""
    if evaluate.slices:
        return
    hint = "name the columns in evaluate.slices, or remove the key"
    if evaluate.slice_drop is not None:
        yield Finding(("evaluate", "slice_drop"), "field.conflict", "slice_drop needs slices: this gate would never judge", hint)
    if not evaluate.slice_pairs:
        yield Finding(("evaluate", "slice_pairs"), "field.conflict", "slice_pairs needs slices", hint)
    if evaluate.slice_support != Evaluate.model_fields["slice_support"].default and not evaluate.sensitive:
        yield Finding(("evaluate", "slice_support"), "field.conflict", "slice_support needs slices or sensitive", hint)


def fairness_can_be_computed(evaluate: Evaluate) -> Iterator[Finding]:
    """Yield a finding for each limit of `fairness` that has no columns, or no meaning for the task."""
    task = evaluate.task
    for name, tasks in FAIRNESS_TASKS.items():
        path = ("evaluate", "fairness", name)
        if getattr(evaluate.fairness, name) is None:
            continue
        if task not in tasks:
            message = f"fairness.{name} cannot be computed for the task {task}, only for {' and '.join(tasks)}"
            yield Finding(path, "fairness.task", message, "remove it; slices and slice_drop compare values of a column for every task")
        elif not evaluate.sensitive:
            message = f"fairness.{name} needs sensitive: this gate would never judge"
            yield Finding(path, "field.conflict", message, "name the columns in evaluate.sensitive, or remove the limit")
    if evaluate.sensitive and not any(task in tasks for tasks in FAIRNESS_TASKS.values()):
        message = f"sensitive has no effect: no fairness measure can be computed for the task {task}"
        yield Finding(("evaluate", "sensitive"), "fairness.task", message, "name the columns in evaluate.slices instead")


def threshold_has_a_task(evaluate: Evaluate) -> Iterator[Finding]:
    """Yield a finding where a threshold is set and the task has no probability of a positive."""
    if evaluate.task != "binary" and evaluate.threshold != Evaluate.model_fields["threshold"].default:
        message = f"threshold has no effect for the task {evaluate.task}, only for binary"
        yield Finding(("evaluate", "threshold"), "field.conflict", message, "remove it")


def severity_has_a_gate(evaluate: Evaluate) -> Iterator[Finding]:
    """Yield a finding for each severity of a gate that is off: `approve` would make an approval DAG that is never asked."""
    for gate in evaluate.severity:
        if not is_on(evaluate, gate):
            message = f"severity of {gate} has no effect: the gate is off"
            yield Finding(("evaluate", "severity", gate), "gate.off", message, f"{_SWITCHES[gate]}, or remove it")


def is_on(evaluate: Evaluate, gate: Gate) -> bool:
    """Say whether the spec makes `gate` judge anything."""
    switches = {
        "minimum": bool(evaluate.minimum or evaluate.maximum),
        "maximum": bool(evaluate.maximum),
        "slices": bool(evaluate.slices) and evaluate.slice_drop is not None,
        "fairness": bool(evaluate.sensitive) and any(getattr(evaluate.fairness, name) is not None for name in FAIRNESS_TASKS),
        "latency": any(getattr(evaluate.latency_ms, name) is not None for name in ("p50", "p95", "p99")),
        "leakage": evaluate.task != "language",
        "overlap": evaluate.checks.overlap is not None,
    }
    return switches.get(gate, True)
