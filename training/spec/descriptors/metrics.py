"""Which metrics there are: names, tasks and directions, as the spec's rules and the gates read them.

A row of `DESCRIPTORS` describes a metric, and `training/evaluation/metrics/<module>.py` computes it. A distribution adds one by an entry
point of the group `nightshift.metrics` whose value is a package with a light `metric.py` (its `DESCRIPTOR`) and a `module.py` (its
`METRIC`). It is loaded only where a spec names it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from training.spec.registry import Registry

_CUT = re.compile(r"[1-9]\d{0,2}|1000", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricDescriptor:
    """What spec, gates and pages have to know of a metric."""

    tasks: tuple[str, ...]
    """Values of `evaluate.task` that have it."""
    module: str = ""
    """File of training/evaluation/metrics/ that computes it; empty: the file of its own package."""
    lower_is_better: bool = False
    zero_is_best: bool = False
    """Whether the value has a sign and is best at 0: it may have bounds on both sides, and no model is chosen by it."""
    constants_do_well: bool = False
    """Whether it measures the level of predictions alone: a constant does well by it, so it says nothing against a naive baseline."""
    cut: int | None = None
    """The first rows of a group that the reported one counts, `ndcg@10`; a spec may name any cut from 1 to `max_cut`. None: it has no cut.
    Of `pinball_loss@90` it is the quantile in percent."""
    max_cut: int = 1000
    on_request: bool = False
    """Whether evaluations have it only where the spec names it: as `primary`, in `minimum` or `maximum`, or as the objective of a study."""


_CLASSES: Final = ("binary", "multiclass")
_REGRESSION: Final = ("regression",)

DESCRIPTORS: Final[Mapping[str, MetricDescriptor]] = {
    "ndcg": MetricDescriptor(tasks=("ranking",), module="ranking_metrics", cut=10),
    "mrr": MetricDescriptor(tasks=("ranking",), module="ranking_metrics"),
    "recall": MetricDescriptor(tasks=("ranking",), module="ranking_metrics", cut=10),
    "accuracy": MetricDescriptor(tasks=("multiclass",), module="probabilities"),
    "auc": MetricDescriptor(tasks=_CLASSES, module="auc"),
    "pr_auc": MetricDescriptor(tasks=_CLASSES, module="auc"),
    "log_loss": MetricDescriptor(tasks=_CLASSES, module="probabilities", lower_is_better=True),
    "f1": MetricDescriptor(tasks=_CLASSES, module="f1"),
    "brier": MetricDescriptor(tasks=_CLASSES, module="probabilities", lower_is_better=True),
    "calibration_error": MetricDescriptor(tasks=_CLASSES, module="calibration", lower_is_better=True, constants_do_well=True),
    **dict.fromkeys(
        ("rmse", "mae", "median_absolute_error", "absolute_error_p90", "absolute_error_p99"),
        MetricDescriptor(tasks=_REGRESSION, module="regression", lower_is_better=True),
    ),
    "bias": MetricDescriptor(tasks=_REGRESSION, module="regression", zero_is_best=True, constants_do_well=True),
    "pinball_loss": MetricDescriptor(tasks=_REGRESSION, module="deviances", lower_is_better=True, cut=50, max_cut=99, on_request=True),
    "poisson_deviance": MetricDescriptor(tasks=_REGRESSION, module="deviances", lower_is_better=True, on_request=True),
    **dict.fromkeys(
        ("perplexity", "bits_per_byte", "loss"), MetricDescriptor(tasks=("language",), module="language", lower_is_better=True)
    ),
}
"""The metrics of training/evaluation/metrics/, in the order in which reports list those of a task."""

METRICS: Final[Registry[MetricDescriptor]] = Registry(
    group="nightshift.metrics",
    built_in=DESCRIPTORS,
    descriptor_at="{}.metric:DESCRIPTOR",
    implementation_at="{}.module:METRIC",
    fits=lambda found: isinstance(found, MetricDescriptor),
    code="metric.descriptor",
    hint="assign DESCRIPTOR = training.spec.descriptors.metrics.MetricDescriptor(...)",
)


def descriptor_of_metric(name: str) -> MetricDescriptor | None:
    """Return what a metric says of itself, None where there is none of that name; `ndcg@3` is one, `ndcg` is not.

    Raises:
        SpecError: `metric.descriptor`, that of a distribution cannot be imported; `entry_point.ambiguous`, two have one name.
    """
    base, has_cut, cut = name.partition("@")
    found = METRICS.get(base)
    if found is None or bool(has_cut) != (found.cut is not None) or (has_cut and not (_CUT.fullmatch(cut) and int(cut) <= found.max_cut)):
        return None
    return found


def metrics_of(task: str) -> tuple[str, ...]:
    """Return the names that every evaluation of a task reports."""
    found = {name: descriptor for name, descriptor in DESCRIPTORS.items() if task in descriptor.tasks and not descriptor.on_request}
    return tuple(name if descriptor.cut is None else f"{name}@{descriptor.cut}" for name, descriptor in found.items())


def is_metric(task: str, name: str) -> bool:
    """Return whether `name` is a metric of the task."""
    descriptor = descriptor_of_metric(name)
    return descriptor is not None and task in descriptor.tasks


def is_lower_better(name: str) -> bool:
    """Return whether lower values of a metric are better; of a user's own function, higher ones are."""
    descriptor = descriptor_of_metric(name)
    return descriptor is not None and descriptor.lower_is_better


def is_zero_best(name: str) -> bool:
    """Return whether a metric has a sign and is best at 0."""
    descriptor = descriptor_of_metric(name)
    return descriptor is not None and descriptor.zero_is_best
