"""Metrics of numbers: root mean squared error, mean absolute error, quantiles of absolute errors, and the mean error (bias)."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from training.evaluation.bootstrap.resampling import resampled_counts
from training.evaluation.metrics.means import FunctionOfMeans
from training.evaluation.metrics.metric import Floats, Metric, ScoredRows


class RootMeanSquaredError(FunctionOfMeans):
    def value(self, rows: ScoredRows) -> float:
        return float(np.sqrt(np.mean((rows.labels - rows.scores) ** 2)))

    def components(self, rows: ScoredRows) -> Floats:
        return ((rows.labels - rows.scores) ** 2)[:, None]

    def of_means(self, means: Floats) -> Floats:
        return np.asarray(np.sqrt(np.maximum(means[:, 0], 0)))

    def influence(self, rows: ScoredRows) -> Floats:
        squares = (rows.labels - rows.scores) ** 2
        return np.asarray(squares / (2 * np.sqrt(squares.mean()))) if squares.any() else squares


class MeanAbsoluteError(Metric):
    def value(self, rows: ScoredRows) -> float:
        return float(np.mean(np.abs(rows.labels - rows.scores)))

    def unit_values(self, rows: ScoredRows) -> Floats | None:
        return np.asarray(np.abs(rows.labels - rows.scores))


class Bias(Metric):
    """The mean of prediction less label: above 0, predictions are too high on average."""

    def value(self, rows: ScoredRows) -> float:
        return float(np.mean(rows.scores - rows.labels))

    def unit_values(self, rows: ScoredRows) -> Floats | None:
        return np.asarray(rows.scores - rows.labels)


class ErrorQuantile(Metric):
    """The absolute error that a share of the rows stays below."""

    def __init__(self, share: float) -> None:
        self._share = share

    def value(self, rows: ScoredRows) -> float:
        return float(np.quantile(np.abs(rows.labels - rows.scores), self._share))

    def influence(self, rows: ScoredRows) -> Floats:
        """A row lifts the quantile by share / density where its error lies above it, and lowers it by (1 - share) / density below."""
        errors, share = np.abs(rows.labels - rows.scores), self._share
        num, normal = len(errors), NormalDist()
        point = normal.inv_cdf(share)
        density = normal.pdf(point)
        # Hall and Sheather's bandwidth for a 95 % interval, in shares of the rows.
        width = num ** (-1 / 3) * normal.inv_cdf(0.975) ** (2 / 3) * (1.5 * density**2 / (2 * point**2 + 1)) ** (1 / 3)
        low, high = max(share - width, 0.0), min(share + width, 1.0)
        ends = np.quantile(errors, [low, share, high])
        return np.asarray((share - (errors <= ends[1])) * (ends[2] - ends[0]) / (high - low))

    def differences(self, new: ScoredRows, old: ScoredRows, seed: int) -> Floats:
        """Resample one by one only the rows whose errors can be the quantile of a resample; the others count by the side they are on."""
        errors = [np.abs(rows.labels - rows.scores) for rows in (new, old)]
        total, share = len(new.labels), self._share
        # Nine standard deviations of a resampled quantile's rank, and some more where there are few rows.
        reach = 9 * np.sqrt(total * share * (1 - share)) + 20
        first, last = (int(np.clip(share * (total - 1) + side * reach, 0, total - 1)) for side in (-1, 1))
        edges = [np.partition(values, (first, last))[[first, last]] for values in errors]
        # 0 below the window, 1 in it, 2 above.
        sides = [(values >= low).astype(np.int64) + (values > high) for values, (low, high) in zip(errors, edges, strict=True)]
        single = np.flatnonzero((sides[0] == 1) | (sides[1] == 1))
        corner = np.bincount((sides[0] * 3 + sides[1])[(sides[0] != 1) & (sides[1] != 1)], minlength=9)
        counts = np.concatenate([corner, np.ones(len(single), dtype=np.int64)])
        kinds = [
            np.concatenate([np.where(np.arange(9) // step % 3 == 0, -np.inf, np.inf), values[single]])
            for step, values in zip((3, 1), errors, strict=True)
        ]
        chunks = []
        for drawn in resampled_counts(counts, seed):
            after, before = (_quantile(values, drawn, share * (total - 1)) for values in kinds)
            chunks.append(after - before)
        return np.concatenate(chunks)


class MedianError(ErrorQuantile):
    def __init__(self) -> None:
        super().__init__(0.5)

    def value(self, rows: ScoredRows) -> float:
        return float(np.median(np.abs(rows.labels - rows.scores)))


def _quantile(values: Floats, drawn: NDArray[np.int64], place: float) -> Floats:
    """Return the value at the rank `place` (between two ranks: in between) of each resample of [kinds] values drawn [resamples, kinds]."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(drawn[:, order], axis=1)
    at, following = (values[order][(reached <= rank).sum(axis=1)] for rank in (int(place), int(np.ceil(place))))
    found: Floats = at + (following - at) * (place - int(place))
    return found


METRICS: Final[Mapping[str, Metric]] = {
    "rmse": RootMeanSquaredError(),
    "mae": MeanAbsoluteError(),
    "median_absolute_error": MedianError(),
    "absolute_error_p90": ErrorQuantile(0.9),
    "absolute_error_p99": ErrorQuantile(0.99),
    "bias": Bias(),
}
