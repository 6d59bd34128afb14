"""How sure a difference is: a paired bootstrap, both models on the same resampled units (Efron and Tibshirani, 1993)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from training.evaluation.metrics import unit_values
from training.spec.evaluation import LOWER_IS_BETTER

Floats = NDArray[np.float64]

NUM_RESAMPLES: Final = 1000
CELLS_PER_CHUNK: Final = 4_000_000
"""Resampled weights held at a time: 32 MB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """By how much the candidate is better; positive is better for every metric."""

    gain: float
    low: float
    high: float
    probability: float
    """Share of resamples in which the candidate is better."""
    num_units: int


def compare(
    name: str,
    labels: Floats,
    candidate: Floats,
    champion: Floats,
    groups: NDArray[np.int64] | None,
    *,
    confidence: float,
    seed: int,
) -> Comparison:
    """Compare two models' scores of the same rows by the metric `name`.

    Args:
        labels, candidate, champion: [n].
        groups: [n] for ranking: whole groups are resampled.
        confidence: of the two-sided percentile interval.
        seed: of the resamples.
    """
    sign = -1.0 if name in LOWER_IS_BETTER else 1.0
    new, old = (unit_values(name, labels, scores, groups) for scores in (candidate, champion))
    if new is not None and old is not None:
        differences = sign * (new - old)
        known = differences[np.isfinite(differences)]
        if len(known) < 2:
            return _unknown(len(known))
        gain, samples = float(known.mean()), _resampled_means(known, seed)
        num_units = len(known)
    else:
        num_units = len(labels)
        if num_units < 2 or len(np.unique(labels)) < 2:
            return _unknown(num_units)
        ones = np.ones((1, num_units))
        gain = float(sign * (_auc(labels, candidate, ones) - _auc(labels, champion, ones))[0])
        samples = sign * _resampled_auc_differences(labels, candidate, champion, seed)
    tail = (1 - confidence) / 2
    finite = samples[np.isfinite(samples)]
    if len(finite) < NUM_RESAMPLES * 0.9:
        return _unknown(num_units)
    low, high = np.quantile(finite, [tail, 1 - tail])
    return Comparison(gain=gain, low=float(low), high=float(high), probability=float((finite > 0).mean()), num_units=num_units)


def _unknown(num_units: int) -> Comparison:
    nan = float("nan")
    return Comparison(gain=nan, low=nan, high=nan, probability=nan, num_units=num_units)


def _chunks(num_units: int) -> list[int]:
    rows = max(1, CELLS_PER_CHUNK // max(1, num_units))
    return [min(rows, NUM_RESAMPLES - start) for start in range(0, NUM_RESAMPLES, rows)]


def _resampled_means(values: Floats, seed: int) -> Floats:
    generator = np.random.Generator(np.random.Philox(seed))
    shares = np.full(len(values), 1 / len(values))
    return np.concatenate([generator.multinomial(len(values), shares, size=size) @ values / len(values) for size in _chunks(len(values))])


def _resampled_auc_differences(labels: Floats, candidate: Floats, champion: Floats, seed: int) -> Floats:
    generator = np.random.Generator(np.random.Philox(seed))
    shares = np.full(len(labels), 1 / len(labels))
    found = []
    for size in _chunks(len(labels)):
        weights = generator.multinomial(len(labels), shares, size=size).astype(np.float64)
        found.append(_auc(labels, candidate, weights) - _auc(labels, champion, weights))
    return np.concatenate(found)


def _auc(labels: Floats, scores: Floats, weights: Floats) -> Floats:
    """Return the AUC under each row of weights [resamples, n]: the chance that a positive outranks a negative, ties counting half."""
    order = np.argsort(scores, kind="stable")
    ties = np.flatnonzero(np.concatenate([[True], np.diff(scores[order]) > 0]))
    ordered = weights[:, order]
    positive = np.add.reduceat(ordered * labels[order], ties, axis=1)
    negative = np.add.reduceat(ordered * (1 - labels[order]), ties, axis=1)
    below = np.cumsum(negative, axis=1) - negative
    with np.errstate(divide="ignore", invalid="ignore"):
        areas: Floats = (positive * (below + 0.5 * negative)).sum(axis=1) / (positive.sum(axis=1) * negative.sum(axis=1))
    return areas
