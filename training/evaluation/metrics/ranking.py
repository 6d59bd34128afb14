"""Metrics of ranked groups: NDCG, recall and the reciprocal rank, each the expected value over all orders of rows with equal scores.

Which of several tied rows comes first is not a property of a model, so no order of the file may decide it. For NDCG and recall the
expectation is that of McSherry and Najork, "Computing Information Retrieval Performance Measures Efficiently in the Presence of
Tied Scores" (ECIR 2008): every row of a run of equal scores has the run's mean gain. For the reciprocal rank only the first run
with a positive row counts; the place of the first of its p positives among its m rows has the negative hypergeometric
distribution, P(place > j) = C(m - j, p) / C(m, p) (Johnson, Kemp and Kotz, "Univariate Discrete Distributions", 2005, section 6.2.2).

Groups without a positive label have no value (NaN) and are left out of every mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.spec.sections.evaluation import Gain

Floats = NDArray[np.float64]
Groups = NDArray[np.int64]

MAX_PADDING: Final = 4
"""Cells per row of a table with a line per group up to which the groups are sorted as lines of it."""


class _Runs(NamedTuple):
    """Rows of one group with equal scores; groups in the order of their numbers, scores falling."""

    order: Groups
    """[n] rows by group and falling score."""
    starts: Groups
    """[runs] where each begins in `order`."""
    sizes: Groups
    """[runs] rows."""
    ranks: Groups
    """[runs] rank of its first row inside the group, from 0."""
    numbers: Groups
    """[runs] dense number of its group."""
    num_groups: int


@dataclass(frozen=True, kw_only=True)
class RankedRows:
    """One model's scores of rows in groups. Rows are sorted once for all metrics."""

    labels: Floats
    """[n]"""
    scores: Floats
    """[n]"""
    groups: Groups
    """[n]"""
    gain: Gain = "linear"
    """Of a label: itself (`linear`), or 2 to its power less 1 (`exponential`; Burges et al., 2005)."""

    @cached_property
    def _runs(self) -> _Runs:
        return _runs(self.scores, self.groups)

    @cached_property
    def _gains(self) -> Floats:
        return self.labels if self.gain == "linear" else np.exp2(self.labels) - 1

    @cached_property
    def _ideal(self) -> _Runs:
        """The order that the gains would have."""
        return _runs(self._gains, self.groups)

    def ndcg(self, cut: int) -> Floats:
        """Return each group's NDCG at `cut` (Järvelin and Kekäläinen, 2002), [groups] by rising number; NaN without a positive gain."""
        actual = _expected_dcg(self._gains, self._runs, cut)
        ideal = _expected_dcg(self._gains, self._ideal, cut)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(ideal > 0, actual / ideal, np.nan)

    def reciprocal_rank(self) -> Floats:
        """Return the expectation of one over the rank of each group's first positive row, [groups]; NaN for groups without one."""
        runs = self._runs
        positives = _sums((self.labels > 0).astype(np.float64), runs).astype(np.int64)
        with_positives = np.flatnonzero(positives > 0)
        found = np.full(runs.num_groups, np.nan)
        # Runs are in the order of ranks, so the first one of a group is the best.
        in_groups, first = np.unique(runs.numbers[with_positives], return_index=True)
        best = with_positives[first]
        found[in_groups] = _expected_reciprocals(runs.ranks[best], runs.sizes[best], positives[best])
        return found

    def recall(self, cut: int) -> Floats:
        """Return the expected share of each group's positive rows among its first `cut`, [groups]; NaN for groups without one."""
        runs = self._runs
        positives = _sums((self.labels > 0).astype(np.float64), runs)
        share = np.clip(cut - runs.ranks, 0, runs.sizes) / np.maximum(runs.sizes, 1)
        found, total = (np.bincount(runs.numbers, weights=some, minlength=runs.num_groups) for some in (positives * share, positives))
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(total > 0, found / total, np.nan)


def num_groups_without_positive(labels: Floats, groups: Groups) -> int:
    """Return how many groups have no label above 0: those that every mean leaves out."""
    return int((np.bincount(dense_groups(groups), weights=labels > 0) == 0).sum())


def dense_groups(groups: Groups) -> Groups:
    """Return [n] the place of each row's group among the sorted numbers; `groups` itself where its numbers are dense already."""
    if len(groups) and groups.min() >= 0 and groups.max() < len(groups) and np.bincount(groups).all():
        return groups
    return np.unique(groups, return_inverse=True)[1].astype(np.int64, copy=False)


def _expected_dcg(gains: Floats, runs: _Runs, cut: int) -> Floats:
    """Return each group's DCG where every row of a run has the run's mean gain, [groups]."""
    longest = int((runs.ranks + runs.sizes).max(initial=0))
    # discounts[r] is the sum of the discounts of the ranks below r.
    discounts = np.concatenate([[0.0], np.cumsum(1.0 / np.log2(np.arange(longest) + 2.0))])
    first, behind = (np.minimum(place, cut) for place in (runs.ranks, runs.ranks + runs.sizes))
    parts = _sums(gains, runs) / np.maximum(runs.sizes, 1) * (discounts[behind] - discounts[first])
    sums: Floats = np.bincount(runs.numbers, weights=parts, minlength=runs.num_groups).astype(np.float64)
    return sums


def _expected_reciprocals(ranks: Groups, sizes: Groups, positives: Groups) -> Floats:
    """Return E[1 / (rank + J)], [runs], where J is the place from 1 of the first of a run's positives in a random order of its rows."""
    places = sizes - positives + 1
    run = np.repeat(np.arange(len(sizes)), places)
    starts = np.cumsum(places) - places
    place = np.arange(len(run)) - starts[run]  # j - 1, from 0
    # log P(J > j) is a sum of log((m - p - i) / (m - i)) over i < j: summed over all runs at once, less what came before each.
    with np.errstate(divide="ignore"):
        steps = np.log((sizes - positives)[run] - place) - np.log(sizes[run] - place)
    steps[starts + places - 1] = 0.0  # The last place is certain; its step would be log 0.
    summed = np.concatenate([[0.0], np.cumsum(steps)])
    reached = np.exp(summed[np.arange(len(run))] - summed[starts][run])
    beyond = np.append(reached[1:], 0.0)
    beyond[starts + places - 1] = 0.0
    found: Floats = np.add.reduceat((reached - beyond) / (ranks[run] + place + 1.0), starts) if len(run) else np.empty(0)
    return found


def _sums(values: Floats, runs: _Runs) -> Floats:
    sums: Floats = np.add.reduceat(values[runs.order], runs.starts) if len(runs.starts) else np.empty(0)
    return sums


def _runs(scores: Floats, groups: Groups) -> _Runs:
    order = _order(scores, groups)
    if len(order) == 0:
        none = np.empty(0, dtype=np.int64)
        return _Runs(none, none, none, none, none, 0)
    sorted_groups, sorted_scores = groups[order], scores[order]
    new_group = np.concatenate([[True], sorted_groups[1:] != sorted_groups[:-1]])
    starts = np.flatnonzero(new_group | np.concatenate([[True], sorted_scores[1:] != sorted_scores[:-1]]))
    numbers = (np.cumsum(new_group) - 1)[starts]
    ranks = starts - np.flatnonzero(new_group)[numbers]
    return _Runs(order, starts, np.diff(np.append(starts, len(order))), ranks, numbers, int(numbers[-1]) + 1)


def _order(scores: Floats, groups: Groups) -> Groups:
    """Return [n] rows by group and falling score; rows of a group with equal scores in their own order."""
    if len(scores) == 0 or np.isnan(scores).any():
        return np.lexsort((-scores, groups))
    by_group = None if (groups[1:] >= groups[:-1]).all() else np.argsort(groups, kind="stable")
    in_groups = groups if by_group is None else groups[by_group]
    starts = np.flatnonzero(np.concatenate([[True], in_groups[1:] != in_groups[:-1]]))
    sizes = np.diff(np.append(starts, len(groups)))
    longest = int(sizes.max())
    if longest * len(sizes) > MAX_PADDING * len(groups):
        return np.lexsort((-scores, groups))
    # A group is a line of a table: sorting many short lines takes a fifth of the time of sorting all rows.
    is_row = np.arange(longest) < sizes[:, None]
    table = np.full(is_row.shape, np.inf)
    table[is_row] = -(scores if by_group is None else scores[by_group])
    places = (np.argsort(table, axis=1, kind="stable") + starts[:, None])[is_row]
    return places if by_group is None else by_group[places]
