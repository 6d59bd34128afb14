"""The implementation of a metric by its name; `training.spec.metrics` says which there are."""

from __future__ import annotations

import functools
import importlib

from training.errors import Problem, SpecError, shown
from training.evaluation.metrics.metric import Metric
from training.spec.metrics import descriptor_of_metric, metric_package


@functools.cache
def metric_of(name: str) -> Metric:
    """Return the metric of a name, `ndcg@10`.

    Raises:
        SpecError: `metric.unknown`, there is none here; `metric.not_a_metric`, the name is of something else.
    """
    descriptor = descriptor_of_metric(name)
    if descriptor is None:
        problem = Problem(code="metric.unknown", message=f"there is no metric {shown(name)}", hint="install the distribution that adds it")
        raise SpecError("evaluate", [problem])
    base, _, cut = name.partition("@")
    package = metric_package(base) if not descriptor.module else None
    if package is None:
        found = importlib.import_module(f"training.evaluation.metrics.{descriptor.module}").METRICS[base]
    else:
        found = getattr(importlib.import_module(f"{package}.module"), "METRIC", None)
    metric = found(int(cut)) if cut and found is not None else found
    if not isinstance(metric, Metric):
        message = f"{shown(name)} is a {type(metric).__name__}, not a Metric"
        hint = "derive it from training.evaluation.metrics.metric.Metric"
        raise SpecError("evaluate", [Problem(code="metric.not_a_metric", message=message, hint=hint)])
    return metric
