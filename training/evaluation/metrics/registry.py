"""The implementation of a metric by its name; `training.spec.descriptors.metrics` says which there are.

One set of names serves all tasks; what a name means follows from the scores: [n] or, for several classes, [n, classes].
A language model is judged by its tokens: `scores` are their negative log likelihoods in nats, `labels` their bytes.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable, Mapping

from training.errors import shown, spec_error
from training.evaluation.metrics.metric import Metric
from training.spec.descriptors.metrics import METRICS, descriptor_of_metric, metrics_of
from training.spec.registry import imported


@functools.cache
def metric_of(name: str) -> Metric:
    """Return the metric of a name, `ndcg@10`.

    Raises:
        SpecError: `metric.unknown`, there is none here; `metric.not_a_metric`, the name is of something else.
    """
    descriptor = descriptor_of_metric(name)
    if descriptor is None:
        raise spec_error("evaluate", "metric.unknown", f"there is no metric {shown(name)}", hint="install the distribution that adds it")
    base, _, cut = name.partition("@")
    if descriptor.module:
        found = importlib.import_module(f"training.evaluation.metrics.{descriptor.module}").METRICS[base]
    else:
        hint = "assign METRIC = an object of a class derived from training.evaluation.metrics.metric.Metric; with a cut, a function of it"
        fits = callable if cut else lambda found: isinstance(found, Metric)
        found = imported(base, METRICS.implementation_of(base), fits, code="metric.not_a_metric", hint=hint)
    metric: Metric = found(int(cut)) if cut else found
    return metric


def metrics_by_name(task: str, also: Iterable[str], own: Mapping[str, Metric]) -> dict[str, Metric]:
    """Return every metric of `task`, those named by `also` and the spec's own, by name; raises as `metric_of`."""
    names = dict.fromkeys([*metrics_of(task), *(name for name in also if name not in own), *own])
    return {name: own[name] if name in own else metric_of(name) for name in names}
