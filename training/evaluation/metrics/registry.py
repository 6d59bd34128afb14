"""The implementation of a metric by its name; `training.spec.metrics` says which there are."""

from __future__ import annotations

import functools
import importlib

from training.errors import Problem, SpecError, shown
from training.evaluation.metrics.metric import Metric
from training.spec.metrics import METRICS, descriptor_of_metric
from training.spec.registry import imported


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
    if descriptor.module:
        found = importlib.import_module(f"training.evaluation.metrics.{descriptor.module}").METRICS[base]
    else:
        hint = "assign METRIC = an object of a class derived from training.evaluation.metrics.metric.Metric; with a cut, a function of it"
        fits = callable if cut else lambda found: isinstance(found, Metric)
        found = imported(base, METRICS.implementation_of(base), fits, code="metric.not_a_metric", hint=hint)
    metric: Metric = found(int(cut)) if cut else found
    return metric
