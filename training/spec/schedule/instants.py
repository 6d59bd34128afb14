"""Time: which cron lines are a schedule, which instant's past a run may see, which rows and days that is.

Slots are those of Airflow's cron timetables: counted in the wall clock of the pipeline's time zone; a slot in the hour that comes
twice is its second coming, one in the hour that is left out comes as much later.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from training.contracts import MAX_CLOCK_SKEW
from training.errors import SpecError, spec_error
from training.spec.rules.rule_problems import Violation
from training.spec.scalar_types import in_yaml
from training.spec.schedule.partitions import Partition, midnight, partitions_until

if TYPE_CHECKING:
    from croniter import croniter

    from training.spec.pipeline_spec import PipelineSpec

MAX_GAP: Final = timedelta(days=400)
LONGEST_WAIT_FROM: Final = datetime(2025, 3, 1)
"""The check counts from here, not from now, so that the result does not depend on the day: the farthest from any 29 February."""

LARGEST_SHIFT: Final = timedelta(hours=3)
"""No clock of the tz database has been changed by more since 1970, but for a change of the date itself."""

AS_OF_PATTERN: Final = (
    r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
    r"([T ]([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]{1,6})?)?(Z|[+-]([01][0-9]|2[0-3]):?[0-5][0-9]))?$(?!\n)"
)
"""A day, or a date-time with its offset, in the dialect that Python's and a browser's regular expressions share.

In Python, `$` also matches before a line feed at the end."""

_WORDS: Final = frozenset("jan feb mar apr may jun jul aug sep oct nov dec sun mon tue wed thu fri sat l".split())
_AS_OF = re.compile(AS_OF_PATTERN)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


def schedule_faults(schedule: str | None) -> Iterator[Violation]:
    """Yield a violation for a cron line that is none, or that hardly ever comes."""
    fault = None if schedule is None else _cron_fault(schedule)
    if fault is not None:
        yield Violation(("schedule",), *fault)


@functools.lru_cache(maxsize=1024)
def _cron_fault(schedule: str) -> tuple[str, str, str] | None:
    from croniter import CroniterBadCronError, CroniterBadDateError, croniter  # 0.2 s, and most stages never look at a schedule

    invalid = "schedule.invalid"
    hint = 'minute, hour, day of month, month, day of week: "0 2 * * *" is every night at two'
    num_fields = len(schedule.split())
    if num_fields != 5:
        return invalid, f"{in_yaml(schedule)} has {num_fields} field{'s' * (num_fields != 1)}, cron has 5", hint
    # croniter also knows hashed and random fields (H, R), which mean another time in every process.
    strange = [word for word in re.findall(r"[a-z]+", schedule.lower()) if word not in _WORDS]
    if strange:
        return invalid, f"{in_yaml(schedule)} is not a cron line: {strange[0]} is not a month or day", hint
    try:
        following = croniter(schedule, LONGEST_WAIT_FROM).get_next(datetime)
    except CroniterBadDateError:
        return "schedule.never", f"{in_yaml(schedule)} never occurs", "no month has that day"
    except (CroniterBadCronError, ValueError, KeyError) as err:
        return invalid, f"{in_yaml(schedule)} is not a cron line: {err}", hint
    if following - LONGEST_WAIT_FROM > MAX_GAP:
        return (
            "schedule.never",
            f"{in_yaml(schedule)} does not occur within {MAX_GAP.days} days",
            "leave `schedule` out and start it by hand",
        )
    return None


def check_not_future(as_of: datetime, now: datetime) -> None:
    """Refuse an instant that has not come: a champion of the future would keep every run before it from being compared.

    Args:
        as_of, now: aware.

    Raises:
        SpecError: `as_of.future`.
    """
    if as_of > now + MAX_CLOCK_SKEW:
        moment = now.astimezone(UTC).isoformat(timespec="seconds")
        message = f"{as_of.astimezone(UTC).isoformat()} is later than now ({moment})"
        hint = "choose an instant in the past: nothing of the future can be seen, and no later run could be compared with its model"
        raise spec_error("trigger", "as_of.future", message, hint=hint, field="as_of")


def settle_as_of(spec: PipelineSpec, *, parameter: str | None, logical_date: datetime | None, run_after: datetime) -> datetime:
    """Return the instant whose past a run may see, in UTC.

    The parameter, else the logical date, else the last slot of the schedule at or before `run_after`; without a schedule, the last
    midnight in the pipeline's time zone. So two triggers of one day share their work, although both came at another microsecond.

    Args:
        parameter: as the trigger gave it: a day, or a date-time with an offset.
        logical_date: aware; None for a manual run.
        run_after: aware.

    Raises:
        SpecError: `as_of.invalid`.
    """
    if parameter is not None:
        return parse_as_of(parameter, spec.timezone)
    for name, value in (("logical date", logical_date), ("run_after", run_after)):
        if value is not None and value.utcoffset() is None:
            raise _refused(f"the {name} {value.isoformat()} has no offset from UTC")
    if logical_date is not None:
        return logical_date.astimezone(UTC)
    zone = ZoneInfo(spec.timezone)
    if spec.schedule is not None:
        return last_slot(spec.schedule, zone, run_after)
    return midnight(run_after.astimezone(zone).date(), zone)


def parse_as_of(text: str, timezone: str) -> datetime:
    """Read a day (its first instant in `timezone`) or a date-time with an offset; return it in UTC.

    Raises:
        SpecError: `as_of.invalid`.
    """
    hint = "write a day, 2026-01-31, or a time with its offset, 2026-01-31T02:00:00+00:00"
    try:
        instant = datetime.fromisoformat(text) if len(text) <= 40 else None
    except ValueError:
        instant = None
    if instant is None:
        raise _refused(f"{in_yaml(text)} is not a time", hint)
    if _DATE.fullmatch(text):
        instant = midnight(instant.date(), ZoneInfo(timezone))
    if instant.utcoffset() is None:
        raise _refused(f"{in_yaml(text)} has no offset from UTC", hint)
    if not 1970 < instant.year < 2100:
        raise _refused(f"{in_yaml(text)} is not between 1971 and 2099", hint)
    if not _AS_OF.fullmatch(text):
        # `fromisoformat` also takes week dates and dates without dashes, and the form of a trigger does not.
        raise _refused(f"{in_yaml(text)} is not a time in this form", hint)
    return instant.astimezone(UTC)


def window(spec: PipelineSpec, as_of: datetime) -> tuple[datetime, datetime]:
    """Return [start, end) of the rows' event times, in UTC.

    The window ends at `as_of`; for a source in partitions at the end of the last one that is over, so that it is whole hours, days or
    months.
    Whole days are counted by the calendar of the pipeline's time zone: a day on which the clock changes is one day.
    """
    zone = ZoneInfo(spec.timezone)
    length = spec.data.source.window
    if spec.data.source.is_daily:
        days = partitions(spec, as_of)
        return midnight(days[0], zone), midnight(days[-1] + timedelta(days=1), zone)
    if spec.data.source.grain is not None:
        parts = main_partitions(spec, as_of)
        return parts[0].start, parts[-1].end
    if length % timedelta(days=1):
        return as_of.astimezone(UTC) - length, as_of.astimezone(UTC)
    local = as_of.astimezone(zone)
    # Arithmetic on an aware datetime keeps the wall clock.
    return (local - length).astimezone(UTC), as_of.astimezone(UTC)


def with_history(spec: PipelineSpec) -> PipelineSpec:
    """Return the spec with a window that begins where `data.source.history` does; the same spec without one."""
    source = spec.data.source
    if source.history is None:
        return spec
    longer = source.model_copy(update={"window": source.window + source.history, "history": None})
    return spec.model_copy(update={"data": spec.data.model_copy(update={"source": longer})})


def partitions(spec: PipelineSpec, as_of: datetime) -> list[date]:
    """Return the days of the window, oldest first; the last is the last whole day before `as_of` in the pipeline's time zone.

    Raises:
        ValueError: the source has no daily parts.
    """
    source = spec.data.source
    if not source.is_daily:
        raise ValueError(f"table {source.table} has no daily parts")
    last = as_of.astimezone(ZoneInfo(spec.timezone)).date() - timedelta(days=1)
    return [last - timedelta(days=back) for back in reversed(range(source.window.days))]


def main_partitions(spec: PipelineSpec, as_of: datetime) -> list[Partition]:
    """Return the partitions of the main table's window, oldest first; of months as many as have the window's length, or more.

    Raises:
        ValueError: the source has no partitions.
    """
    source, zone = spec.data.source, ZoneInfo(spec.timezone)
    if source.is_daily:
        days = partitions(spec, as_of)
        return [Partition(day.isoformat(), midnight(day, zone), midnight(day + timedelta(days=1), zone)) for day in days]
    if source.grain is None:
        raise ValueError(f"table {source.table} has no partitions")
    return partitions_until(source.grain, zone, as_of, length=source.window)


def next_slot(schedule: str, zone: tzinfo, instant: datetime) -> datetime:
    """Return the first slot after `instant` (aware), in UTC."""
    local = instant.astimezone(zone).replace(tzinfo=None)
    walls = _cron(schedule, local if _covers_every_hour(schedule) else local - LARGEST_SHIFT)
    if _covers_every_hour(schedule):
        # A slot in both hours of one name: the distance on the wall clock counts, not the wall clock.
        following: datetime = walls.get_next(datetime)
        return instant.astimezone(UTC) + (following - local)
    found: datetime | None = None
    while True:
        wall = walls.get_next(datetime)
        slot = _instant(wall, zone)
        # Where the clock jumps, a later slot of the wall clock can be the earlier instant.
        if found is not None and wall > found.astimezone(zone).replace(tzinfo=None) + LARGEST_SHIFT:
            return found
        if slot > instant and (found is None or slot < found):
            found = slot


def last_slot(schedule: str, zone: tzinfo, instant: datetime) -> datetime:
    """Return the last slot at or before `instant` (aware), in UTC: one that `next_slot` gives too."""
    local = instant.astimezone(zone).replace(tzinfo=None)
    if _covers_every_hour(schedule):
        wall: datetime = _cron(schedule, local + timedelta(microseconds=1)).get_prev(datetime)
        slot = instant.astimezone(UTC) - (local - wall)
        before = slot - LARGEST_SHIFT
        if before.astimezone(zone).utcoffset() == instant.astimezone(zone).utcoffset():
            return slot
    else:
        wall = _cron(schedule, local - LARGEST_SHIFT).get_prev(datetime)
        before = _instant(wall, zone)
    # The clock may have changed in between: go forward from a slot that is surely earlier.
    while (following := next_slot(schedule, zone, before)) <= instant:
        before = following
    return before


def slot_of_day(spec: PipelineSpec, day: date) -> datetime | None:
    """Return the first slot of a day of the pipeline's time zone, in UTC; midnight without a schedule; None: the day has no slot."""
    zone = ZoneInfo(spec.timezone)
    start = midnight(day, zone)
    if spec.schedule is None:
        return start
    slot = next_slot(spec.schedule, zone, start - timedelta(microseconds=1))
    return slot if slot.astimezone(zone).date() == day else None


def _cron(schedule: str, start: datetime) -> croniter:
    from croniter import croniter

    return croniter(schedule, start)


@functools.lru_cache(maxsize=1024)
def _covers_every_hour(schedule: str) -> bool:
    return bool(_cron(schedule, LONGEST_WAIT_FROM).expanded[1] == ["*"])


def _instant(wall: datetime, zone: tzinfo) -> datetime:
    """Return when a wall clock shows `wall` for the last time, in UTC; where it never does, as much later as the clock jumps."""
    slot = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    if slot.astimezone(zone).replace(tzinfo=None, fold=0) != wall:
        return wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    return slot


def _refused(message: str, hint: str = "") -> SpecError:
    return spec_error("trigger", "as_of.invalid", message, hint=hint, field="as_of")
