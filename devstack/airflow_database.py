"""What of Airflow's database may be deleted on a laptop, and Airflow's own command that deletes it.

`airflow db clean` deletes rows by the time of their creation, regardless of the state of their run, and with a trigger the task that waits
for it. So it is given no later instant than the start of the oldest run that has not finished; Airflow's REST API knows these runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, TypedDict
from urllib.parse import quote

from devstack.next_night import RUN_ID_PREFIX

if TYPE_CHECKING:
    from devstack.airflow_api import AirflowApi

UNFINISHED: Final = ("queued", "running")
PAGE: Final = 100
MARGIN: Final = timedelta(minutes=1)
"""On SQLite the command compares instants as texts, one with a time zone: a row of the very instant counts as older."""
WITHOUT_DAG: Final = ("asset_event", "deadline", "task_reschedule")
"""Tables that the command cannot clean where it leaves out DAGs: it looks for a column that they do not have."""


class AirflowRun(TypedDict):
    """What is read here of a run in Airflow's REST API. Instants are texts of ISO 8601, null until they come."""

    dag_id: str
    dag_run_id: str
    state: str
    run_type: str
    run_after: str | None
    queued_at: str | None
    start_date: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class CleaningLimits:
    """What a cleaning leaves alone."""

    before: datetime
    """Younger rows stay."""
    reason: str = ""
    """The run that moved `before` back; empty where none did."""
    remembered: tuple[str, ...] = field(default=())
    """DAGs whose rows stay, because their last night is older: `make run` finds by it which night is next."""


def limits(api: AirflowApi, before: datetime) -> CleaningLimits:
    """Return what may be deleted of what is older than `before`.

    Raises:
        UnavailableError: `airflow.unreachable`; NightshiftError: `airflow.refused`.
    """
    reason = ""
    for run in _unfinished(api):
        since = min((begin - MARGIN for begin in _begins(api, run)), default=before)
        if since < before:
            before, reason = since, f"run {run['dag_run_id']} of {run['dag_id']} is {run['state']}"
    return CleaningLimits(before=before, reason=reason, remembered=tuple(sorted(_remembered(api, before))))


def clean_commands(allowed: CleaningLimits) -> list[list[str]]:
    """Return Airflow's own commands that delete what the limits allow, without an archive."""
    instant = allowed.before.isoformat(timespec="microseconds")
    command = [sys.executable, "-m", "airflow", "db", "clean", "--clean-before-timestamp", instant, "--skip-archive", "--yes"]
    if not allowed.remembered:
        return [command]
    return [[*command, "--exclude-dag-ids", ",".join(allowed.remembered)], [*command, "--tables", ",".join(WITHOUT_DAG)]]


def _unfinished(api: AirflowApi) -> Iterator[AirflowRun]:
    """Yield the runs that have not finished, the last page first, some perhaps twice.

    A run that ends during the listing moves later ones forward, onto a page that is still to be read: none is overlooked.
    """
    query: dict[str, str | list[str]] = {"state": list(UNFINISHED), "order_by": "id"}
    total = api.get("/dags/~/dagRuns", limit=1, offset=0, **query)["total_entries"]
    for offset in range((max(total, 1) - 1) // PAGE * PAGE, -1, -PAGE):
        yield from api.get("/dags/~/dagRuns", limit=PAGE, offset=offset, **query)["dag_runs"]


def has_begun(run: AirflowRun) -> bool:
    """Return whether a run's events can be asked for: Airflow 3.3 answers 500 for those of a run without a start."""
    return bool(run.get("start_date"))


def _begins(api: AirflowApi, run: AirflowRun) -> Iterator[datetime]:
    """Yield when a run, and what started it, began."""
    # The earliest one counts: a run whose tasks were cleared has a new start, and results from before it.
    instants = (run.get("run_after"), run.get("queued_at"), run.get("start_date"))
    yield from (datetime.fromisoformat(instant) for instant in instants if instant)
    if run.get("run_type") == "asset_triggered" and not has_begun(run):
        # Its event may be of any age, and Airflow does not tell before it begins.
        yield datetime.fromtimestamp(0, UTC)
    elif run.get("run_type") == "asset_triggered":
        # A task that waits for an approval reads the event again when it resumes.
        path = f"/dags/{quote(run['dag_id'], safe='')}/dagRuns/{quote(run['dag_run_id'], safe='')}/upstreamAssetEvents"
        events = (api.find(path) or {"asset_events": []})["asset_events"]
        yield from (datetime.fromisoformat(event["timestamp"]) for event in events)


def _remembered(api: AirflowApi, before: datetime) -> Iterator[str]:
    """Yield the DAGs whose latest night is one of the rows that would go; the names of nights sort by day."""
    seen = set()
    for run in _nights(api):
        if run["dag_id"] not in seen:
            seen.add(run["dag_id"])
            if run["start_date"] and datetime.fromisoformat(run["start_date"]) < before:
                yield run["dag_id"]


def _nights(api: AirflowApi) -> Iterator[AirflowRun]:
    """Yield the nights of all DAGs, the latest first."""
    offset = 0
    while True:
        page = api.get("/dags/~/dagRuns", limit=PAGE, offset=offset, run_id_prefix_pattern=RUN_ID_PREFIX, order_by="-run_id")
        yield from page["dag_runs"]
        offset += PAGE
        if offset >= page["total_entries"]:
            return
