"""Metrics of ranked groups; `ranking` computes them. A group without a positive label has no value and counts in no mean."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from training.evaluation.metrics import ranking
from training.evaluation.metrics.metric import NAN, Groups, Metric, Rows

Floats = NDArray[np.float64]


class GroupMetric(Metric):
    """The mean over groups that have a value."""

    is_of_groups = True

    def value(self, rows: Rows) -> float:
        if rows.groups is None:
            return NAN
        values = self.of_groups(rows, rows.groups)
        known = values[np.isfinite(values)]
        return float(known.mean()) if len(known) else NAN

    def unit_values(self, rows: Rows) -> Floats | None:
        return None if rows.groups is None else self.of_groups(rows, rows.groups)

    @abstractmethod
    def of_groups(self, rows: Rows, groups: Groups) -> Floats:
        """Return each group's value, [groups] by rising number; NaN for groups without one."""


class ReciprocalRank(GroupMetric):
    def of_groups(self, rows: Rows, groups: Groups) -> Floats:
        return ranking.group_reciprocal_rank(rows.labels, rows.scores, groups)


class Ndcg(GroupMetric):
    def __init__(self, cut: int) -> None:
        self._cut = cut

    def of_groups(self, rows: Rows, groups: Groups) -> Floats:
        return ranking.group_ndcg(rows.labels, rows.scores, groups, self._cut, gain=rows.gain)


class Recall(GroupMetric):
    def __init__(self, cut: int) -> None:
        self._cut = cut

    def of_groups(self, rows: Rows, groups: Groups) -> Floats:
        return ranking.group_recall(rows.labels, rows.scores, groups, self._cut)


METRICS: Final[Mapping[str, Metric | Callable[[int], Metric]]] = {"mrr": ReciprocalRank(), "ndcg": Ndcg, "recall": Recall}
