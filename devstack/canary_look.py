"""A simulated night's look at the canary, as of that night: what has arrived by the machine's clock says nothing about it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from devstack.airflow_api import AirflowApi
from devstack.environment import make_private_folder, write_private
from devstack.next_night import Night
from devstack.run_progress import Follower, failure_text
from devstack.run_summary import save_reports, stage_result
from nightshift.open_canary import night_path, open_canary
from nightshift.settings import Settings
from training.contracts import instant_text
from training.registry.ledger.ledger import name_of
from training.spec import PipelineSpec
from training.spec.schedule.instants import last_slot

RESULTS: Final = ("canary", "promote")
PRESENT: Final = timedelta(days=1)
"""A night that is no older is of the present, also without a schedule."""


def note_night(settings: Settings, spec: PipelineSpec, night: Night) -> None:
    """Note the instant of a night before it starts. With one that has come to the present, time is the clock's: the notes are deleted.

    Raises:
        NightshiftError: `home.write`.
    """
    if spec.promote.canary is None or night.as_of is None:
        return
    path, now = night_path(settings.home, spec.name, night.run_id), datetime.now(UTC)
    is_newest = spec.schedule is not None and last_slot(spec.schedule, ZoneInfo(spec.timezone), now) <= night.as_of
    if is_newest or now - night.as_of < PRESENT:
        # No later night would look at a canary: the next slots are the clock's.
        for note in path.parent.glob("night-*"):
            note.unlink()
        return
    make_private_folder(path.parent)
    write_private(path, instant_text(night.as_of))


def look_at_canary(settings: Settings, client: AirflowApi, spec: PipelineSpec, night: Night, *, say: Callable[[str], None]) -> None:
    """Have the canary of an earlier simulated night looked at as of this one, and show what came of it.

    Nothing is done where there is no such canary, or where this is not the latest night. A look that fails leaves the canary as it is.

    Raises:
        NightshiftError: those of the client.
    """
    found = None if spec.promote.canary is None else open_canary(settings.ledger(), spec.promote.model)
    if found is None or found.pipeline != spec.name or night.as_of is None:
        return
    if not found.holder.as_of < night.as_of == found.simulated_at(settings.home):
        return
    dag_id, run_id = found.dag_id, f"look-{night.run_id}"
    if client.get(f"/dags/{dag_id}")["is_paused"]:
        say(f"the canary, version {name_of(found.holder)}, is not looked at: {dag_id} is paused in Airflow")
        return
    say(f"a look at the canary, version {name_of(found.holder)}: {dag_id}, run {run_id}, simulated as of {instant_text(night.as_of)}")
    client.create(f"/dags/{dag_id}/dagRuns", {"dag_run_id": run_id, "logical_date": None, "conf": {}})
    follower = Follower(settings, client, dag_id, run_id, say)
    if follower.follow() != "success":
        for failed in (view for view in follower.tasks() if view.state == "failed"):
            say(f"the look failed in {failed.task_id}: {failure_text(settings, dag_id, run_id, failed)}")
        return
    results = {stage: result for stage in RESULTS if (result := stage_result(client, dag_id, run_id, stage)) is not None}
    if "promote" in results:
        say(f"canary    {results['promote'].scalars['headline']}")
    for path in save_reports(settings, dag_id, run_id, results.values()):
        say(f"report    {path}")
