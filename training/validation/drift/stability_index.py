"""The population stability index (PSI) of two samples. (Siddiqi, "Credit Risk Scorecards", 2006.)

One formula for columns and predictions. The bins differ: the report on a column counts in deciles that are values of the column. The gate
on predictions must not react to the last digits of scores, so it uses `separated`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

NUM_BINS: Final = 10
FLOOR: Final = 1e-4
"""Least share of a bin: an empty bin counts as 1 of 10,000 values, so that the index is finite."""
RESOLUTION: Final = 0.0025
"""Share of the range between the 1st and the 99th percentile. Values that are closer than this count as equal where they pile up."""
PILE_SHARE: Final = 0.05
"""Half a bin. With at most this share of the values near an edge, small changes of all values move the index by less than 0.06 there."""


def stability_index(older: Sequence[int], newer: Sequence[int]) -> float:
    """Return the sum of (q - p) ln(q / p) over bins, p and q being the shares of the older and the newer sample, at least `FLOOR`.

    By common usage, below 0.1 the samples are alike, above 0.25 they differ.

    Args:
        older, newer: values per bin, in the same bins; neither sample is empty.
    """
    p, q = (np.maximum(counts / counts.sum(), FLOOR) for counts in (np.asarray(older), np.asarray(newer)))
    return float(((q - p) * np.log(q / p)).sum())


def separated(edges: Floats, values: Floats) -> Floats:
    """Return the edges of the bins, rising: equal ones once, and none inside a pile of values.

    A bin includes its upper edge, so tied values share a bin. Where values are almost tied (scores near 0, for example), quantiles are
    edges of bins with nearly no width, and which bin a value is in depends on its last digits. So an edge moves up while more than
    `PILE_SHARE` of the values are within `RESOLUTION` of it, and edges that are then not further apart than that are one.

    Args:
        edges: upper ends of bins, such as the deciles of `values`.
        values: [n] of the older sample, rising and finite.
    """
    if not len(values):
        return np.unique(edges)
    low, high = np.quantile(values, (0.01, 0.99))
    margin = RESOLUTION * float(high - low)
    most = max(PILE_SHARE * len(values), 1)
    kept: list[float] = []
    for edge in np.unique(edges).tolist():
        position = edge
        while position + margin > position and _num_between(values, position - margin, position + margin) > most:
            position += margin
        if not kept or position - kept[-1] > margin:
            kept.append(position)
    return np.asarray(kept)


def _num_between(values: Floats, low: float, high: float) -> int:
    return int(np.searchsorted(values, high, side="right") - np.searchsorted(values, low, side="left"))
