"""Metrics of a task. Where a metric has no value (one class only, no group with a positive label) it is NaN, which every gate rejects.

One set of names serves all tasks; what a name means follows from the scores: [n] or, for several classes, [n, classes].
A language model is judged by its tokens: `scores` are their negative log likelihoods in nats, `labels` their bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from training.evaluation.metrics.metric import NAN, CalledMetric, Metric, OwnMetric, Rows
from training.evaluation.metrics.registry import metric_of
from training.spec.metrics import metrics_of
from training.spec.sections.evaluation import Gain

Floats = NDArray[np.float64]
Groups = NDArray[np.int64]


def score_metrics(  # noqa: PLR0913 - one array a role; bundling them would only move the names
    task: str,
    primary: str,
    labels: Floats,
    scores: Floats,
    groups: Groups | None,
    *,
    threshold: float = 0.5,
    gain: Gain = "linear",
    also: Iterable[str] = (),
    own: Mapping[str, OwnMetric] | None = None,
) -> dict[str, float]:
    """Return every metric of `task`, the primary one and those of `also` among them.

    Args:
        task: as the spec names it.
        primary: its name, `ndcg@10`.
        labels: [n]: 0 or 1 for binary, a gain for ranking, the class from 0 for multiclass, bytes of a token for language.
        scores: [n]: probabilities for binary; [n, classes] probabilities for multiclass; nats of a token for language.
        groups: [n] for ranking.
        threshold: at which a probability counts as a yes.
        gain: of a label in NDCG.
        also: further names, `recall@50`.
        own: metrics of the spec's own.
    """
    own = own or {}
    named = [name for name in (primary, *also) if name not in own]
    names = dict.fromkeys([*metrics_of(task), *named, *own])
    rows = Rows(labels=labels, scores=scores, groups=groups, threshold=threshold, gain=gain)
    return {name: value_of(rows, metric_of(name) if name not in own else CalledMetric(own[name])) for name in names}


def metric_value(
    name: str,
    labels: Floats,
    scores: Floats,
    groups: Groups | None,
    *,
    threshold: float = 0.5,
    gain: Gain = "linear",
    own: OwnMetric | None = None,
) -> float:
    """Return one metric, NaN where it has no value or a score is not finite; arguments as `score_metrics`."""
    metric = metric_of(name) if own is None else CalledMetric(own)
    return value_of(Rows(labels=labels, scores=scores, groups=groups, threshold=threshold, gain=gain), metric)


def value_of(rows: Rows, metric: Metric) -> float:
    """Return one metric of rows, NaN where it has no value or a score is not finite."""
    return metric.value(rows) if len(rows.labels) and np.isfinite(rows.scores).all() else NAN
