"""Times of a clock as instants: the hour that a clock shows twice, and the one that it never shows.

Where a clock is changed is Python's `zoneinfo`. Nothing is chosen without a word: what the YAML does not settle is refused with counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from training.errors import DataError, shown

Microseconds = NDArray[np.int64]
DAY_US: Final = 86_400_000_000
AROUND_US: Final = DAY_US // 8
"""How far from the hour that a clock shows twice rows show whether the times of a file rise."""
EPOCH: Final = datetime(1970, 1, 1)
FIRST_DAY, LAST_DAY = (datetime(1, 1, 3) - EPOCH).days, (datetime(9999, 12, 29) - EPOCH).days


@dataclass(frozen=True, slots=True)
class ClockChange:
    """One change of a clock. It shows the times in [start_us, end_us) twice, or never; microseconds of the clock since 1970."""

    start_us: int
    end_us: int
    before_us: int
    """What the clock is ahead of UTC before the change."""
    after_us: int
    words: str

    @property
    def is_twice(self) -> bool:
        return self.after_us < self.before_us


def changes_of(local_us: Microseconds, zone: str) -> list[ClockChange]:
    """Return the changes of a zone's clock on days of these times or next to them, in order."""
    place = ZoneInfo(zone)
    days = np.clip(np.unique(local_us // DAY_US), FIRST_DAY, LAST_DAY)
    found = (_change(place, int(day)) for day in days)
    return list(dict.fromkeys(change for change in found if change is not None))


def _change(place: ZoneInfo, day: int) -> ClockChange | None:
    """Return the change within a day of a day, None where the clock goes on alike."""
    low, high = ((EPOCH + timedelta(days=day + days)).replace(tzinfo=UTC) for days in (-1, 2))
    if _ahead(place, low) == _ahead(place, high):
        return None
    before, after = low.astimezone(place), high.astimezone(place)
    while high - low > timedelta(seconds=1):
        middle = low + (high - low) // 2
        middle = middle.replace(microsecond=0)
        if middle.astimezone(place).utcoffset() == before.utcoffset():
            low = middle
        else:
            high, after = middle, middle.astimezone(place)
    before, old, new = low.astimezone(place), _ahead(place, low), _ahead(place, high)
    turn = (high.replace(tzinfo=None) - EPOCH) // timedelta(microseconds=1)
    start, end = sorted((turn + old, turn + new))
    goes = "back" if new < old else "forward"
    was, shows = (f"{high.replace(tzinfo=None) + timedelta(microseconds=ahead):%Y-%m-%d %H:%M}" for ahead in (old, new))
    words = f"at {was} {before.tzname()} the clock of {place.key} goes {goes} to {shows} {after.tzname()}"
    return ClockChange(start, end, old, new, words)


def _ahead(place: ZoneInfo, moment: datetime) -> int:
    return (moment.astimezone(place).utcoffset() or timedelta()) // timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class LocalTimes:
    """Times of a clock: of n rows, in the order of the file."""

    local_us: Microseconds
    """[n] microseconds of the clock since 1970; of a missing time anything."""
    ahead_us: Microseconds
    """[n] what the clock is ahead of UTC: before the change for a time that it shows twice or never."""
    known: NDArray[np.bool_]
    """[n] whether there is a time."""
    rows: Sequence[tuple[ClockChange, NDArray[np.int64]]]
    """Changes that rows fall into, and the rows."""

    @property
    def twice(self) -> list[tuple[ClockChange, NDArray[np.int64]]]:
        return [(change, rows) for change, rows in self.rows if change.is_twice]

    @property
    def never(self) -> list[tuple[ClockChange, NDArray[np.int64]]]:
        return [(change, rows) for change, rows in self.rows if not change.is_twice]


def on_clock(local_us: Microseconds, known: NDArray[np.bool_], zone: str) -> LocalTimes:
    """Look times up on the clock of a zone.

    Args:
        local_us: [n] microseconds of the clock since 1970.
        known: [n] whether there is a time.
    """
    place = ZoneInfo(zone)
    days, inverse = np.unique(np.clip(local_us // DAY_US, FIRST_DAY, LAST_DAY), return_inverse=True)
    noons = ((EPOCH + timedelta(days=int(day), hours=12)).replace(tzinfo=place) for day in days)
    by_day = np.fromiter(((noon.utcoffset() or timedelta()) // timedelta(microseconds=1) for noon in noons), np.int64, len(days))
    ahead_us, rows = by_day[inverse.reshape(-1)], []
    for change in changes_of(local_us[known], zone):
        near = (local_us >= change.start_us - DAY_US) & (local_us < change.end_us + DAY_US)
        ahead_us[near] = np.where(local_us[near] < change.end_us, change.before_us, change.after_us)
        found = np.flatnonzero(known & (local_us >= change.start_us) & (local_us < change.end_us))
        rows += [(change, found)] if len(found) else []
    return LocalTimes(local_us, ahead_us, known, rows)


def second_in_order(times: Microseconds, groups: Sequence[object], change: ClockChange) -> NDArray[np.bool_] | None:
    """Return which rows, in the file's order, are of the second of the two hours; None where the order does not say.

    Within a group, times rise up to the change of the clock, fall once, and rise again; of one row an hour, two equal times are both. Rows
    before and after the hour show that times rise.

    Args:
        times: [n] of rows in the hour that the clock shows twice, or within AROUND_US of it; microseconds of the clock.
        groups: [n] what each row belongs to.
    """
    # 0 before the hour, 1 in it, 2 after it.
    place = (times >= change.start_us).astype(np.int8) + (times >= change.end_us)
    second = np.zeros(len(times), dtype=bool)
    members: dict[object, list[int]] = {}
    for row, group in enumerate(groups):
        members.setdefault(group, []).append(row)
    for every in members.values():
        rows = [row for row in every if place[row] == 1]
        if not rows:
            continue
        if (np.diff(place[every]) < 0).any():
            return None
        steps = np.diff(times[rows])
        falls = np.flatnonzero(steps < 0)
        falls = falls if len(falls) else np.flatnonzero(steps == 0)
        if len(falls) != 1:
            return None
        second[rows[falls[0] + 1 :]] = True
    return second


@dataclass(frozen=True, slots=True)
class ClockRules:
    """What a YAML says of times that the clock shows twice or never."""

    twice: str | None
    """first, second or in_order; None: they are refused."""
    by: Sequence[str] = ()
    """Columns of the series whose rows are in order."""
    is_shifted: bool = False
    """Whether a time that the clock never shows is moved forward by the change; False: it is refused."""


def instants_of(times: LocalTimes, rules: ClockRules, table: pa.Table, *, where: str) -> Microseconds:
    """Return [n] microseconds since 1970 in UTC.

    Args:
        table: with the columns of `rules.by`.
        where: the column and its file, for messages.

    Raises:
        DataError: `clock.twice`, `clock.missing`: the rules do not settle a time.
    """
    if times.never and not rules.is_shifted:
        hint = "correct the times, or write missing: shift, which moves them forward by the change"
        raise _refused("clock.missing", "never shown", times.never, times, where, hint)
    if times.twice and rules.twice is None:
        hint = "say which: twice: first, second or in_order (with the columns of a series in `by`); or write times with an offset"
        raise _refused("clock.twice", "shown twice", times.twice, times, where, hint)
    ahead_us = times.ahead_us.copy()
    for change, rows in times.twice:
        if rules.twice != "in_order":
            ahead_us[rows] = change.after_us if rules.twice == "second" else change.before_us
            continue
        is_near = (times.local_us >= change.start_us - AROUND_US) & (times.local_us < change.end_us + AROUND_US)
        around = np.flatnonzero(times.known & is_near)
        groups = list(zip(*(table[name].take(pa.array(around)).to_pylist() for name in rules.by), strict=True)) or [()] * len(around)
        second = second_in_order(times.local_us[around], groups, change)
        if second is None:
            hint = "put each file in the order of time; name the columns of the series in `by`; or write twice: first, or twice: second"
            raise _refused("clock.twice", "shown twice, and the file's order does not say which", [(change, rows)], times, where, hint)
        ahead_us[around[second]] = change.after_us
    return times.local_us - ahead_us


def _refused(
    code: str, what: str, found: Sequence[tuple[ClockChange, NDArray[np.int64]]], times: LocalTimes, where: str, hint: str
) -> DataError:
    change, rows = found[0]
    first = EPOCH + timedelta(microseconds=int(times.local_us[rows[0]]))
    count = sum(len(each) for _change, each in found)
    more = f", and {len(found) - 1} more changes" if len(found) > 1 else ""
    counted = f"{count:,} time{'s' if count > 1 else ''}"
    message = f"{where}: {counted} {what}, the first {shown(str(first))} in row {rows[0] + 1:,}: {change.words}{more}"
    return DataError(code, message, hint=hint)
