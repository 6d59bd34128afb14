"""Drift between two snapshots: how far the columns of one are from those of an earlier one, by their stored profiles.

| statistic | of | source |
| --- | --- | --- |
| PSI, population stability index | deciles of the earlier one, or its 20 most frequent values; missing values have a bin | Siddiqi, 2006 |
| Jensen-Shannon distance | the same bins; the root of the divergence in bits, 0 to 1 | Lin, 1991; Endres and Schindelin, 2003 |
| Kolmogorov-Smirnov | the largest difference of the distribution functions, at the ends of the histograms' bins | Smirnov, 1939 |
| new categories | share of the rows whose text is not in the earlier snapshot, where that has at most 512 different ones | |
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

import numpy as np

from training.contracts import Instant, JsonObject, instant_text
from training.format import figure
from training.validation.columns.histogram import aligned
from training.validation.columns.numbers import NumberCounts
from training.validation.columns.profiles import Counts, ValueCounts
from training.validation.drift.stability_index import stability_index
from training.validation.drift.within_snapshot import FREQUENT_VALUES, binned

CHANCE_Z: Final = 3.09
"""One of 1,000 columns without drift is above what chance adds to the index."""
OTHERS: Final = "all others"
MISSING: Final = "missing"
MAX_BARS: Final = 24
MAX_VALUE_BARS: Final = 12
TAIL: Final = 0.005
"""Share of the numbers at each end that a chart's first and last bar hold."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """Shares of the rows that a chart shows beside each other."""

    label: str
    before: float
    now: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnDrift:
    """A column of two snapshots."""

    psi: float
    psi_of_chance: float
    """What the index of two samples of one distribution, so large, exceeds in one of 1,000 cases (Yurdakul, 2018)."""
    jensen_shannon: float
    kolmogorov_smirnov: float | None
    """None for texts, and where a side has no number."""
    new_categories: float | None
    """None for numbers, and where the earlier snapshot has more values than its profile."""
    missing_before: float
    """Share of the rows."""
    missing_now: float
    bars: tuple[Bar, ...]


@dataclass(kw_only=True)
class SnapshotComparison:
    """The columns of a snapshot beside those of an earlier one."""

    words: str
    as_of: Instant
    """Of the earlier one's run."""
    tables: dict[str, dict[str, ColumnDrift]] = field(default_factory=dict)
    """Table, column."""

    def to_json(self) -> JsonObject:
        """Return the numbers, without the charts."""
        tables = {
            table: {name: {key: value for key, value in asdict(drift).items() if key != "bars"} for name, drift in columns.items()}
            for table, columns in self.tables.items()
        }
        return {"against": self.words, "as_of": instant_text(self.as_of), "tables": tables}


def values_named(before: Mapping[str, Counts]) -> dict[str, list[str]]:
    """Return the values of the earlier snapshot whose rows must be counted in the later one, by column."""
    return {name: list(counts.frequent) for name, counts in before.items() if isinstance(counts, ValueCounts)}


def column_drift(before: Counts, now: Counts, named: Mapping[str, int]) -> ColumnDrift | None:
    """Return the drift of a column; None where one of them has no rows, or they are of different kinds.

    Args:
        named: rows of the later snapshot with each of `values_named`.
    """
    if not before.rows or not now.rows:
        return None
    if isinstance(before, NumberCounts) and isinstance(now, NumberCounts):
        return _of_numbers(before, now)
    if isinstance(before, ValueCounts) and isinstance(now, ValueCounts):
        return _of_values(before, now, named)
    return None


def _of_numbers(before: NumberCounts, now: NumberCounts) -> ColumnDrift:
    then, later = binned(before, now)
    return _drift(before, now, then, later, distance=_kolmogorov_smirnov(before, now), new=None, bars=_number_bars(before, now))


def _of_values(before: ValueCounts, now: ValueCounts, named: Mapping[str, int]) -> ColumnDrift:
    first = list(before.frequent)[:FREQUENT_VALUES]
    then = [before.num_missing, *(before.frequent[value] for value in first)]
    later = [now.num_missing, *(named[value] for value in first)]
    then, later = [*then, before.rows - sum(then)], [*later, now.rows - sum(later)]
    known = now.num_missing + sum(named[value] for value in before.frequent)
    new = (now.rows - known) / now.rows if before.is_complete else None
    labels = [MISSING, *first[:MAX_VALUE_BARS]]
    return _drift(before, now, then, later, distance=None, new=new, bars=_bars(labels, then, later, OTHERS))


def _drift(
    before: Counts,
    now: Counts,
    then: Sequence[int],
    later: Sequence[int],
    *,
    distance: float | None,
    new: float | None,
    bars: Sequence[Bar],
) -> ColumnDrift:
    return ColumnDrift(
        psi=stability_index(then, later),
        psi_of_chance=_index_of_chance(then, later),
        jensen_shannon=_jensen_shannon(then, later),
        kolmogorov_smirnov=distance,
        new_categories=new,
        missing_before=before.num_missing / before.rows,
        missing_now=now.num_missing / now.rows,
        bars=tuple(bars),
    )


def _index_of_chance(then: Sequence[int], later: Sequence[int]) -> float:
    # The index of samples of one distribution is (1/n + 1/m) times chi-squared. Its quantile by Wilson and Hilferty, 1931.
    freedom = sum(1 for one, other in zip(then, later, strict=True) if one or other) - 1
    if freedom < 1:
        return 0.0
    step = 2 / (9 * freedom)
    quantile = freedom * (1 - step + CHANCE_Z * math.sqrt(step)) ** 3
    return quantile * (1 / sum(then) + 1 / sum(later))


def _jensen_shannon(then: Sequence[int], later: Sequence[int]) -> float:
    p, q = (np.asarray(counts, np.float64) / sum(counts) for counts in (then, later))
    middle = (p + q) / 2

    def divergence(share: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
        there = share > 0
        return math.fsum((share[there] * np.log2(share[there] / middle[there])).tolist())

    return math.sqrt(min(1.0, max(0.0, (divergence(p) + divergence(q)) / 2)))


def _kolmogorov_smirnov(before: NumberCounts, now: NumberCounts) -> float | None:
    sizes = [counts.rows - counts.num_missing for counts in (before, now)]
    if not all(sizes):
        return None
    _, then, later = aligned(before.histogram, now.histogram)
    both = [(before.num_below + np.cumsum(then)) / sizes[0], (now.num_below + np.cumsum(later)) / sizes[1]]
    ends = [abs(before.num_below / sizes[0] - now.num_below / sizes[1])]
    return float(max(ends + np.abs(both[0] - both[1]).tolist()))


def _number_bars(before: NumberCounts, now: NumberCounts) -> list[Bar]:
    """Return bars of equal width between the ends of most numbers of both; few different numbers have one each."""
    keys, then, later = aligned(before.histogram, now.histogram)
    missing = ([before.num_missing], [now.num_missing])
    if not len(keys):
        return _bars([MISSING], missing[0], missing[1], None)
    histogram = before.histogram if before.histogram.shift >= now.histogram.shift else now.histogram
    lows = type(histogram)(histogram.shift, keys, then).lows()
    if len(keys) <= MAX_BARS:
        labels = [figure(low) for low in lows]
        return _bars([MISSING, *labels], [*missing[0], *then.tolist()], [*missing[1], *later.tolist()], None)
    up_to = np.cumsum(then + later)
    low, high = (float(lows[np.searchsorted(up_to, share * up_to[-1])]) for share in (TAIL, 1 - TAIL))
    edges = np.linspace(low, high, MAX_BARS + 1)[1:-1]
    places = np.searchsorted(edges, lows, side="right")
    counts = [np.bincount(places, weights=side, minlength=MAX_BARS).astype(np.int64).tolist() for side in (then, later)]
    labels = [f"from {edge:.4g}" for edge in (low, *edges.tolist())]
    labels[0] = f"below {edges[0]:.4g}"
    return _bars([MISSING, *labels], [*missing[0], *counts[0]], [*missing[1], *counts[1]], None)


def _bars(labels: Sequence[str], then: Sequence[int], later: Sequence[int], others: str | None) -> list[Bar]:
    """Return a bar for each label.

    Args:
        others: label of one more bar, for the rows of no label; None where each row has one.

    A bar for missing values, or for others, is left out where neither side has such rows.
    """
    whole = sum(then), sum(later)
    rows = list(zip(labels, then, later, strict=False))
    if others is not None:
        rest = whole[0] - sum(row[1] for row in rows), whole[1] - sum(row[2] for row in rows)
        rows.append((others, *rest))
    optional: Collection[str] = (MISSING, OTHERS)
    return [
        Bar(label=label, before=one / max(1, whole[0]), now=other / max(1, whole[1]))
        for label, one, other in rows
        if one or other or label not in optional
    ]
