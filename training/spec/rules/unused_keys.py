"""Keys that have no effect as a file stands, although each value is valid: `spec.check` warns and accepts the file.

A rule looks at what the file itself gives (`model_fields_set`), so a default never warns. What only the installation's backend ignores is
no warning: the same YAML serves laptop and cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date, time
from typing import Final

from training.spec.descriptors.families import FAMILIES
from training.spec.key_types import AUTO
from training.spec.pipeline_spec import Alerts, Costs
from training.spec.reader.yaml import Path
from training.spec.rules.rule_problems import Rule, Violation, violations
from training.spec.rules.training import num_shares
from training.spec.sections.data import Data
from training.spec.sections.drift import Drift, DriftLimits
from training.spec.sections.evaluation import Evaluate
from training.spec.sections.promotion import Promote
from training.spec.sections.timeout import Timeout
from training.spec.sections.train import Train
from training.spec.sections.tuning import Tune
from training.spec.sections.validation import Validate

CODE: Final = "key.unused"
LIMITS: Final = ("psi", "jensen_shannon", "kolmogorov_smirnov", "new_categories")
"""Of `validate.drift`."""


def unused_keys(sections: Mapping[str, object]) -> list[Violation]:
    """Return a violation for each key without effect, in sections that are valid."""
    return violations(EFFECTS, sections)


def _deadline_alerts(deadline: time | None, alerts: Alerts) -> Iterator[Violation]:
    if deadline is not None and "deadline" not in alerts.on:
        yield _unused(("deadline",), "no alert is sent at the deadline: alerts.on does not list it", "add deadline to alerts.on")


def _start_has_a_schedule(start: date | None, schedule: str | None) -> Iterator[Violation]:
    if start is not None and schedule is None:
        yield _unused(("start",), "start is the first day of the schedule, and there is no schedule", "add schedule, or remove start")


def _channels_have_events(alerts: Alerts) -> Iterator[Violation]:
    for channel in ("webhook", "slack", "email"):
        if not alerts.on and getattr(alerts, channel) is not None:
            yield _unused(("alerts", channel), f"nothing is sent to {channel}: alerts.on is empty", "list events in alerts.on")


def _approvals_are_asked_for(promote: Promote, evaluate: Evaluate, validate: Validate) -> Iterator[Violation]:
    if promote.approval == "required" or "approve" in evaluate.severity.values() or validate.drift.may_ask:
        return
    for key in ("approvers", "approve_own", "approve_within"):
        if key in promote.model_fields_set:
            message = f"{key} has no effect: approval is automatic, and neither a gate nor validate.drift has approve"
            yield _unused(("promote", key), message, "set approval: required, or remove the key")


def _placement_is_used(train: Train) -> Iterator[Violation]:
    placement, facts = train.placement, FAMILIES.get(train.model)
    path: Path = ("train", "placement")
    if placement.topology is not None and placement.nodes == 1:
        yield _unused((*path, "topology"), "topology has no effect on one node: it is the domain that several nodes share", "remove it")
    if placement.shared_memory is not None and facts is not None and not facts.uses_torch:
        message = f"shared_memory has no effect on {train.model}, which does not train by torch"
        yield _unused((*path, "shared_memory"), message, "remove it: it counts as memory")


def _micro_batches_are_smaller(train: Train) -> Iterator[Violation]:
    if train.micro_batch_size is None or train.batch_size is None:
        return
    # The layout that `auto` will choose is not known here: one process may get the whole batch.
    share = train.batch_size if train.parallel == AUTO else train.batch_size // num_shares(train)
    if train.micro_batch_size >= share:
        message = f"micro_batch_size ({train.micro_batch_size}) has no effect: a process's share of a batch has {share} rows"
        yield _unused(("train", "micro_batch_size"), message, "set it below that, or remove it")


def _gradients_are_exchanged(train: Train) -> Iterator[Violation]:
    if train.gradient_compression != "none" and train.placement.world_size == 1:
        message = "gradient_compression has no effect on one process, which sends no gradients"
        yield _unused(("train", "gradient_compression"), message, "remove it, or set nodes or processes_per_node")


def _limits_are_of_what_is_done(timeout: Timeout, train: Train) -> Iterator[Violation]:
    facts = FAMILIES.get(train.model)
    if "validation" in timeout.model_fields_set and facts is not None and "batch_size" in facts.ignored_keys:
        message = f"validation has no effect on {train.model}, which validates within a boosting round"
        yield _unused(("timeout", "validation"), message, "set timeout.step, or remove the key")


def _study_is_limited(tune: Tune | None, train: Train) -> Iterator[Violation]:
    if tune is None:
        return
    if tune.gpus is not None and train.placement.gpus == 0:
        message = "gpus limits nothing: a trial has no GPUs (train.placement.gpus is 0)"
        yield _unused(("tune", "gpus"), message, "remove it; tune.parallel limits trials at a time")


def _costs_are_known(costs: Costs) -> Iterator[Violation]:
    if "currency" in costs.model_fields_set and costs.run is None and costs.hour is None:
        yield _unused(("costs", "currency"), "currency has no effect without an amount", "set costs.run or costs.hour")


def _checks_of_data_judge(data: Data, validate: Validate) -> Iterator[Violation]:
    if validate.memory is not None and validate.suite is None and not any(table.suite for table in data.features):
        yield _unused(("validate", "memory"), "memory has no effect: no table has a suite", "add a suite, or remove the key")
    drift = validate.drift
    sections: list[tuple[Path, DriftLimits | Drift, str]] = [
        (("validate", "drift", "columns", name), limits, limits.action or drift.action) for name, limits in drift.columns.items()
    ]
    if not any(action != "off" for _, _, action in sections):
        sections.append((("validate", "drift"), drift, drift.action))
    for path, limits, action in sections:
        for key in LIMITS if action == "off" else ():
            if key in limits.model_fields_set and getattr(limits, key) is not None:
                yield _unused((*path, key), f"{key} judges nothing: the action is off", "remove it, or set action: warn")


def _unused(path: Path, message: str, hint: str) -> Violation:
    return Violation(path, CODE, message, hint)


EFFECTS: Final[tuple[Rule, ...]] = (
    _deadline_alerts,
    _start_has_a_schedule,
    _channels_have_events,
    _approvals_are_asked_for,
    _placement_is_used,
    _gradients_are_exchanged,
    _micro_batches_are_smaller,
    _limits_are_of_what_is_done,
    _study_is_limited,
    _costs_are_known,
    _checks_of_data_judge,
)
