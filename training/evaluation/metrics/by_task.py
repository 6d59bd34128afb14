"""Metrics by task. Where a metric has no value (one class only, no group with a positive label) it is NaN, which every gate rejects.

One set of names serves all tasks; what a name means follows from the scores: [n] or, for several classes, [n, classes].
A language model is judged by its tokens: `scores` are their negative log likelihoods in nats, `labels` their bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from training.evaluation.metrics import ranking
from training.evaluation.metrics.auc import roc_area
from training.evaluation.metrics.curves import average_precision
from training.spec.sections.evaluation import METRICS, Gain

Floats = NDArray[np.float64]
Groups = NDArray[np.int64]
OwnMetric = Callable[[Floats, Floats, Groups | None], float]
"""(labels, scores, groups) to a number; more is better."""

CALIBRATION_BINS: Final = 10
EPSILON: Final = 1e-7
NAN: Final = float("nan")


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
    names = dict.fromkeys((*METRICS[task], *([primary] if primary not in own else []), *(name for name in also if name not in own), *own))
    return {name: metric_value(name, labels, scores, groups, threshold=threshold, gain=gain, own=own.get(name)) for name in names}


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
    if len(labels) == 0 or not np.isfinite(scores).all():
        return NAN
    if own is not None:
        return float(own(labels, scores, groups))
    if is_ranked(name):
        return NAN if groups is None else _mean(_group_values(name, labels, scores, groups, gain))
    if scores.ndim == 2:
        return _multiclass(name, labels, with_all_classes(scores, labels))
    if name in _NUMBERS:
        return float(_NUMBERS[name](labels, scores))
    return _binary(name, labels, scores, threshold)


def unit_values(name: str, labels: Floats, scores: Floats, groups: Groups | None, *, gain: Gain = "linear") -> Floats | None:
    """Return a metric's value per unit (group, or row) where its mean is the metric; None where it is no mean (AUC)."""
    if is_ranked(name):
        return None if groups is None else _group_values(name, labels, scores, groups, gain)
    if name == "accuracy":
        return np.asarray(predicted_class(scores) == labels, dtype=np.float64)
    if name == "mae":
        return np.asarray(np.abs(labels - scores))
    if name == "loss":
        return scores
    if name == "log_loss":
        likely = np.clip(probability_of_label(labels, scores), EPSILON, 1 - EPSILON)
        return np.asarray(-np.log(likely))
    if name == "brier":
        return _squared_errors(labels, scores)
    return None


def probability_of_label(labels: Floats, scores: Floats) -> Floats:
    """Return the probability that each row's label was given, [n]; 0 for a class that the model does not know."""
    if scores.ndim == 1:
        return np.where(labels > 0, scores, 1 - scores)
    wide = with_all_classes(scores, labels)
    return np.asarray(wide[np.arange(len(labels)), labels.astype(np.int64)])


def predicted_class(scores: Floats) -> NDArray[np.int64]:
    """Return the likeliest class of each row of [n, classes]."""
    return np.asarray(scores.argmax(axis=1))


def with_all_classes(scores: Floats, labels: Floats) -> Floats:
    """Return [n, classes] with a column for every label: probability 0 for a class that the model never saw."""
    missing = int(labels.max()) + 1 - scores.shape[1] if len(labels) else 0
    return np.pad(scores, ((0, 0), (0, missing))) if missing > 0 else scores


def calibration_bins(labels: Floats, scores: Floats) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Return (mean score, share of positives, rows) of each non-empty tenth of [0, 1]."""
    bins = calibration_bin(scores)
    counts = np.bincount(bins, minlength=CALIBRATION_BINS)
    filled = counts > 0
    means = np.bincount(bins, weights=scores, minlength=CALIBRATION_BINS)[filled] / counts[filled]
    shares = np.bincount(bins, weights=labels, minlength=CALIBRATION_BINS)[filled] / counts[filled]
    return means, shares, counts[filled]


def calibration_bin(scores: Floats) -> NDArray[np.int64]:
    """Return the tenth of [0, 1] that each score lies in, from 0."""
    return np.clip((scores * CALIBRATION_BINS).astype(np.int64), 0, CALIBRATION_BINS - 1)


def calibration_error(labels: Floats, scores: Floats) -> float:
    """Return the expected calibration error over ten equal bins (Naeini et al., 2015), of the likeliest class where there are several."""
    hits, confidences = confidence_and_hits(labels, scores)
    means, shares, counts = calibration_bins(hits, confidences)
    return float(np.average(np.abs(means - shares), weights=counts)) if len(counts) else NAN


def confidence_and_hits(labels: Floats, scores: Floats) -> tuple[Floats, Floats]:
    """Return (whether what was predicted happened, its probability), [n] each: the positive class, or the likeliest of several."""
    if scores.ndim == 1:
        return labels, scores
    return (predicted_class(scores) == labels).astype(np.float64), scores.max(axis=1)


def perplexity(losses: Floats) -> float:
    """Return e to the mean loss of a token, [tokens] nats; infinite where that is too large for a number."""
    mean = float(losses.mean())
    return math.exp(mean) if mean < 700 else math.inf


def bits_per_byte(losses: Floats, num_bytes: Floats) -> float:
    """Return bits for a byte of text, which no tokenizer changes: both [tokens], nats and bytes; NaN without a byte."""
    total = float(num_bytes.sum())
    return float(losses.sum()) / math.log(2) / total if total > 0 else NAN


def cut_of(name: str) -> int:
    """Return the 10 of `ndcg@10`."""
    return int(name.partition("@")[2])


def _binary(name: str, labels: Floats, scores: Floats, threshold: float) -> float:
    if len(np.unique(labels)) < 2:
        return NAN
    if name == "f1":
        return _f1(labels > 0, scores >= threshold)
    if name == "calibration_error":
        return calibration_error(labels, scores)
    return float(_PROBABILITIES[name](labels, scores))


def _multiclass(name: str, labels: Floats, scores: Floats) -> float:
    if len(np.unique(labels)) < 2:
        return NAN
    if name in ("auc", "pr_auc"):
        area = roc_area if name == "auc" else average_precision
        return float(np.mean([area((labels == number).astype(np.float64), scores[:, number]) for number in classes_of(labels)]))
    if name == "f1":
        predicted = predicted_class(scores)
        return float(np.mean([_f1(labels == number, predicted == number) for number in np.union1d(classes_of(labels), predicted)]))
    if name == "accuracy":
        return float(np.mean(predicted_class(scores) == labels))
    if name == "calibration_error":
        return calibration_error(labels, scores)
    values = unit_values(name, labels, scores, None)
    return NAN if values is None else float(values.mean())


def classes_of(labels: Floats) -> NDArray[np.int64]:
    """Return the classes that rows have, rising: a one-vs-rest area of any other has no value."""
    return np.unique(labels).astype(np.int64)


def _squared_errors(labels: Floats, scores: Floats) -> Floats:
    if scores.ndim == 1:
        return (labels - scores) ** 2
    wide = with_all_classes(scores, labels)
    likely = wide[np.arange(len(labels)), labels.astype(np.int64)]
    found: Floats = (wide**2).sum(axis=1) - 2 * likely + 1
    return found


def is_ranked(name: str) -> bool:
    return name == "mrr" or name.startswith(("ndcg@", "recall@"))


def _group_values(name: str, labels: Floats, scores: Floats, groups: Groups, gain: Gain) -> Floats:
    if name == "mrr":
        return ranking.group_reciprocal_rank(labels, scores, groups)
    if name.startswith("ndcg@"):
        return ranking.group_ndcg(labels, scores, groups, cut_of(name), gain=gain)
    return ranking.group_recall(labels, scores, groups, cut_of(name))


def _f1(positive: NDArray[np.bool_], predicted: NDArray[np.bool_]) -> float:
    """Return the harmonic mean of precision and recall, 0 where nothing is positive and nothing is predicted so."""
    hits, total = int((positive & predicted).sum()), int(positive.sum()) + int(predicted.sum())
    return 2 * hits / total if total else 0.0


def _log_loss(labels: Floats, probabilities: Floats) -> float:
    likely = np.clip(probabilities, EPSILON, 1 - EPSILON)
    return float(-np.mean(np.where(labels > 0, np.log(likely), np.log1p(-likely))))


def _absolute_quantile(labels: Floats, scores: Floats, *, share: float) -> float:
    return float(np.quantile(np.abs(labels - scores), share))


def _mean(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else NAN


QUANTILES: Final[Mapping[str, float]] = {"median_absolute_error": 0.5, "absolute_error_p90": 0.9, "absolute_error_p99": 0.99}
"""Metric to the share of absolute errors that lie below it."""
_PROBABILITIES: Final[Mapping[str, Callable[[Floats, Floats], float]]] = {
    "auc": roc_area,
    "pr_auc": average_precision,
    "log_loss": _log_loss,
    "brier": lambda labels, scores: float(np.mean((np.clip(scores, 0, 1) - labels) ** 2)),
}
_NUMBERS: Final[Mapping[str, Callable[[Floats, Floats], float]]] = {
    "rmse": lambda labels, scores: float(np.sqrt(np.mean((labels - scores) ** 2))),
    "mae": lambda labels, scores: float(np.mean(np.abs(labels - scores))),
    "median_absolute_error": lambda labels, scores: float(np.median(np.abs(labels - scores))),
    "absolute_error_p90": partial(_absolute_quantile, share=0.9),
    "absolute_error_p99": partial(_absolute_quantile, share=0.99),
    "loss": lambda _num_bytes, losses: float(losses.mean()),
    "perplexity": lambda _num_bytes, losses: perplexity(losses),
    "bits_per_byte": lambda num_bytes, losses: bits_per_byte(losses, num_bytes),
}
