"""Which night is next: simulated time has no clock, Airflow's own record of runs is its memory.

A night that failed is run again, as expected after a repair; one that succeeded is followed by the next day;
one that still runs is followed to its end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from training.contracts import ExitCode, Instant, JsonObject, instant_of, instant_text
from training.errors import NightshiftError, shown, spec_error
from training.spec import PipelineSpec, slot_of_day
from training.spec.schedule.instants import next_slot

FIRST_NIGHTS: Final = {"search_ranking": date(2026, 2, 1), "flight_delay": date(2013, 3, 15)}
"""Where the data of the shipped pipelines lies; any other pipeline starts with the present, or with the requested night."""
RUN_ID_PREFIX: Final = "night-"
ACTIVE_STATES: Final = frozenset({"queued", "running", "restarting"})

_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_RUN_ID = re.compile(r"night-(\d{4}-\d\d-\d\d)(?:\.(\d+))?")


class BadDayError(NightshiftError):
    """What a user wrote as a day, or as a range of days, cannot be used."""

    exit_code = ExitCode.BAD_SPEC


@dataclass(frozen=True, slots=True)
class PastRun:
    """A run that Airflow knows."""

    run_id: str
    state: str


@dataclass(frozen=True, slots=True)
class Night:
    """The run to trigger, or the run to follow."""

    run_id: str
    as_of: Instant | None
    """None: the schedule's last slot before the present, or the snapshot's that the run is for."""
    running_already: bool = False


def latest_first(runs: Sequence[PastRun]) -> list[PastRun]:
    """Return the nights among runs: those of the latest day first, and of one day the run that was started last."""
    found = [(match[1], int(match[2] or 1), run) for run in runs if (match := _RUN_ID.fullmatch(run.run_id))]
    return [run for _day, _number, run in sorted(found, key=lambda item: item[:2], reverse=True)]


def next_night(spec: PipelineSpec, runs: Sequence[PastRun], *, wanted: date | None, now: datetime, has_own_instant: bool = False) -> Night:
    """Choose the night.

    Args:
        runs: of this pipeline, as `latest_first` orders them.
        wanted: a night requested by its date.
        now: names the run of a pipeline that has no simulated nights, or none that has come; that is as of its last slot, or now.
        has_own_instant: the run's input, a snapshot, says what it is as of: unless a night is wanted, it is none.

    Raises:
        BadDayError: `night.no_slot`, the schedule leaves the wanted day out.
    """
    past = [(run, match) for run in runs if (match := _RUN_ID.fullmatch(run.run_id))]
    following = None if wanted or has_own_instant else _next_day(spec.name, past)
    day = wanted or (following and _first_with_slot(spec, following))
    if day is None or (wanted is None and slot_of(spec, day) > now):
        # Simulated time has come to the present.
        return Night(f"by-hand-{now:%Y-%m-%dT%H%M%S}", None)
    same = [(run, int(match[2] or 1)) for run, match in past if match[1] == day.isoformat()]
    # With a fixed offset: an instant in the hour that a zone repeats equals none of another zone.
    as_of = instant_of(instant_text(slot_of(spec, day)))
    if same and same[0][0].state in ACTIVE_STATES:
        return Night(same[0][0].run_id, as_of, running_already=True)
    number = max((number for _run, number in same), default=0) + 1
    return Night(f"{RUN_ID_PREFIX}{day.isoformat()}" + (f".{number}" if number > 1 else ""), as_of)


def slot_of(spec: PipelineSpec, day: date) -> datetime:
    """Return the instant at which the schedule starts that day's run, in the pipeline's time zone; midnight without a schedule.

    A schedule with several slots a day gives the first one.

    Raises:
        BadDayError: `night.no_slot`, the schedule leaves that day out.
    """
    slot = slot_of_day(spec, day)
    zone = ZoneInfo(spec.timezone)
    if slot is None:
        following = next_slot(str(spec.schedule), zone, datetime.combine(day, time.min, tzinfo=zone))
        raise BadDayError(
            "night.no_slot",
            f"the schedule {shown(spec.schedule)} of {spec.name} has no slot on {day}",
            hint=f"the next one is on {following.astimezone(zone):%Y-%m-%d}",
        )
    return slot.astimezone(zone)


def parse_day(text: str) -> date:
    """Read a day as a user writes it, YYYY-MM-DD.

    Raises:
        BadDayError: `night.date`, it is not a date, or outside of 1971 to 2099.
    """
    try:
        day = date.fromisoformat(text) if _DAY.fullmatch(text) else None
    except ValueError:
        day = None
    if day is None or not 1970 < day.year < 2100:
        raise BadDayError("night.date", f"{shown(text)} is not a date between 1971 and 2099", hint="write YYYY-MM-DD, such as 2026-02-10")
    return day


def parse_conf(text: str) -> JsonObject:
    """Read the overrides of a run as a user writes them, a JSON object.

    Raises:
        SpecError: `night.conf`, it is not a JSON object, or has `as_of`, which `make run` chooses.
    """
    hint = """write JSON in single quotes: CONF='{"train": {"epochs": 5}}'"""
    try:
        conf = json.loads(text)
    except (ValueError, RecursionError):
        conf = None
    if not isinstance(conf, dict):
        raise spec_error("CONF", "night.conf", f"{shown(text)} is not a JSON object", hint=hint)
    if "as_of" in conf:
        message = "as_of is chosen by make run"
        raise spec_error("CONF", "night.conf", message, hint="NIGHT=YYYY-MM-DD chooses the night", field="as_of")
    return conf


def _next_day(pipeline: str, past: Sequence[tuple[PastRun, re.Match[str]]]) -> date | None:
    if not past:
        return FIRST_NIGHTS.get(pipeline)
    # Simulated time goes forward: an older night that was run again by name does not turn it back.
    latest = max(match[1] for _run, match in past)
    newest = next(run for run, match in past if match[1] == latest)
    day = date.fromisoformat(latest)
    return day + timedelta(days=1) if newest.state == "success" else day


def _first_with_slot(spec: PipelineSpec, day: date) -> date:
    """Return `day`, or the next day on which the schedule has a slot."""
    zone = ZoneInfo(spec.timezone)
    if spec.schedule is None or slot_of_day(spec, day) is not None:
        return day
    return next_slot(spec.schedule, zone, datetime.combine(day, time.min, tzinfo=zone)).astimezone(zone).date()
