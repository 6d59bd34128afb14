"""The numbers of a report's columns, each column in memory once: for drift, for the checks of completeness, and for a suite."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from training.data.validation.drift import Sides, can_drift, number_drift, sides_of, value_drift
from training.data.validation.results import ColumnStatistics
from training.data.validation.snapshot_view import NUMBERS, TableView, numpy_of, valid_of
from training.data.validation.suites import SuiteJudge


def profile(view: TableView, span_us: tuple[int, int], judge: SuiteJudge | None = None) -> dict[str, ColumnStatistics]:
    """Read each sound column once; return its statistics, and pass it to `judge`.

    The event time, the keys and what a suite compares with other columns stay in memory (`TableView.release`).

    Args:
        span_us: begin and end of the window, in microseconds since 1970.

    Returns:
        By column: rows, nulls (NaN is one), infinite, minimum, maximum, for numbers mean and deviation, for what can drift `psi`
        and, of numbers, `mean_shift`.
    """
    sound = view.sound_columns()
    held = {view.contract.event_time, *view.contract.key, *(judge.compared if judge else ())}
    view.hold(name for name in sound if name in held)
    event_time = view.contract.event_time
    sides = sides_of(view.column(event_time), span_us) if event_time in sound and event_time else None
    statistics: dict[str, ColumnStatistics] = {}
    for names in view.groups():
        statistics |= _profile_group(view, names, sides, judge)
    return statistics


def _profile_group(view: TableView, names: list[str], sides: Sides | None, judge: SuiteJudge | None) -> dict[str, ColumnStatistics]:
    """Return the statistics of some columns, which are in memory only until it returns."""
    columns = {name: view.column(name) for name in names}
    statistics = {name: _describe(view, name, values, sides) for name, values in columns.items()}
    if judge:
        judge.judge(columns)
    return statistics


def _describe(view: TableView, column: str, values: pa.ChunkedArray, sides: Sides | None) -> ColumnStatistics:
    if view.contract.types[column] in NUMBERS:
        return _describe_numbers(view, column, values, sides)
    query = "SELECT CAST(min(bin) AS VARCHAR), CAST(max(bin) AS VARCHAR) FROM {table}"
    minimum, maximum = view.query(query, {"bin": values})[0]
    found: ColumnStatistics = {"rows": len(values), "nulls": values.null_count, "infinite": 0, "minimum": minimum, "maximum": maximum}
    if sides is None or not can_drift(view, column, found):
        return found
    return {**found, **value_drift(view, values, sides)}


def _describe_numbers(view: TableView, column: str, values: pa.ChunkedArray, sides: Sides | None) -> ColumnStatistics:
    stored = numpy_of(values.drop_null())
    numbers = stored.astype(np.float64, copy=False)
    is_finite = np.isfinite(numbers)
    is_whole = bool(is_finite.all())
    finite, exact = (numbers, stored) if is_whole else (numbers[is_finite], stored[is_finite])
    num_nan = 0 if is_whole else int(np.count_nonzero(np.isnan(numbers)))
    with np.errstate(over="ignore", invalid="ignore"):
        mean, deviation = _moments(finite)
        found: ColumnStatistics = {
            "rows": len(values),
            "nulls": values.null_count + num_nan,
            "infinite": len(numbers) - len(finite) - num_nan,
            # Of the stored values: an integer of 64 bits may be no double.
            "minimum": exact.min().item() if len(exact) else None,
            "maximum": exact.max().item() if len(exact) else None,
            "mean": mean,
            "deviation": deviation,
        }
        if sides is None or not can_drift(view, column, found):
            return found
        return {**found, **number_drift(numbers, sides[valid_of(values)] if values.null_count else sides)}


def _moments(values: npt.NDArray[np.float64]) -> tuple[float | None, float | None]:
    """Return mean and deviation; None without values."""
    if not len(values):
        return None, None
    # Differences to any of the values are exact, or nearly so, where all are large and close to each other: identifiers, epochs.
    base = values[0]
    differences = values - base
    return float(base + np.mean(differences)), float(np.std(differences))
