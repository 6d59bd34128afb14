"""Partitions of files: the folder of an hour, a day or a month below a table's place, and the time that it is of.

Names are those of the wall clock in the pipeline's time zone. An hour that comes twice is one partition of two hours, complete when the
second is over; an hour that is left out has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from typing import Final
from zoneinfo import ZoneInfo


class Grain(StrEnum):
    """The time that one partition is of."""

    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition: rows with event times in [start, end), both in UTC."""

    name: str
    """`2026-01`, `2026-01-31` or `2026-01-31T06`; names of one grain sort by time."""
    start: datetime
    end: datetime


PARTS: Final[Mapping[str, str]] = {
    "{date}": "%Y-%m-%d",
    "{month}": "%Y-%m",
    "{hour}": "%H",
    "%Y": "%Y",
    "%m": "%m",
    "%d": "%d",
    "%H": "%H",
}
"""Placeholders of a folder, and what they stand for in terms of `strftime`."""
FORMS: Final[Mapping[Grain, str]] = {Grain.HOUR: "%Y-%m-%dT%H", Grain.DAY: "%Y-%m-%d", Grain.MONTH: "%Y-%m"}
_PLACEHOLDER: Final = re.compile("|".join(re.escape(part) for part in PARTS))
_NEEDED: Final[Mapping[Grain, tuple[str, ...]]] = {
    Grain.HOUR: ("%Y", "%m", "%d", "%H"),
    Grain.DAY: ("%Y", "%m", "%d"),
    Grain.MONTH: ("%Y", "%m"),
}


def grain_of(partition: str) -> Grain | None:
    """Return the finest time that a folder names; None for one without a placeholder."""
    given = _given(partition)
    return next((grain for grain, unit in ((Grain.HOUR, "%H"), (Grain.DAY, "%d"), (Grain.MONTH, "%m")) if unit in given), None)


def partition_fault(partition: str) -> str:
    """Return what is wrong with the folder of one partition, or nothing."""
    given, grain = _given(partition), grain_of(partition)
    if grain is None:
        return "has {date} 0 times, it needs it once"
    twice = sorted({unit for unit in given if given.count(unit) > 1})
    if twice:
        return f"has {'{date}' if partition.count('{date}') > 1 else twice[0]} {max(map(given.count, twice))} times, it needs it once"
    missing = [unit for unit in _NEEDED[grain] if unit not in given]
    if missing:
        return f"names {article(grain)} and lacks {', '.join(missing)}"
    rest = _PLACEHOLDER.sub("", partition)
    if partition.startswith("/") or "//" in partition or ".." in partition.split("/") or not re.fullmatch(r"[A-Za-z0-9_.=/-]*", rest):
        return "is not a folder below uri"
    return ""


def article(grain: Grain) -> str:
    return f"{'an' if grain is Grain.HOUR else 'a'} {grain}"


def folder_of(partition: str, name: str) -> str:
    """Return the folder of the partition called `name`, below the table's place."""
    grain = next(grain for grain, form in FORMS.items() if len(name) == len(datetime(2000, 1, 1).strftime(form)))
    moment = datetime.strptime(name, FORMS[grain])
    return _PLACEHOLDER.sub(lambda found: moment.strftime(PARTS[found[0]]), partition)


def bounds_of(name: str, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """Return [start, end) of the partition called `name`, in UTC."""
    if len(name) > len("2026-01-31"):
        moment = datetime.fromisoformat(f"{name}:00").replace(tzinfo=zone)
        # From an hour that is surely after both of its comings.
        later = moment.replace(fold=1).astimezone(UTC) + timedelta(hours=3)
        found = next(part for part in _backwards(Grain.HOUR, zone, later) if part.name <= name)
        return found.start, found.end
    if len(name) == len("2026-01"):
        first = date.fromisoformat(f"{name}-01")
        return _midnight(first, zone), _midnight((first + timedelta(days=31)).replace(day=1), zone)
    day = date.fromisoformat(name)
    return _midnight(day, zone), _midnight(day + timedelta(days=1), zone)


def partitions_until(grain: Grain, zone: ZoneInfo, until: datetime, *, length: timedelta) -> list[Partition]:
    """Return the partitions that are over at `until`, the oldest first: as many of the last as have this length together, or more."""
    found: list[Partition] = []
    for part in _backwards(grain, zone, until):
        found.append(part)
        if found[0].end - part.start >= length:
            break
    return found[::-1]


def partitions_between(grain: Grain, zone: ZoneInfo, start: datetime, last: datetime, until: datetime) -> list[Partition]:
    """Return the partitions that have a part of [start, last] and are over at `until`, the oldest first."""
    found = []
    for part in _backwards(grain, zone, until):
        if part.end <= start:
            break
        if part.start <= last:
            found.append(part)
    return found[::-1]


def _given(partition: str) -> list[str]:
    return [unit for found in _PLACEHOLDER.findall(partition) for unit in re.findall(r"%[A-Za-z]", PARTS[found])]


def _backwards(grain: Grain, zone: ZoneInfo, until: datetime) -> Iterator[Partition]:
    """Yield the partitions that are over at `until`, the newest first, without end."""
    begin = _begin(grain, zone, until.astimezone(UTC))
    name = _name(grain, zone, begin)
    # The first one is not over, and neither is an hour whose second coming has begun.
    current, pending = name, None
    while True:
        end, begin = begin, _begin(grain, zone, begin - timedelta(microseconds=1))
        name = _name(grain, zone, begin)
        if name == current:
            continue
        if pending is not None and pending.name == name:
            pending = Partition(name, begin, pending.end)
            continue
        if pending is not None:
            yield pending
        pending = Partition(name, begin, end)


def _begin(grain: Grain, zone: ZoneInfo, moment: datetime) -> datetime:
    """Return when the time of this grain began that `moment` is in, in UTC."""
    local = moment.astimezone(zone)
    if grain is Grain.HOUR:
        return local.replace(minute=0, second=0, microsecond=0).astimezone(UTC)
    return _midnight(local.date() if grain is Grain.DAY else local.date().replace(day=1), zone)


def _name(grain: Grain, zone: ZoneInfo, moment: datetime) -> str:
    return moment.astimezone(zone).strftime(FORMS[grain])


def _midnight(day: date, zone: ZoneInfo) -> datetime:
    """Return the first instant of `day`, in UTC; where the clock skips midnight, that is later."""
    return datetime.combine(day, time(), tzinfo=zone).astimezone(UTC)
