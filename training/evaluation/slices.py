"""Metrics by slice: the rows that share a value of a declared column. Small slices are reported and judge nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from training.evaluation.metrics import score_metrics

Floats = NDArray[np.float64]

MAX_SLICES: Final = 200
"""Of one column; the largest are kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """One value of one column."""

    column: str
    value: str
    support: int
    """Rows."""
    is_small: bool
    candidate: float
    champion: float | None


def by_slice(  # noqa: PLR0913 - one array a role; bundling them would only move the names
    frame: pd.DataFrame,
    columns: tuple[str, ...],
    *,
    task: str,
    primary: str,
    labels: Floats,
    candidate: Floats,
    champion: Floats | None,
    groups: NDArray[np.int64] | None,
    least_support: int,
) -> list[Slice]:
    """Return the primary metric by value of each column, largest slices first; all arrays are [n], as the frame."""
    found = []
    for column in columns:
        values = frame[column].astype("string").fillna("(missing)")
        for value, support in values.value_counts().head(MAX_SLICES).items():
            rows = (values == value).to_numpy(dtype=bool)
            some = None if groups is None else groups[rows]
            scores = [
                None if s is None else score_metrics(task, primary, labels[rows], s[rows], some)[primary] for s in (candidate, champion)
            ]
            found.append(
                Slice(
                    column=column,
                    value=str(value),
                    support=int(support),
                    is_small=int(support) < least_support,
                    candidate=float(scores[0]) if scores[0] is not None else float("nan"),
                    champion=scores[1],
                )
            )
    return found
