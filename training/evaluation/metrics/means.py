"""Metrics that are a function of means over units: resampled by resampling the means."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from training.evaluation.bootstrap.resampling import resampled_means
from training.evaluation.metrics.metric import Floats, Groups, Metric, ScoredRows


class FunctionOfMeans(Metric):
    @abstractmethod
    def components(self, rows: ScoredRows) -> Floats:
        """Return what the means are of, [n, components]; of groups the rows' sums count."""

    @abstractmethod
    def of_means(self, means: Floats) -> Floats:
        """Return the metric of means, [resamples, components] to [resamples]."""

    def differences(self, new: ScoredRows, old: ScoredRows, seed: int) -> Floats:
        parts = [_by_group(self.components(rows), rows.groups) for rows in (new, old)]
        means = resampled_means(np.concatenate(parts, axis=1), seed)
        width = parts[0].shape[1]
        return self.of_means(means[:, :width]) - self.of_means(means[:, width:])


def _by_group(components: Floats, groups: Groups | None) -> Floats:
    if groups is None:
        return components
    numbers = np.unique(groups, return_inverse=True)[1]
    return np.stack([np.bincount(numbers, weights=column) for column in components.T], axis=1)
