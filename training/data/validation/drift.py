"""Drift: how far the newest tenth of the window has moved from the rest. Reported and no gate: a gate needs a limit per column."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from training.data.expressions import quoted
from training.data.validation.snapshot_view import NUMBERS, TableView

NEWEST_SHARE: Final = 0.1
NUM_BINS: Final = 10
MAX_VALUES: Final = 20
FLOOR: Final = 1e-4
"""Least share of a bin, so that an empty one does not make the index infinite."""


def add_drift(view: TableView, statistics: dict[str, dict[str, Any]], span_us: tuple[int, int]) -> None:
    """Add `mean_shift` and `psi` to the statistics of each column but keys, times and constants.

    `mean_shift` is the newest rows' mean less the older ones', in the older ones' standard deviations. `psi` is the population
    stability index, the sum of (p - q) ln(p / q) over deciles of the older rows (numbers) or their 20 most frequent values (other
    columns): by common usage below 0.1 steady, above 0.25 a shift. (Siddiqi, "Credit Risk Scorecards", 2006.)

    Args:
        span_us: begin and end of the window, in microseconds since 1970.
    """
    event_time = view.contract.event_time
    if event_time is None or event_time not in statistics:
        return
    cut_us = round(span_us[1] - NEWEST_SHARE * (span_us[1] - span_us[0]))
    newest = f"epoch_us({quoted(event_time)}) >= {cut_us}"
    judged = [column for column in statistics if _can_drift(view, column, statistics[column])]
    numbers = [column for column in judged if view.sql_types[column] in NUMBERS]
    moments = _moments(view, numbers, newest)
    histograms = _histograms(view, moments, newest)
    for column in judged:
        older, newer = histograms[column] if column in histograms else _value_counts(view, column, newest)
        if not sum(older) or not sum(newer):
            continue
        statistics[column]["psi"] = _stability(older, newer)
        if column in moments:
            statistics[column]["mean_shift"] = moments[column].shift


def _can_drift(view: TableView, column: str, numbers: dict[str, Any]) -> bool:
    kind = view.sql_types[column]
    if column in view.contract.key or column == view.contract.event_time or "TIME" in kind or kind == "DATE":
        return False
    return bool(numbers["minimum"] != numbers["maximum"])


class _Moments(NamedTuple):
    """What one pass says of a number column."""

    edges: list[float]
    """Deciles of the older rows' finite values, rising; equal ones of a lumpy column collapse into one."""
    shift: float | None
    """`mean_shift`"""


def _moments(view: TableView, columns: list[str], newest: str) -> dict[str, _Moments]:
    """Return the moments of number columns, all in one pass over the rows."""
    if not columns:
        return {}
    shares = ", ".join(str(number / NUM_BINS) for number in range(1, NUM_BINS))
    selected = []
    for column in columns:
        number = _as_double(column)
        finite = f"CASE WHEN isfinite({number}) THEN {number} END"
        selected += [f"quantile_disc({finite}, [{shares}])", f"avg({finite})", f"stddev_pop({finite})"]
    # Two groups and no FILTER: DuckDB is three times slower with a filter on each aggregate.
    rows = {row[0]: row[1:] for row in view.rows(f"SELECT {newest} AS newest, {', '.join(selected)} FROM {{table}} GROUP BY newest")}  # noqa: S608 - quoted column names
    nothing = (None,) * len(selected)
    older, newer = rows.get(False, nothing), rows.get(True, nothing)
    found = {}
    for place, column in enumerate(columns):
        edges, mean, deviation = older[3 * place : 3 * place + 3]
        newer_mean = newer[3 * place + 1]
        is_known = mean is not None and newer_mean is not None and deviation
        found[column] = _Moments(sorted(set(edges or ())), float((newer_mean - mean) / deviation) if is_known else None)
    return found


def _histograms(view: TableView, moments: Mapping[str, _Moments], newest: str) -> dict[str, tuple[list[int], list[int]]]:
    """Return the older and the newer rows' counts by bin of number columns, all in one pass over the rows."""
    if not moments:
        return {}
    selected = [f"histogram({_bin(column, moments[column].edges)})" for column in moments]
    rows = {row[0]: row[1:] for row in view.rows(f"SELECT {newest} AS newest, {', '.join(selected)} FROM {{table}} GROUP BY newest")}  # noqa: S608 - quoted column names
    found = {}
    for place, column in enumerate(moments):
        older, newer = ((rows[side][place] or {}) if side in rows else {} for side in (False, True))
        bins = sorted({*older, *newer})
        found[column] = [older.get(number, 0) for number in bins], [newer.get(number, 0) for number in bins]
    return found


def _bin(column: str, edges: list[float]) -> str:
    """Return the expression of a value's bin: both ends are open, NaN is a bin of its own, null is in none."""
    number = _as_double(column)
    if not edges:
        return f"CASE WHEN {number} IS NOT NULL THEN 0 END"
    below = " ".join(f"WHEN {number} <= {edge!r} THEN {place}" for place, edge in enumerate(edges))
    return f"CASE WHEN {number} IS NULL THEN NULL WHEN isnan({number}) THEN -1 {below} ELSE {len(edges)} END"


def _as_double(column: str) -> str:
    return f"CAST({quoted(column)} AS DOUBLE)"


def _value_counts(view: TableView, column: str, newest: str) -> tuple[list[int], list[int]]:
    """Return the older and the newer rows' counts of the most frequent values, and of all others together."""
    counts = f"count(*) FILTER (NOT {newest}) AS older, count(*) FILTER ({newest}) AS newer"
    rows = view.rows(f"SELECT {quoted(column)} AS bin, {counts} FROM {{table}} GROUP BY bin ORDER BY older DESC, bin")  # noqa: S608 - quoted column name
    rest = rows[MAX_VALUES:]
    rows = [*rows[:MAX_VALUES], (None, sum(row[1] for row in rest), sum(row[2] for row in rest))]
    return [row[1] for row in rows], [row[2] for row in rows]


def _stability(older: list[int], newer: list[int]) -> float:
    num_older, num_newer = sum(older), sum(newer)
    shares = [(max(a / num_older, FLOOR), max(b / num_newer, FLOOR)) for a, b in zip(older, newer, strict=True)]
    return sum((q - p) * math.log(q / p) for p, q in shares)
