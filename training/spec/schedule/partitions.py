"""Partitions of files: the folder of an hour, a day or a month below a table's place, the time that it is of, and values in its path.

Names are those of the wall clock in the pipeline's time zone. An hour that comes twice is one partition of two hours, complete when the
second is over; an hour that is left out has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Final
from urllib.parse import unquote
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
    "%-m": "%-m",
    "%-d": "%-d",
    "%-H": "%-H",
}
"""Placeholders of the time of a folder, and what they stand for in terms of `strftime`."""
PATTERNS: Final[Mapping[str, str]] = {
    "{date}": r"(?P<Y>\d{4})-(?P<m>\d\d)-(?P<d>\d\d)",
    "{month}": r"(?P<Y>\d{4})-(?P<m>\d\d)",
    "{hour}": r"(?P<H>\d\d)",
    **{"%Y": r"(?P<Y>\d{4})", "%m": r"(?P<m>\d\d)", "%d": r"(?P<d>\d\d)", "%H": r"(?P<H>\d\d)"},
    **{f"%-{unit}": rf"(?P<{unit}>[1-9]\d|\d)" for unit in "mdH"},
}
UNPADDED: Final[Mapping[str, str]] = {"{hour}": "%-H"} | {f"%{unit}": f"%-{unit}" for unit in "mdH"}
UNPADDED_DATES: Final[Mapping[str, str]] = {**UNPADDED, "{date}": "%Y-%-m-%-d", "{month}": "%Y-%-m"}
PADDED: Final[Mapping[str, str]] = {f"%-{unit}": f"%{unit}" for unit in "mdH"}
NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"
"""What Hive and Spark call the folder of a missing value."""
FORMS: Final[Mapping[Grain, str]] = {Grain.HOUR: "%Y-%m-%dT%H", Grain.DAY: "%Y-%m-%d", Grain.MONTH: "%Y-%m"}
TIME: Final = re.compile("|".join(re.escape(part) for part in PARTS))
PLACEHOLDER: Final = re.compile(TIME.pattern + r"|\{[A-Za-z_][A-Za-z0-9_]*\}")
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
    if len(set(names_in(partition))) < len(names_in(partition)):
        return "names the value of one column twice"
    missing = [unit for unit in _NEEDED[grain] if unit not in given]
    if missing:
        return f"names {article(grain)} and lacks {', '.join(missing)}"
    rest = PLACEHOLDER.sub("", partition)
    if partition.startswith("/") or "//" in partition or ".." in partition.split("/") or not re.fullmatch(r"[A-Za-z0-9_.=/-]*", rest):
        return "is not a folder below uri"
    return ""


def article(grain: Grain) -> str:
    return f"{'an' if grain is Grain.HOUR else 'a'} {grain}"


def folder_of(partition: str, name: str) -> str:
    """Return the folder of the partition called `name`, below the table's place."""
    grain = next(grain for grain, form in FORMS.items() if len(name) == len(datetime(2000, 1, 1).strftime(form)))
    moment = datetime.strptime(name, FORMS[grain])
    return TIME.sub(lambda found: moment.strftime(PARTS[found[0]]), partition)


def names_in(partition: str) -> list[str]:
    """Return the columns whose values a folder names, `country` of `country={country}/dt={date}`."""
    return [found[1:-1] for found in PLACEHOLDER.findall(partition) if found not in PARTS]


def above_values(partition: str) -> str:
    """Return the part of a folder above the first one that names a value: all partitions in it are found by one listing."""
    first = next(found.start() for found in PLACEHOLDER.finditer(partition) if found[0] not in PARTS)
    return partition[:first].rpartition("/")[0]


def partition_at(partition: str, path: str) -> str:
    """Return the name of the partition that a file is in, by its path below the table's place; empty: in none."""
    found = _pattern(partition).match(path)
    if found is None:
        return ""
    parts = {"Y": 1, "m": 1, "d": 1, "H": 0} | {key: int(value) for key, value in found.groupdict().items() if key in "YmdH"}
    try:
        return datetime(parts["Y"], parts["m"], parts["d"], parts["H"]).strftime(FORMS[grain_of(partition) or Grain.DAY])
    except ValueError:
        return ""  # 2026-02-31: no partition is called so.


def values_at(partition: str | None, path: str) -> dict[str, str | None]:
    """Return the values that the folders of a file name, by the column: of `country=DE`, and of `{country}` in the partition."""
    found = dict(folder.split("=", 1) for folder in path.split("/")[:-1] if "=" in folder)
    if partition is not None and (match := _pattern(partition).match(path)):
        found |= {key.removeprefix("in_"): text for key, text in match.groupdict().items() if key not in "YmdH"}
    # Spark and Hive write what no folder may be called as %3A.
    return {name: None if text == NULL_FOLDER else unquote(text) for name, text in found.items()}


def other_paddings(partition: str) -> list[str]:
    """Return the partition with all of its numbers without zeros in front, and with them, as far as that is another one."""
    texts = re.split(f"({TIME.pattern})", partition)
    every = ("".join(names.get(text, text) for text in texts) for names in (UNPADDED, UNPADDED_DATES, PADDED))
    return [other for other in dict.fromkeys(every) if other != partition]


@lru_cache(maxsize=64)
def _pattern(partition: str) -> re.Pattern[str]:
    fixed, places = PLACEHOLDER.split(partition), PLACEHOLDER.findall(partition)
    patterns = [PATTERNS.get(place, f"(?P<in_{place[1:-1]}>[^/]+)") for place in places]
    text = "".join(re.escape(each) + pattern for each, pattern in zip(fixed, [*patterns, ""], strict=True))
    return re.compile(f"{text}(/|$)", re.ASCII)


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
        return midnight(first, zone), midnight((first + timedelta(days=31)).replace(day=1), zone)
    day = date.fromisoformat(name)
    return midnight(day, zone), midnight(day + timedelta(days=1), zone)


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
    return [f"%{unit}" for found in TIME.findall(partition) for unit in re.findall(r"%-?([A-Za-z])", PARTS[found])]


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
    return midnight(local.date() if grain is Grain.DAY else local.date().replace(day=1), zone)


def _name(grain: Grain, zone: ZoneInfo, moment: datetime) -> str:
    return moment.astimezone(zone).strftime(FORMS[grain])


def midnight(day: date, zone: ZoneInfo) -> datetime:
    """Return the first instant of `day`, in UTC; where the clock skips midnight, that is later."""
    return datetime.combine(day, time(), tzinfo=zone).astimezone(UTC)
