"""The numbers of a report's columns, in one pass of the rows: for drift, for the checks of completeness, and for a suite."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from training.validation.columns.numbers import NEITHER, NumberColumn, Sides
from training.validation.columns.values import ValueColumn, count_values
from training.validation.drift.within_snapshot import FREQUENT_VALUES, cut_of, number_drift, value_drift
from training.validation.results import ColumnStatistics
from training.validation.snapshot_view import NUMBERS, TableView, groups_of, numpy_of, valid_of

TIMES: Final = frozenset({"date", "timestamp"})


@dataclass(frozen=True, kw_only=True)
class ColumnProfile:
    """What one pass found of a column."""

    statistics: ColumnStatistics
    numbers: NumberColumn | None = None
    values: ValueColumn | None = None
    """Of texts and truth values."""


def profile(view: TableView, span_us: tuple[int, int], named: Mapping[str, Collection[str]] | None = None) -> dict[str, ColumnProfile]:
    """Return the profile of each sound column, in their order; in memory are a chunk of rows, and what DuckDB's limit allows.

    The statistics are rows, nulls (NaN is one), infinite, minimum, maximum, for numbers mean and deviation, for what can drift `psi`
    and, of numbers, `mean_shift`.

    Args:
        span_us: begin and end of the window, in microseconds since 1970.
        named: column to values whose rows are wanted, however few they are.
    """
    cut_us = None if view.sound_event_time is None else cut_of(span_us)
    kinds = {name: view.contract.types[name] for name in view.sound_columns()}
    found: dict[str, ColumnProfile] = {}
    for names in groups_of([name for name, kind in kinds.items() if kind in NUMBERS]):
        found |= _profile_numbers(view, names, cut_us)
    for names in groups_of([name for name, kind in kinds.items() if kind in TIMES]):
        found |= _profile_times(view, names)
    for name in kinds.keys() - found.keys():
        found[name] = _profile_values(view, name, cut_us, named=(named or {}).get(name, ()))
    return {name: found[name] for name in kinds}


def can_drift(view: TableView, column: str, statistics: ColumnStatistics) -> bool:
    """Return whether a column is anything but a key, a time or a constant."""
    if column in view.contract.key or view.contract.types[column] in TIMES:
        return False
    return bool(statistics["minimum"] != statistics["maximum"])


def _profile_numbers(view: TableView, names: list[str], cut_us: int | None) -> dict[str, ColumnProfile]:
    columns = {name: NumberColumn(view.contract.types[name]) for name in names}
    event_time = view.sound_event_time if cut_us is not None else None
    for chunk in view.chunks(dict.fromkeys([*names, *([event_time] if event_time else [])])):
        sides = None if event_time is None or cut_us is None else _sides(chunk.column(event_time), cut_us)
        for name, column in columns.items():
            column.add(chunk.column(name), sides)
    return {name: ColumnProfile(statistics=_of_numbers(view, name, column), numbers=column) for name, column in columns.items()}


def _sides(event_time: pa.ChunkedArray, cut_us: int) -> Sides:
    """Return for each row whether it is older or newer, or neither where the event time is null."""
    if not event_time.null_count:
        return (numpy_of(event_time.cast(pa.int64())) >= cut_us).astype(np.int8)
    sides = np.full(len(event_time), NEITHER, dtype=np.int8)
    sides[valid_of(event_time)] = numpy_of(event_time.drop_null().cast(pa.int64())) >= cut_us
    return sides


def _of_numbers(view: TableView, name: str, column: NumberColumn) -> ColumnStatistics:
    whole = column.total
    has_values = whole.moments.count > 0
    found: ColumnStatistics = {
        "rows": column.num_rows,
        "nulls": column.num_null + whole.num_nan,
        "infinite": whole.num_below + whole.num_above,
        "minimum": column.minimum,
        "maximum": column.maximum,
        "mean": whole.moments.mean if has_values else None,
        "deviation": whole.moments.deviation if has_values else None,
    }
    return {**found, **number_drift(column)} if can_drift(view, name, found) else found


def _profile_times(view: TableView, names: list[str]) -> dict[str, ColumnProfile]:
    rows = 0
    nulls = dict.fromkeys(names, 0)
    bounds: dict[str, list[pa.Scalar]] = {name: [] for name in names}
    for chunk in view.chunks(names):
        rows += chunk.num_rows
        for name in names:
            values = chunk.column(name)
            nulls[name] += values.null_count
            extremes = pc.min_max(values)
            bounds[name] = _extremes([*bounds[name], extremes["min"], extremes["max"]])
    return {
        name: ColumnProfile(
            statistics={"rows": rows, "nulls": nulls[name], "infinite": 0, "minimum": minimum, "maximum": maximum},
        )
        for name in names
        for minimum, maximum in [_texts(view, bounds[name])]
    }


def _extremes(values: list[pa.Scalar]) -> list[pa.Scalar]:
    known = [value for value in values if value.is_valid]
    return sorted(known, key=lambda value: value.value)[:: max(1, len(known) - 1)]


def _texts(view: TableView, bounds: list[pa.Scalar]) -> tuple[str | None, str | None]:
    """Return the least and the greatest time as DuckDB writes them."""
    if not bounds:
        return None, None
    # As numbers: `pa.array` would import pandas.
    times = [f"DATE '1970-01-01' + {b.value}" if pa.types.is_date(b.type) else f"make_timestamptz({b.value})" for b in bounds]
    texts = [f"coalesce(TRY(CAST({time} AS VARCHAR)), '{b.value} {_unit(b)} since 1970')" for time, b in zip(times, bounds, strict=True)]
    found = view.connection.execute(f"SELECT {', '.join(texts)}").fetchall()[0]
    return found[0], found[-1]


def _unit(bound: pa.Scalar) -> str:
    """Return the unit of a time beyond those that DuckDB has."""
    return "days" if pa.types.is_date(bound.type) else "microseconds"


def _profile_values(view: TableView, name: str, cut_us: int | None, named: Collection[str]) -> ColumnProfile:
    column = count_values(view, name, cut_us=cut_us, num_by_older=FREQUENT_VALUES, named=named)
    found: ColumnStatistics = {
        "rows": column.num_rows,
        "nulls": column.num_null,
        "infinite": 0,
        "minimum": column.minimum,
        "maximum": column.maximum,
    }
    statistics: ColumnStatistics = {**found, **value_drift(column)} if can_drift(view, name, found) else found
    return ColumnProfile(statistics=statistics, values=column)
