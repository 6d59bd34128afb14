"""`make backfill`: a range of nights of one pipeline, one after the other, as `make run` runs one, and a table of their decisions.

Airflow's own backfill makes all its runs at once; on SQLite it is refused (`nightshift.airflow_ext.backfill_refusal`), and with Airflow's
database on PostgreSQL it works.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from devstack.airflow_api import AirflowApi
from devstack.dag_pausing import switched_on
from devstack.lifecycle import api, start
from devstack.next_night import BadDayError, next_night
from devstack.run_command import Say, checked_spec, past_runs, run_one, wait_parsed, written_at
from devstack.run_summary import number, save_reports, stage_result
from devstack.service_restarts import Keeper
from devstack.shutdown import stopped_services_named
from devstack.sources_file import require_noted_places
from nightshift.settings import Settings
from training.contracts import instant_text
from training.errors import shown
from training.format import in_columns
from training.spec import PipelineSpec, slot_of_day
from training.stage_table import STAGES

MAX_NIGHTS: Final = 400
HEADER: Final = ("night", "metric", "new model", "champion", "decision")


@dataclass(frozen=True, slots=True)
class Row:
    """The outcome of one night, as printed."""

    day: date
    metric: str = "-"
    value: str = "-"
    champion: str = "-"
    decision: str = "-"

    def cells(self) -> tuple[str, ...]:
        return (self.day.isoformat(), self.metric, self.value, self.champion, self.decision)


@dataclass(frozen=True, kw_only=True, slots=True)
class BackfillRange:
    """What to run."""

    first: date
    last: date
    force: bool = False
    """Do the work of finished nights again."""
    keep_going: bool = False
    """Continue after a night that failed."""


def run_backfill(settings: Settings, pipeline: str, wanted: BackfillRange, *, say: Say) -> int:
    """Run every night of the range that has not succeeded yet; return 0 if all have then, 1 otherwise.

    Raises:
        BadDayError: `backfill.range`, `backfill.future`, `backfill.too_many`, `backfill.empty`; nothing was started then.
        NightshiftError: those of `run_command.run_night`.
    """
    spec = checked_spec(settings, pipeline)
    days = nights_of(spec, wanted, now=datetime.now(UTC))
    start(settings, say)
    say(f"{len(days)} nights of {spec.name}, {days[0]} to {days[-1]}, one after the other")
    _say_what_is_before_the_champion(settings, spec, days, say)
    keeper = Keeper(settings, say)
    client, rows = api(settings, is_running=keeper), list[Row]()
    try:
        hint = "the same command starts them again and continues with the remaining nights"
        with stopped_services_named(settings.home, f"the backfill of {spec.name}", hint):
            wait_parsed(client, spec.name, say, written_at=written_at(settings, spec.name))
            with switched_on(client, settings.home, spec.name, say), keeper:
                require_noted_places(settings, spec)
                for row in _run(settings, client, spec, days, wanted, say):
                    rows.append(row)
    finally:
        client.close()
        say(_ending(spec, wanted, days, rows))
    return 0 if len(rows) == len(days) and not any(row.decision == "failed" for row in rows) else 1


def nights_of(spec: PipelineSpec, wanted: BackfillRange, *, now: datetime) -> list[date]:
    """Return the days of the range, in the pipeline's time zone, on which its schedule has a slot; every day without a schedule.

    Raises:
        BadDayError: the range is reversed, too long, without a slot, or reaches into the future.
    """
    first, last = wanted.first, wanted.last
    if last < first:
        raise BadDayError("backfill.range", f"FROM {first} is later than TO {last}", hint="exchange them")
    days: list[date] = []
    for number_of_day in range((last - first).days + 1):
        day = first + timedelta(days=number_of_day)
        if slot_of_day(spec, day) is not None:
            days.append(day)
        if len(days) > MAX_NIGHTS:
            hint = f"the first {MAX_NIGHTS} are TO={days[MAX_NIGHTS - 1]}"
            raise BadDayError("backfill.too_many", f"more than {MAX_NIGHTS} nights from {first} to {last}", hint=hint)
    if not days:
        message = f"the schedule {shown(spec.schedule)} of {spec.name} has no slot from {first} to {last}"
        raise BadDayError("backfill.empty", message, hint="choose another range")
    coming = [day for day in days if (slot := slot_of_day(spec, day)) is not None and slot > now]
    if coming:
        here = now.astimezone(ZoneInfo(spec.timezone))
        past = [day for day in days if day < coming[0]]
        hint = f"TO={past[-1]} is the last one that has come" if past else "choose earlier dates"
        message = f"the night of {coming[0]} has not come yet (it is {here:%Y-%m-%d %H:%M} in {spec.timezone})"
        raise BadDayError("backfill.future", message, hint=hint)
    return days


def _run(
    settings: Settings, client: AirflowApi, spec: PipelineSpec, days: Sequence[date], wanted: BackfillRange, say: Say
) -> Iterator[Row]:
    for position, day in enumerate(days, start=1):
        runs = past_runs(client, spec.name, day)
        finished = next((run.run_id for run in runs if run.state == "success"), None)
        if finished is not None and not wanted.force:
            say(f"night {position} of {len(days)}, {day}: {finished} succeeded before and is not run again (FORCE=1 does)")
            yield outcome(settings, client, spec, day, finished, say)
            continue
        say(f"night {position} of {len(days)}, {day}")
        night = next_night(spec, runs, wanted=day, now=datetime.now(UTC))
        state = run_one(settings, client, spec, night, force=wanted.force, say=say, summed_up=False)
        yield outcome(settings, client, spec, day, night.run_id, say) if state == "success" else Row(day, decision="failed")
        if state != "success" and not wanted.keep_going:
            return


def outcome(settings: Settings, client: AirflowApi, spec: PipelineSpec, day: date, run_id: str, say: Say) -> Row:
    """Return the row of a night that succeeded, and say where its reports are."""
    store = settings.store()
    results = {stage: found for stage in STAGES if (found := stage_result(client, spec.name, run_id, stage)) is not None}
    evaluate, promote = results.get("evaluate"), results.get("promote")
    for path in save_reports(settings, spec.name, run_id, results.values()):
        say(f"  report   {path}")
    decision = "-" if promote is None else store.manifests.get(promote.artifact_uri, kind="decision").meta["outcome"].replace("_", " ")
    if evaluate is None:
        return Row(day, decision=decision)
    meta = store.manifests.get(evaluate.artifact_uri, kind="evaluation").meta
    metric = str(evaluate.scalars["primary"])
    return Row(day, metric, number(meta["metrics"].get(metric)), number(meta["champion_metrics"].get(metric)), decision)


def table(rows: Sequence[Row]) -> str:
    """Return the rows as text in columns."""
    return "\n".join(in_columns([HEADER, *(row.cells() for row in rows)]))


def _ending(spec: PipelineSpec, wanted: BackfillRange, days: Sequence[date], rows: Sequence[Row]) -> str:
    lines = ["", table(rows)] if rows else [""]
    left = [*(row.day for row in rows if row.decision == "failed"), *days[len(rows) :]]
    if left:
        command = f"make backfill PIPELINE={spec.name} FROM={min(left)} TO={wanted.last}"
        lines.append(f"{len(left)} of {len(days)} nights are not done; once the cause is repaired: {command}")
        lines.append("finished nights are not run again; KEEP_GOING=1 continues after a night that failed")
    return "\n".join(lines)


def _say_what_is_before_the_champion(settings: Settings, spec: PipelineSpec, days: Sequence[date], say: Say) -> None:
    champion = settings.ledger().standing(spec.promote.model).champion
    if champion is None:
        return
    as_of = champion.as_of
    earlier = [day for day in days if (slot := slot_of_day(spec, day)) is not None and slot < as_of]
    if earlier:
        say(
            f"{len(earlier)} of them are before champion version {champion.version} (as of {instant_text(champion.as_of)}): "
            "they are trained, evaluated and recorded, and none of them is promoted"
        )
