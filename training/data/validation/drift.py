"""Drift: how far the newest tenth of the window has moved from the rest. Reported and no gate: a gate needs a limit per column."""

from __future__ import annotations

import itertools
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from training.data.stability_index import NUM_BINS, stability_index
from training.data.validation.results import ColumnStatistics, Drift
from training.data.validation.snapshot_view import TableView, arrow_of, numpy_of, valid_of
from training.sql.expressions import quoted

NEWEST_SHARE: Final = 0.1
MAX_VALUES: Final = 20
OLDER, NEWER = 0, 1

Numbers = npt.NDArray[np.float64]
Sides = npt.NDArray[np.int8]


def sides_of(event_time: pa.ChunkedArray, span_us: tuple[int, int]) -> Sides:
    """Return for each row `OLDER` or `NEWER`, and -1 where the event time is null.

    Args:
        span_us: begin and end of the window, in microseconds since 1970.
    """
    cut_us = round(span_us[1] - NEWEST_SHARE * (span_us[1] - span_us[0]))
    sides = np.full(len(event_time), -1, dtype=np.int8)
    sides[valid_of(event_time)] = numpy_of(event_time.drop_null().cast(pa.int64())) >= cut_us
    return sides


def can_drift(view: TableView, column: str, statistics: ColumnStatistics) -> bool:
    """Return whether a column is anything but a key, a time or a constant."""
    kind = view.contract.types[column]
    if column in view.contract.key or kind in ("timestamp", "date"):
        return False
    return bool(statistics["minimum"] != statistics["maximum"])


def number_drift(values: Numbers, sides: Sides) -> Drift:
    """Return `psi` and `mean_shift` of a number column; nothing where the older or the newer rows hold no value.

    `mean_shift` is the newer rows' mean less the older ones', in the older ones' standard deviations. `psi` is the population
    stability index over deciles of the older rows (numbers) or their 20 most frequent values (other columns).

    Args:
        values: without nulls; NaN has a separate bin, infinite numbers are in the first or the last one.
        sides: of the same rows, `OLDER`, `NEWER` or any other number for neither.
    """
    older, newer = (_Side.of(values[sides == side]) for side in (OLDER, NEWER))
    edges = older.deciles()
    counts = older.counts(edges), newer.counts(edges)
    if not sum(counts[0]) or not sum(counts[1]):
        return {}
    found: Drift = {"psi": stability_index(*counts)}
    if len(older.finite) and len(newer.finite):
        base = older.finite[0]
        deviation = np.std(older.finite - base)
        if deviation:
            found["mean_shift"] = float((np.mean(newer.finite - base) - np.mean(older.finite - base)) / deviation)
    return found


def value_drift(view: TableView, values: pa.ChunkedArray, sides: Sides) -> Drift:
    """Return `psi` over the most frequent values, null being one, and all others together; nothing where one side has no rows."""
    num_rows = [int(np.count_nonzero(sides == side)) for side in (OLDER, NEWER)]
    if not all(num_rows):
        return {}
    counts = ", ".join(f"count(*) FILTER ({quoted('side')} = {side}) AS {name}" for side, name in ((OLDER, "older"), (NEWER, "newer")))
    query = f"SELECT {counts} FROM {{table}} GROUP BY bin ORDER BY older DESC, bin LIMIT {MAX_VALUES}"  # noqa: S608 - numbers and own names
    frequent = view.query(query, {"bin": values, "side": arrow_of(sides, pa.int8())})
    older, newer = ([int(row[side]) for row in frequent] for side in (OLDER, NEWER))
    return {"psi": stability_index([*older, num_rows[OLDER] - sum(older)], [*newer, num_rows[NEWER] - sum(newer)])}


class _Side(NamedTuple):
    """The older or the newer rows' values of a number column."""

    finite: Numbers
    """Rising."""
    num_nan: int
    num_below: int
    """Minus infinity."""
    num_above: int

    @classmethod
    def of(cls, values: Numbers) -> _Side:
        is_finite = np.isfinite(values)
        finite, others = np.sort(values[is_finite]), values[~is_finite]
        num_nan, num_below = int(np.count_nonzero(np.isnan(others))), int(np.count_nonzero(others < 0))
        return cls(finite, num_nan, num_below, len(others) - num_nan - num_below)

    def deciles(self) -> Numbers:
        """Return the upper ends of all bins but the last, rising; equal ones of a lumpy column collapse into one."""
        count = len(self.finite)
        if not count:
            return self.finite
        return np.unique(self.finite[[max(1, -(-count * number // NUM_BINS)) - 1 for number in range(1, NUM_BINS)]])

    def counts(self, edges: Numbers) -> list[int]:
        """Return the number of values in each bin, NaN's first; without edges there is one bin, of all values."""
        if not len(edges):
            return [len(self.finite) + self.num_nan + self.num_below + self.num_above]
        bounds = [0, *np.searchsorted(self.finite, edges, side="right").tolist(), len(self.finite)]
        inside = [after - before for before, after in itertools.pairwise(bounds)]
        inside[0] += self.num_below
        inside[-1] += self.num_above
        return [self.num_nan, *inside]
