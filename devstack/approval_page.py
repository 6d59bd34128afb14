"""Where a person answers a candidate's request for approval, for the summary of a run."""

from __future__ import annotations

import time
from typing import Final
from urllib.parse import quote

from devstack.airflow_api import AirflowApi
from devstack.airflow_database import has_begun
from devstack.environment import APPROVER, USERNAME, airflow_url, credentials
from nightshift.settings import Settings
from training.contracts import StageResult

ASK: Final = "ask"
OPEN_SECONDS: Final = 30.0
"""An event starts the approval run a few seconds after the candidate's run has ended."""
POLL_SECONDS: Final = 0.5
MAX_RUNS: Final = 20


def approval_lines(settings: Settings, client: AirflowApi, pipeline: str, promoted: StageResult) -> list[str]:
    """Return how the request of a candidate was answered, or the page on which it waits for an answer; nothing for other decisions.

    Args:
        promoted: the result of the run's `promote`.
    """
    if promoted.scalars.get("decision") != "needs_approval":
        return []
    model, key = str(promoted.scalars["model"]), str(promoted.scalars["key"])
    ending = settings.ledger().ending_of(model, key)
    if ending is not None:
        words = ending.reasons[-1].words if ending.reasons else f"{ending.outcome} by {ending.decided_by}"
        return [f"approval  {ending.outcome}: {words}"]
    dag_id = f"{pipeline}.approval"
    deadline = time.monotonic() + OPEN_SECONDS
    while (question := _question(client, dag_id, key)) is None:
        if time.monotonic() > deadline:
            return [f"approve   {airflow_url(settings)}/dags/{quote(dag_id)}   no question yet: is the DAG paused?"]
        time.sleep(POLL_SECONDS)
    run_id, named = question
    page = f"{airflow_url(settings)}/dags/{quote(dag_id)}/runs/{quote(run_id, safe='')}/tasks/{ASK}/required_actions"
    return [f"approve   {page}", f"          {_who(settings, named)}"]


def _question(client: AirflowApi, dag_id: str, key: str) -> tuple[str, list[str]] | None:
    """Return the approval run of a request, with the ids of those whom Airflow asks; None while there is none."""
    runs = (client.find(f"/dags/{dag_id}/dagRuns", order_by="-run_after", limit=MAX_RUNS) or {"dag_runs": []})["dag_runs"]
    for run in runs:
        if not has_begun(run):
            continue
        path = f"/dags/{dag_id}/dagRuns/{quote(run['dag_run_id'], safe='')}"
        events = (client.find(f"{path}/upstreamAssetEvents") or {"asset_events": []})["asset_events"]
        if key in {event["extra"].get("key") for event in events} | {(run.get("conf") or {}).get("request")}:
            detail = client.find(f"{path}/taskInstances/{ASK}/-1/hitlDetails")
            return None if detail is None else (str(run["dag_run_id"]), [str(user["id"]) for user in detail.get("assigned_users") or []])
    return None


def _who(settings: Settings, named: list[str]) -> str:
    secret = credentials(settings)
    passwords = {APPROVER: secret["approver_password"], USERNAME: secret["airflow_password"]}
    logins = [f"{name} / {password}" for name, password in passwords.items() if name in named or not named]
    return f"login {' or '.join(logins)}" if logins else f"may answer: {', '.join(named)}"
