"""Drift: how far the newest tenth of the window has moved from the rest. Reported and no gate: a gate needs a limit per column."""

from __future__ import annotations

import math
from typing import Any, Final

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
    for column, numbers in statistics.items():
        kind = view.sql_types[column]
        if (
            column in view.contract.key
            or column == event_time
            or numbers["minimum"] == numbers["maximum"]
            or "TIME" in kind
            or kind == "DATE"
        ):
            continue
        older, newer = _histograms(view, column, newest, is_number=kind in NUMBERS)
        if not sum(older) or not sum(newer):
            continue
        numbers["psi"] = _stability(older, newer)
        if kind in NUMBERS:
            numbers["mean_shift"] = _mean_shift(view, column, newest)


def _mean_shift(view: TableView, column: str, newest: str) -> float | None:
    number = f"CAST({quoted(column)} AS DOUBLE)"
    query = f"""
        SELECT avg({number}) FILTER ({newest}) - avg({number}) FILTER (NOT {newest}), stddev_pop({number}) FILTER (NOT {newest})
        FROM {{table}} WHERE isfinite({number})
    """  # noqa: S608 - quoted column name
    shift, deviation = view.rows(query)[0]
    return float(shift / deviation) if shift is not None and deviation else None


def _histograms(view: TableView, column: str, newest: str, *, is_number: bool) -> tuple[list[int], list[int]]:
    """Return the older and the newer rows' counts by bin."""
    name = quoted(column)
    if is_number:
        edges = _edges(view, name, newest)
        # Both ends are open; equal edges of a lumpy column collapse into one.
        above = " + ".join(f"CAST(CAST({name} AS DOUBLE) > {edge!r} AS INTEGER)" for edge in edges)
        bins = f"CASE WHEN isnan(CAST({name} AS DOUBLE)) THEN -1 ELSE {above} END" if edges else "0"
        query = f"SELECT {bins} AS bin, {_counts(newest)} FROM {{table}} WHERE {name} IS NOT NULL GROUP BY bin ORDER BY bin"  # noqa: S608
        rows = view.rows(query)
    else:
        query = f"SELECT {name} AS bin, {_counts(newest)} FROM {{table}} GROUP BY bin ORDER BY older DESC, bin"  # noqa: S608 - quoted column name
        rows = view.rows(query)
        rest = rows[MAX_VALUES:]
        rows = [*rows[:MAX_VALUES], (None, sum(row[1] for row in rest), sum(row[2] for row in rest))]
    return [row[1] for row in rows], [row[2] for row in rows]


def _counts(newest: str) -> str:
    return f"count(*) FILTER (NOT {newest}) AS older, count(*) FILTER ({newest}) AS newer"


def _edges(view: TableView, name: str, newest: str) -> list[float]:
    shares = ", ".join(str(number / NUM_BINS) for number in range(1, NUM_BINS))
    query = (
        f"SELECT quantile_disc(CAST({name} AS DOUBLE), [{shares}]) FROM {{table}} WHERE NOT {newest} AND isfinite(CAST({name} AS DOUBLE))"  # noqa: S608
    )
    found = view.rows(query)[0][0]
    return sorted(set(found)) if found else []


def _stability(older: list[int], newer: list[int]) -> float:
    num_older, num_newer = sum(older), sum(newer)
    shares = [(max(a / num_older, FLOOR), max(b / num_newer, FLOOR)) for a, b in zip(older, newer, strict=True)]
    return sum((q - p) * math.log(q / p) for p, q in shares)
