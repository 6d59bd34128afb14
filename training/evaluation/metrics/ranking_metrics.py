"""Metrics of ranked groups; `ranking` computes them. A group without a positive label has no value and counts in no mean."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from training.evaluation.metrics.metric import NAN, Floats, Metric, ScoredRows
from training.evaluation.metrics.ranking import RankedRows


class GroupMetric(Metric):
    """The mean over groups that have a value."""

    is_of_groups = True

    def why_none(self, rows: ScoredRows) -> str:
        return "" if (rows.labels > 0).any() else "no group with a positive label"

    def value(self, rows: ScoredRows) -> float:
        if rows.groups is None:
            return NAN
        values = self.of_groups(rows.ranked)
        known = values[np.isfinite(values)]
        return float(known.mean()) if len(known) else NAN

    def unit_values(self, rows: ScoredRows) -> Floats | None:
        return None if rows.groups is None else self.of_groups(rows.ranked)

    @abstractmethod
    def of_groups(self, ranked: RankedRows) -> Floats:
        """Return each group's value, [groups] by rising number; NaN for groups without one."""


class ReciprocalRank(GroupMetric):
    def of_groups(self, ranked: RankedRows) -> Floats:
        return ranked.reciprocal_rank()


class Ndcg(GroupMetric):
    def __init__(self, cut: int) -> None:
        self._cut = cut

    def of_groups(self, ranked: RankedRows) -> Floats:
        return ranked.ndcg(self._cut)


class Recall(GroupMetric):
    def __init__(self, cut: int) -> None:
        self._cut = cut

    def of_groups(self, ranked: RankedRows) -> Floats:
        return ranked.recall(self._cut)


METRICS: Final[Mapping[str, Metric | Callable[[int], Metric]]] = {"mrr": ReciprocalRank(), "ndcg": Ndcg, "recall": Recall}
