"""Metrics and comparisons of plain arrays, for benchmarks and tests: what `training.evaluation.measures` does by a pipeline's rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from training.evaluation.bootstrap.paired import Pair
from training.evaluation.metrics.metric import CalledMetric, Metric, OwnMetric, ScoredRows
from training.evaluation.metrics.ranking import RankedRows
from training.evaluation.metrics.registry import metric_of, metrics_by_name
from training.evaluation.record import Comparison, Rival
from training.spec.descriptors.metrics import is_lower_better
from training.spec.sections.evaluation import Gain

Floats = NDArray[np.float64]
Groups = NDArray[np.int64]

CHAMPION: Final = Rival(version="1", weights_digest="champion", model_uri="", as_of=datetime(2026, 3, 1, tzinfo=UTC), bounds={}, revision=1)


def pair(
    name: str, labels: Floats, candidate: Floats, champion: Floats, groups: Groups | None, *, own: OwnMetric | None = None, **rules: Any
) -> Pair:
    """Return two models' scores of the same rows by a metric; `rules`: threshold and gain, as `ScoredRows` has them."""
    new, old = (ScoredRows(labels=labels, scores=scores, groups=groups, **rules) for scores in (candidate, champion))
    return Pair(metric=metric_named(name, own), sign=-1.0 if own is None and is_lower_better(name) else 1.0, new=new, old=old)


def compare(
    name: str,
    labels: Floats,
    candidate: Floats,
    champion: Floats,
    groups: Groups | None,
    *,
    own: OwnMetric | None = None,
    threshold: float = 0.5,
    **how: Any,
) -> Comparison:
    """Return `Pair.compare`, whose arguments are `how`, of a pair."""
    return pair(name, labels, candidate, champion, groups, own=own, threshold=threshold).compare(**how)


def metric_value(name: str, labels: Floats, scores: Floats, groups: Groups | None, *, own: OwnMetric | None = None, **rules: Any) -> float:
    """Return one metric, NaN where it has no value; arguments as `pair`."""
    return metric_named(name, own).measured(ScoredRows(labels=labels, scores=scores, groups=groups, **rules))


def score_metrics(
    task: str,
    primary: str,
    labels: Floats,
    scores: Floats,
    groups: Groups | None,
    *,
    also: Iterable[str] = (),
    own: Mapping[str, OwnMetric] | None = None,
    **rules: Any,
) -> dict[str, float]:
    """Return every metric of a task, the primary one and those of `also` among them."""
    rows = ScoredRows(labels=labels, scores=scores, groups=groups, **rules)
    metrics = metrics_by_name(task, (primary, *also), {name: CalledMetric(function) for name, function in (own or {}).items()})
    return {name: metric.measured(rows) for name, metric in metrics.items()}


def metric_named(name: str, own: OwnMetric | None) -> Metric:
    """Return a metric by its name, or the function of a user's own."""
    return metric_of(name) if own is None else CalledMetric(own)


def group_ndcg(labels: Floats, scores: Floats, groups: Groups, cut: int, *, gain: Gain = "linear") -> Floats:
    """Return each group's NDCG, [groups]."""
    return RankedRows(labels=labels, scores=scores, groups=groups, gain=gain).ndcg(cut)


def group_reciprocal_rank(labels: Floats, scores: Floats, groups: Groups) -> Floats:
    """Return each group's reciprocal rank, [groups]."""
    return RankedRows(labels=labels, scores=scores, groups=groups).reciprocal_rank()


def group_recall(labels: Floats, scores: Floats, groups: Groups, cut: int) -> Floats:
    """Return each group's recall, [groups]."""
    return RankedRows(labels=labels, scores=scores, groups=groups).recall(cut)
