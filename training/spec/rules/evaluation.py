"""Rules about the section `evaluate` alone: every gate that is configured must be able to judge."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from training.errors import shown
from training.spec.descriptors.gates import GATES
from training.spec.reader.problems import nearest
from training.spec.reader.yaml import Path
from training.spec.rules.leakage import CODE as LEAKAGE
from training.spec.rules.leakage import Lateness
from training.spec.rules.rule_problems import Violation
from training.spec.scalar_types import duration_text, in_yaml
from training.spec.sections.data import Data
from training.spec.sections.evaluation import Evaluate
from training.spec.sections.prepare import Prepare
from training.sql.analysis import objection, unknown_columns, words

FAIRNESS_TASKS: Final = {"equal_opportunity": ("binary",), "calibration": ("binary", "multiclass")}
"""Limit of `fairness` to the tasks for which it can be computed."""


def slice_keys_have_slices(evaluate: Evaluate) -> Iterator[Violation]:
    """Yield a violation for each `slice_*` key that no slice would read. A default that is written out is not a violation."""
    if evaluate.slices:
        return
    hint = "name the columns in evaluate.slices, or remove the key"
    if evaluate.slice_drop is not None:
        yield Violation(("evaluate", "slice_drop"), "field.conflict", "slice_drop needs slices: this gate would never judge", hint)
    if not evaluate.slice_pairs:
        yield Violation(("evaluate", "slice_pairs"), "field.conflict", "slice_pairs needs slices", hint)
    if evaluate.slice_support != Evaluate.model_fields["slice_support"].default and not evaluate.sensitive:
        yield Violation(("evaluate", "slice_support"), "field.conflict", "slice_support needs slices or sensitive", hint)


def fairness_can_be_computed(evaluate: Evaluate) -> Iterator[Violation]:
    """Yield a violation for each limit of `fairness` that has no columns, or no meaning for the task."""
    task = evaluate.task
    for name, tasks in FAIRNESS_TASKS.items():
        path = ("evaluate", "fairness", name)
        if getattr(evaluate.fairness, name) is None:
            continue
        if task not in tasks:
            message = f"fairness.{name} cannot be computed for the task {task}, only for {' and '.join(tasks)}"
            yield Violation(path, "fairness.task", message, "remove it; slices and slice_drop compare values of a column for every task")
        elif not evaluate.sensitive:
            message = f"fairness.{name} needs sensitive: this gate would never judge"
            yield Violation(path, "field.conflict", message, "name the columns in evaluate.sensitive, or remove the limit")
    if evaluate.sensitive and not any(task in tasks for tasks in FAIRNESS_TASKS.values()):
        message = f"sensitive has no effect: no fairness measure can be computed for the task {task}"
        yield Violation(("evaluate", "sensitive"), "fairness.task", message, "name the columns in evaluate.slices instead")


def threshold_has_a_task(evaluate: Evaluate) -> Iterator[Violation]:
    """Yield a violation where a threshold is set and the task has no probability of a positive."""
    if evaluate.task != "binary" and evaluate.threshold != Evaluate.model_fields["threshold"].default:
        message = f"threshold has no effect for the task {evaluate.task}, only for binary"
        yield Violation(("evaluate", "threshold"), "field.conflict", message, "remove it")


def baseline_fits(evaluate: Evaluate) -> Iterator[Violation]:
    """Yield a violation for each key of `baseline` that the task, or `enabled: false`, leaves without effect."""
    baseline, task = evaluate.baseline, evaluate.task
    tasks = {"season": ("regression",), "sql": ("binary", "regression", "ranking")}
    for key, fitting in tasks.items():
        path: Path = ("evaluate", "baseline", key)
        if getattr(baseline, key) is None:
            continue
        if not baseline.enabled:
            yield Violation(path, "field.conflict", f"{key} has no effect: baseline.enabled is false", "remove one of the two")
        elif task not in fitting:
            message = f"baseline.{key} has no effect for the task {task}, only for {', '.join(fitting)}"
            yield Violation(path, "field.conflict", message, "remove it")


def season_fits_the_window(data: Data, evaluate: Evaluate) -> Iterator[Violation]:
    """Yield a violation for a season that no row of the window has a value of."""
    season, window = evaluate.baseline.season, data.source.window
    if season is not None and evaluate.baseline.enabled and evaluate.task == "regression" and season >= window:
        message = f"season ({duration_text(season)}) is not shorter than data.source.window ({duration_text(window)}): no row has a value"
        yield Violation(("evaluate", "baseline", "season"), "field.conflict", message, "shorten the season, or lengthen data.source.window")


def baseline_is_known_in_time(data: Data, prepare: Prepare, evaluate: Evaluate) -> Iterator[Violation]:
    """Yield a violation for an SQL baseline that is not a row expression, or mentions what is unknown or known only after the decision."""
    sql, path = evaluate.baseline.sql, ("evaluate", "baseline", "sql")
    if sql is None:
        return
    fault = objection(sql)
    if fault:
        yield Violation(path, "sql.forbidden", f"the SQL of the baseline {fault}", "write one expression over the row's columns")
    lateness, frame = Lateness(data, prepare), {name.lower() for name in data.frame_types()}
    derived = {name.lower() for name in prepare.derive} - frame
    for word in sorted(words(sql)):
        why = lateness.why(word)
        if word in derived:
            message = f"{word} is derived in prepare; a baseline is made of columns of the joined frame"
            yield Violation(path, "column.unknown", message, "derive it in data.source.derive")
        elif why is not None:
            message = f"the baseline mentions {word}, which is known only after the decision: {word} {why}"
            yield Violation(path, LEAKAGE, message, "a baseline may use only what is known when the prediction is made")
    for name in [] if fault else unknown_columns(sql, [*frame, *derived]):
        message = f"the baseline mentions {shown(name)}, which is not a column of the joined frame"
        yield Violation(path, "column.unknown", message, nearest(name, data.frame_types()))


def gates_are_known(evaluate: Evaluate) -> Iterator[Violation]:
    """Yield a violation for each gate that is not installed here."""
    for name in evaluate.gates:
        descriptor = GATES.get(name)
        if descriptor is None:
            installed = "install the distribution that adds it, where Airflow parses DAG files too"
            hint = nearest(name, sorted(GATES.added)) or installed
            yield Violation(("evaluate", "gates", name), "gate.unknown", f"there is no gate {in_yaml(name)} of another distribution", hint)
        elif descriptor.settings is None:
            message = f"{name} is a gate of Nightshift: it is configured by keys of evaluate"
            yield Violation(("evaluate", "gates", name), "gate.unknown", message, descriptor.switch or "remove it here")


def severity_has_a_gate(evaluate: Evaluate) -> Iterator[Violation]:
    """Yield a violation for each severity of a gate that is off: `approve` would make an approval DAG that is never used."""
    for name in evaluate.severity:
        path: Path = ("evaluate", "severity", name)
        gate = GATES.get(name)
        if gate is None or not gate.has_severity:
            known = [other for other, known_gate in GATES.usable().items() if known_gate.has_severity]
            yield Violation(path, "gate.unknown", f"there is no gate {in_yaml(name)} with a severity", nearest(name, known))
        elif not (gate.is_on(evaluate) if gate.settings is None else name in evaluate.gates):
            switch = gate.switch or f"set evaluate.gates.{name}"
            yield Violation(path, "gate.off", f"severity of {name} has no effect: the gate is off", f"{switch}, or remove it")
