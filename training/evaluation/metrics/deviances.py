"""Metrics of models that predict a quantile, or the mean of counts: the pinball loss and the Poisson deviance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from training.evaluation.metrics.metric import NAN, Floats, Metric, ScoredRows


class PinballLoss(Metric):
    """Mean of alpha times the error where the label is above the prediction, of 1 - alpha times the error where it is below."""

    def __init__(self, percent: int) -> None:
        """Take the quantile, alpha, in percent."""
        self._alpha = percent / 100

    def value(self, rows: ScoredRows) -> float:
        return float(self.unit_values(rows).mean())

    def unit_values(self, rows: ScoredRows) -> Floats:
        errors = rows.labels - rows.scores
        return np.asarray(np.maximum(self._alpha * errors, (self._alpha - 1) * errors))


class PoissonDeviance(Metric):
    """Mean of 2 (y log(y / m) - y + m) over labels y and predictions m; no value where a label is negative or a prediction not positive."""

    def value(self, rows: ScoredRows) -> float:
        losses = self.unit_values(rows)
        return float(losses.mean()) if np.isfinite(losses).all() else NAN

    def unit_values(self, rows: ScoredRows) -> Floats:
        has_value = (rows.labels >= 0) & (rows.scores > 0)
        labels, means = np.where(has_value, rows.labels, 1.0), np.where(has_value, rows.scores, 1.0)
        # The limit of y log y at 0 is 0.
        logs = labels * np.log(np.where(labels > 0, labels, 1.0) / means)
        return np.where(has_value, 2 * (np.where(labels > 0, logs, 0.0) - labels + means), NAN)


METRICS: Final[Mapping[str, Metric | Callable[[int], Metric]]] = {"pinball_loss": PinballLoss, "poisson_deviance": PoissonDeviance()}
