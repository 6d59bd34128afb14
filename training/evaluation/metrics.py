"""Metrics by task. Where a metric has no value (one class only, no group with a positive label) it is NaN, which every gate rejects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

Floats = NDArray[np.float64]

CALIBRATION_BINS: Final = 10
EPSILON: Final = 1e-7


def score_metrics(task: str, primary: str, labels: Floats, scores: Floats, groups: NDArray[np.int64] | None) -> dict[str, float]:
    """Return every metric of `task`, the primary one among them.

    Args:
        task: `ranking` or `binary`.
        primary: its name, `ndcg@10`.
        labels: [n], 0 or 1 for binary, a gain for ranking.
        scores: [n], probabilities for binary.
        groups: [n] for ranking.
    """
    if task == "ranking":
        if groups is None:
            return {primary: float("nan")}
        cuts = sorted({10, _cut(primary)})
        found = {f"ndcg@{cut}": _mean(group_ndcg(labels, scores, groups, cut)) for cut in cuts}
        return {**found, "mrr": _mean(group_reciprocal_rank(labels, scores, groups))}
    return binary_metrics(labels, scores)


def binary_metrics(labels: Floats, scores: Floats) -> dict[str, float]:
    """Return AUC, log loss, Brier score and expected calibration error; NaN for all of one class."""
    if len(labels) == 0 or len(np.unique(labels)) < 2 or not np.isfinite(scores).all():
        return dict.fromkeys(("auc", "log_loss", "brier", "calibration_error"), float("nan"))
    safe = np.clip(scores, EPSILON, 1 - EPSILON)
    return {
        "auc": float(roc_auc_score(labels, scores)),
        "log_loss": float(log_loss(labels, safe)),
        "brier": float(brier_score_loss(labels, np.clip(scores, 0, 1))),
        "calibration_error": calibration_error(labels, scores),
    }


def calibration_bins(labels: Floats, scores: Floats) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Return (mean score, share of positives, rows) of each non-empty tenth of [0, 1]."""
    bins = np.clip((scores * CALIBRATION_BINS).astype(np.int64), 0, CALIBRATION_BINS - 1)
    counts = np.bincount(bins, minlength=CALIBRATION_BINS)
    filled = counts > 0
    means = np.bincount(bins, weights=scores, minlength=CALIBRATION_BINS)[filled] / counts[filled]
    shares = np.bincount(bins, weights=labels, minlength=CALIBRATION_BINS)[filled] / counts[filled]
    return means, shares, counts[filled]


def calibration_error(labels: Floats, scores: Floats) -> float:
    """Return the expected calibration error over ten equal bins (Naeini et al., 2015)."""
    means, shares, counts = calibration_bins(labels, scores)
    return float(np.average(np.abs(means - shares), weights=counts))


def group_ndcg(labels: Floats, scores: Floats, groups: NDArray[np.int64], cut: int) -> Floats:
    """Return each group's NDCG at `cut` (Järvelin and Kekäläinen, 2002), in the order of the groups' numbers; NaN without a gain.

    Ties are broken by the order of the rows, the same for every model.
    """
    actual = _dcg(labels, scores, groups, cut)
    ideal = _dcg(labels, labels, groups, cut)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(ideal > 0, actual / ideal, np.nan)


def group_reciprocal_rank(labels: Floats, scores: Floats, groups: NDArray[np.int64]) -> Floats:
    """Return one over the rank of each group's first positive row; NaN for groups without one."""
    order, ranks, numbers = _ranked(scores, groups)
    positive = labels[order] > 0
    best = np.full(numbers[-1] + 1 if len(numbers) else 0, np.inf)
    np.minimum.at(best, numbers[positive], ranks[positive] + 1.0)
    found: Floats = np.where(np.isfinite(best), 1.0 / best, np.nan)
    return found


def unit_values(name: str, labels: Floats, scores: Floats, groups: NDArray[np.int64] | None) -> Floats | None:
    """Return a metric's value per unit (group, or row) where its mean is the metric; None where it is no mean (AUC)."""
    if groups is not None and name.startswith("ndcg@"):
        return group_ndcg(labels, scores, groups, _cut(name))
    if groups is not None and name == "mrr":
        return group_reciprocal_rank(labels, scores, groups)
    if name == "log_loss":
        safe = np.clip(scores, EPSILON, 1 - EPSILON)
        losses: Floats = -(labels * np.log(safe) + (1 - labels) * np.log(1 - safe))
        return losses
    if name == "brier":
        return (labels - scores) ** 2
    return None


def slice_metrics(
    task: str, primary: str, labels: Floats, scores: Floats, groups: NDArray[np.int64] | None, rows: NDArray[np.bool_]
) -> Mapping[str, float]:
    """Return the metrics over some rows."""
    return score_metrics(task, primary, labels[rows], scores[rows], None if groups is None else groups[rows])


def _cut(name: str) -> int:
    return int(name.partition("@")[2]) if name.startswith("ndcg@") else 10


def _mean(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


def _dcg(labels: Floats, scores: Floats, groups: NDArray[np.int64], cut: int) -> Floats:
    order, ranks, numbers = _ranked(scores, groups)
    gains = np.where(ranks < cut, labels[order] / np.log2(ranks + 2.0), 0.0)
    sums: Floats = np.bincount(numbers, weights=gains).astype(np.float64)
    return sums


def _ranked(scores: Floats, groups: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return (rows by group and falling score, rank from 0 of each inside its group, dense group number of each)."""
    order = np.lexsort((np.arange(len(scores)), -scores, groups))
    sorted_groups = groups[order]
    starts = np.flatnonzero(np.concatenate([[True], sorted_groups[1:] != sorted_groups[:-1]])) if len(order) else np.empty(0, np.int64)
    sizes = np.diff(np.append(starts, len(order)))
    numbers = np.repeat(np.arange(len(starts)), sizes)
    ranks = np.arange(len(order)) - np.repeat(starts, sizes)
    return order, ranks, numbers
