"""Labels as they were known over time, and the forecasts of a series that need no training: the last value and the seasonal naive.

A label is known from its event time on, or from `data.label.known_at` where that is later. A row's decision is made `decision_lead`
before its event time, and no label that is known later than that is ever used for it. For a series, a window over the label can say that
it is known later. Methods: Hyndman and Athanasopoulos, "Forecasting: Principles and Practice", 3rd edition, 5.2 (naive and seasonal
naive).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from typing import Any, Final, Self
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd

from training.data.dataset.scratch_arrays import slices_of
from training.evaluation.raw_rows import Columns, Floats, Ints
from training.spec import PipelineSpec
from training.spec.sections.data import Data
from training.spec.sections.windows import Window

DAY_US: Final = 86_400_000_000
NULL: Final = np.iinfo(np.int64).min
"""Of an instant that is missing."""
FOREVER: Final = 2**62
MIN_ROWS_OF_AN_ENTITY: Final = 3
"""On average; fewer make no series."""
MIN_ON_GRID: Final = 0.9
"""Share of the gaps between an entity's successive rows that must be whole multiples of the step."""
MIN_STEPS: Final = 0.5
"""Share of those gaps that must be exactly one step."""
MAX_SEASONS: Final = 1000
"""That are tried for a row: a season of a second over months would be millions, and each is a pass over the rows."""


@dataclass(frozen=True, kw_only=True)
class History:
    """All rows of a dataset, in any order. Instants are microseconds since 1970, UTC."""

    frame: Columns
    """[n] raw rows."""
    key: tuple[str, ...]
    """Columns that name the entity of a row: the source's key without the event time."""
    window: Window | None
    """Over the label: which labels follow each other, and when each is known. None: there is none."""
    labels: Floats
    """[n]"""
    event_us: Ints
    """[n]"""
    known_us: Ints
    """[n], never before the event."""
    decision_us: Ints
    """[n], never after the event."""
    zone: ZoneInfo
    """Of the calendar in which seasons of whole days are counted."""

    @classmethod
    def of(cls, spec: PipelineSpec, frame: Columns, labels: Floats, event_us: Ints | None = None) -> Self:
        """Read the times of [n] raw rows; `event_us`, where it is known already."""
        source, known_at = spec.data.source, spec.data.label.known_at
        if event_us is None:
            event_us = _instants(frame[source.event_time])
        known_us = event_us if known_at is None else np.maximum(event_us, _instants(frame[known_at]))
        lead_us = source.decision_lead // timedelta(microseconds=1)
        return cls(
            frame=frame,
            key=tuple(name for name in source.key if name != source.event_time),
            window=_label_window(spec.data),
            labels=labels,
            event_us=event_us,
            known_us=known_us,
            # Shared where it is the same: 8 bytes per row of the dataset.
            decision_us=event_us - lead_us if lead_us else event_us,
            zone=ZoneInfo(spec.timezone),
        )

    @cached_property
    def entity(self) -> Ints:
        """[n] a number for each value of the key; read when it is needed, which is for a series alone."""
        return numbers_of(self.frame, self.key, len(self.labels))

    @cached_property
    def series(self) -> Self | None:
        """The same rows as series: by the key where it has a step, else as the window over the label divides them; None: they are none."""
        if self.window is None:
            return None if self.step_us is None else self
        known_us = np.maximum(self.known_us, self.event_us + (self.window.available_after or timedelta()) // timedelta(microseconds=1))
        if self.window.known_at is not None:
            instants = _instants(self.frame[self.window.known_at])
            # A null instant: never.
            known_us = np.where(instants == NULL, FOREVER, np.maximum(known_us, instants))
        # With an id as the key, each row is an entity of its own.
        key = self.key if self.step_us is not None else tuple(self.window.by or ())
        return replace(self, key=key, known_us=known_us)

    def known_at_first_decision(self, rows: Ints, target: Ints) -> Ints:
        """Return those of `rows` whose label was known when the first of `target` was decided: what a constant may be fitted on."""
        first_us = min(self.decision_us[target[part]].min() for part in slices_of(len(target)))
        known = [self.known_us[rows[part]] <= first_us for part in slices_of(len(rows))]
        if all(part.all() for part in known):
            return rows
        return np.asarray(rows[np.concatenate([np.empty(0, dtype=bool), *known])])

    @cached_property
    def step_us(self) -> int | None:
        """Return the step of the series, None where the rows are none: each entity must have rows at regular instants, gaps allowed.

        Most gaps between successive rows of an entity must be one step, and nearly all a multiple of it: in UTC, or on the clock of the
        time zone (a daily series is 23 or 25 hours apart where the clock changes).
        """
        if len(self.labels) < MIN_ROWS_OF_AN_ENTITY * (int(self.entity.max(initial=-1)) + 1):
            return None
        order = np.lexsort((self.event_us, self.entity))
        same = self.entity[order][1:] == self.entity[order][:-1]
        for clock in (self.event_us, self._wall_us(self.event_us)):
            gaps = np.diff(clock[order])[same]
            gaps = gaps[gaps > 0]
            if not len(gaps):
                continue
            values, counts = np.unique(gaps, return_counts=True)
            step = int(values[counts.argmax()])
            if (gaps == step).mean() >= MIN_STEPS and (gaps % step == 0).mean() >= MIN_ON_GRID:
                return step
        return None

    def last_value(self, target: Ints) -> Floats:
        """Return for each row of `target` the newest label of its entity that was known at its decision; NaN without one."""
        # Each entity's rows as their labels become known; a query stands behind what was known by then, and before its own event.
        num = len(self.labels)
        when = np.concatenate([self.known_us, self.decision_us[target]])
        event = np.concatenate([self.event_us, self.event_us[target]])
        entity = np.concatenate([self.entity, self.entity[target]])
        is_row = np.arange(len(when)) < num
        order = np.lexsort((is_row, event, when, entity))
        # The newest row so far: by rank, which rises from entity to entity.
        by_event = np.lexsort((self.event_us, self.entity))
        rank = np.empty(num, dtype=np.int64)
        rank[by_event] = np.arange(num)
        newest = np.maximum.accumulate(np.where(is_row[order], rank[np.minimum(order, num - 1)], -1))
        of_query = np.empty(len(target), dtype=np.int64)
        queries = ~is_row[order]
        of_query[order[queries] - num] = newest[queries]
        row = by_event[np.maximum(of_query, 0)]
        is_known = (of_query >= 0) & (self.entity[row] == self.entity[target])
        return np.where(is_known, self.labels[row], np.nan)

    def seasonal(self, target: Ints, season: timedelta) -> Floats:
        """Return for each row of `target` the label of its entity one season before, or the fewest seasons at which it was known.

        Seasons of whole days are counted on the clock of the time zone: half past two stays half past two where the clock changes, and an
        instant that a day does not have is a gap. NaN without a value.
        """
        season_us = season // timedelta(microseconds=1)
        times, at = np.unique(self.event_us, return_inverse=True)
        keys = self.entity * len(times) + at
        order = np.argsort(keys, kind="stable")
        ordered = keys[order]
        found = np.full(len(target), np.nan)
        open_rows = np.arange(len(target))
        delay_us = int((self.event_us - self.decision_us).min() + (self.known_us - self.event_us).min())
        # The clock may change by an hour or two between the two instants.
        first = max(1, (delay_us - DAY_US // 8) // season_us)
        last = min(int((self.event_us[target].max() - times[0]) // season_us) + 1, first + MAX_SEASONS - 1)
        for count in range(first, last + 1):
            if not len(open_rows):
                break
            rows = target[open_rows]
            needed, of_needed = np.unique(at[rows], return_inverse=True)
            wanted = self._back(times[needed], count * season_us)[of_needed]
            place = np.minimum(np.searchsorted(times, wanted), len(times) - 1)
            key = self.entity[rows] * len(times) + place
            position = np.minimum(np.searchsorted(ordered, key), len(ordered) - 1)
            source = order[position]
            is_there = (times[place] == wanted) & (ordered[position] == key)
            is_there &= (self.known_us[source] <= self.decision_us[rows]) & (self.event_us[source] < self.event_us[rows])
            found[open_rows[is_there]] = self.labels[source[is_there]]
            open_rows = open_rows[~is_there]
        return found

    def _back(self, instants: Ints, duration_us: int) -> Ints:
        """Return instants so long before, whole days by the clock of the zone; the smallest integer where there is no such instant."""
        if duration_us % DAY_US:
            return instants - duration_us
        wall = pd.DatetimeIndex((self._wall_us(instants) - duration_us).view("datetime64[us]"))
        # An hour that a day has twice counts as the first.
        local = wall.tz_localize(self.zone, ambiguous=np.ones(len(wall), dtype=bool), nonexistent="NaT")
        return _naive_us(local.tz_convert("UTC").tz_localize(None))

    def _wall_us(self, instants: Ints) -> Ints:
        """Return what the clock of the zone shows, as if it were UTC."""
        utc = pd.DatetimeIndex(instants.view("datetime64[us]"), tz="UTC")
        return _naive_us(utc.tz_convert(self.zone).tz_localize(None))


def _label_window(data: Data) -> Window | None:
    """Return the window over the label, of several the first lag."""
    own = [window for window in data.windows.values() if data.table_of(window) is None and window.column == data.label.column]
    return next((window for window in own if window.kind == "lag"), own[0] if own else None)


def numbers_of(frame: Columns, columns: Sequence[str], num_rows: int) -> Ints:
    """Return [n] a dense number for each combination of values of `columns`; 0 for all rows where there are no columns."""
    if not columns:
        return np.zeros(num_rows, dtype=np.int64)
    if len(columns) == 1:
        return pd.factorize(frame[columns[0]], use_na_sentinel=False)[0].astype(np.int64, copy=False)
    table = pd.DataFrame({name: frame[name] for name in columns})
    found = table.groupby(list(columns), sort=False, dropna=False, observed=True).ngroup()
    return np.asarray(found.to_numpy(), dtype=np.int64)


def _instants(column: pd.Series[Any]) -> Ints:
    return np.asarray(column.to_numpy(dtype="datetime64[us]").view(np.int64))


def _naive_us(index: pd.DatetimeIndex) -> Ints:
    return np.asarray(index.to_numpy().astype("datetime64[us]").view(np.int64))
