"""Which columns a model leans on: by how much the primary metric falls when a column's values are shuffled (Breiman, 2001)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from training.evaluation.metrics.by_task import metric_value
from training.evaluation.metrics.metric import OwnMetric
from training.spec.metrics import is_lower_better
from training.spec.sections.evaluation import Gain

Floats = NDArray[np.float64]

MAX_ROWS: Final = 4_096
MAX_COLUMNS: Final = 200


def permutation_importance(  # noqa: PLR0913 - one array a role; bundling them would only move the names
    predict: Callable[[pd.DataFrame], Floats],
    read: Callable[[NDArray[np.int64]], pd.DataFrame],
    columns: Sequence[str],
    labels: Floats,
    groups: NDArray[np.int64] | None,
    *,
    primary: str,
    seed: int,
    threshold: float = 0.5,
    gain: Gain = "linear",
    own: OwnMetric | None = None,
) -> dict[str, float] | None:
    """Return by how much the metric gets worse for each column shuffled, largest first; None where it has no value.

    It is measured once a column on up to 4,096 rows (whole groups), so a column of little weight may come out below zero. Of two
    columns that say the same, each may look dispensable.

    Args:
        predict: frame to scores.
        read: numbers of rows, ascending and below n, to these raw rows.
        columns: of the rows, those that the model reads; the first 200 are measured.
        labels: [n].
        groups: [n] for ranking.
        primary: the metric.
        seed: of the shuffling.
        threshold: at which a probability counts as a yes.
        gain: of a label in NDCG.
        own: the metric itself, where it is one of the spec's own.
    """
    generator = np.random.Generator(np.random.SFC64(seed))
    rows = _rows(generator, len(labels), groups)
    some, targets = read(rows).reset_index(drop=True), labels[rows]
    some_groups = None if groups is None else groups[rows]
    sign = -1.0 if is_lower_better(primary) and own is None else 1.0

    def measured(changed: pd.DataFrame) -> float:
        return sign * metric_value(primary, targets, predict(changed), some_groups, threshold=threshold, gain=gain, own=own)

    whole = measured(some)
    if not math.isfinite(whole):
        return None
    found = {}
    for column in columns[:MAX_COLUMNS]:
        changed = some.copy(deep=False)
        changed[column] = some[column].iloc[generator.permutation(len(some))].reset_index(drop=True)
        found[column] = whole - measured(changed)
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def _rows(generator: np.random.Generator, num_rows: int, groups: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Choose rows, rising; of groups whole ones."""
    if num_rows <= MAX_ROWS:
        return np.arange(num_rows)
    if groups is None:
        return np.sort(generator.choice(num_rows, MAX_ROWS, replace=False))
    numbers, sizes = np.unique(groups, return_counts=True)
    order = generator.permutation(len(numbers))
    num_chosen = max(1, int((np.cumsum(sizes[order]) <= MAX_ROWS).sum()))
    return np.flatnonzero(np.isin(groups, numbers[order[:num_chosen]]))
