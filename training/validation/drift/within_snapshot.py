"""Drift within a snapshot: how far the newest tenth of the window has moved from the rest. Reported, no gate."""

from __future__ import annotations

from typing import Final

import numpy as np

from training.validation.columns.histogram import aligned
from training.validation.columns.numbers import NEWER, OLDER, NumberColumn, NumberCounts
from training.validation.columns.values import ValueColumn
from training.validation.drift.stability_index import NUM_BINS, stability_index
from training.validation.results import DriftMeasures

NEWEST_SHARE: Final = 0.1
FREQUENT_VALUES: Final = 20


def cut_of(span_us: tuple[int, int]) -> int:
    """Return the event time from which on a row is newer, in microseconds since 1970.

    Args:
        span_us: begin and end of the window.
    """
    return round(span_us[1] - NEWEST_SHARE * (span_us[1] - span_us[0]))


def number_drift(column: NumberColumn) -> DriftMeasures:
    """Return `psi` and `mean_shift` of a number column; nothing where the older or the newer rows hold no value.

    `mean_shift` is the newer rows' mean less the older ones', in the older ones' standard deviations. `psi` is the population
    stability index over deciles of the older rows, each the upper end of a bin of their histogram. NaN has a separate bin, infinite
    numbers are in the first or the last one.
    """
    older, newer = column.sides[OLDER], column.sides[NEWER]
    if not older.num_values or not newer.num_values:
        return {}
    found: DriftMeasures = {"psi": stability_index(*binned(older.counts(), newer.counts()))}
    if older.moments.count and newer.moments.count:
        deviation = older.moments.deviation
        if deviation and np.isfinite(deviation):
            found["mean_shift"] = float(newer.moments.exact_mean - older.moments.exact_mean) / deviation
    return found


def value_drift(column: ValueColumn) -> DriftMeasures:
    """Return `psi` over the most frequent values, null being one, and all others together; nothing where one side has no rows."""
    if not column.num_older or not column.num_newer:
        return {}
    older, newer = ([getattr(value, side) for value in column.by_older] for side in ("older", "newer"))
    return {"psi": stability_index([*older, column.num_older - sum(older)], [*newer, column.num_newer - sum(newer)])}


def binned(older: NumberCounts, newer: NumberCounts) -> tuple[list[int], list[int]]:
    """Return the values of both sides in bins between the deciles of the older one, the missing ones first.

    A value that a tenth of the older ones have has a bin of its own: what is below it would be in it, and a share that moves from 1 to 0
    would not be seen. Without a finite number there are two bins, of the missing ones and of the others.
    """
    if not older.histogram.total:
        return [older.num_missing, older.rows - older.num_missing], [newer.num_missing, newer.rows - newer.num_missing]
    _, mine, theirs = aligned(older.histogram, newer.histogram)
    up_to = np.cumsum(mine)
    ranks = [max(1, -(-int(up_to[-1]) * number // NUM_BINS)) for number in range(1, NUM_BINS)]
    ends = np.unique(np.searchsorted(up_to, ranks, side="left"))
    piles = ends[(mine[ends] > 1) & (mine[ends] * NUM_BINS >= up_to[-1]) & (ends > 0)]
    edges = np.unique(np.concatenate([ends, piles - 1]))

    def counts(side: NumberCounts, up_to: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[int]:
        inside = np.diff(np.concatenate([[0], up_to[edges], up_to[-1:]])).tolist()
        inside[0] += side.num_below
        inside[-1] += side.num_above
        return [side.num_missing, *inside]

    return counts(older, up_to), counts(newer, np.cumsum(theirs))
