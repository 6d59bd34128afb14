"""A run's outcome for people: each stage, the new model compared with the champion, the decision with its reasons, and links."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from devstack.airflow_api import AirflowApi
from devstack.airflow_database import has_begun
from devstack.environment import APPROVER, USERNAME, airflow_url, credentials, owns_mlflow
from devstack.run_progress import Follower, TaskView, failure_text, log_path
from nightshift.resolved_run import NO_PROMOTION
from nightshift.settings import Settings
from training.contracts import StageResult, require_result
from training.errors import counted
from training.format import brief
from training.registry.ledger.reasons import Reason, reason_line
from training.sanitizing import for_terminal
from training.spec.descriptors.metrics import is_lower_better
from training.stage_table import STAGES, TABLE
from training.store import Store
from training.validation.results import warned_of

LABEL_WIDTH: Final = 20
MAX_WARNINGS: Final = 3
"""Of a validation whose words are printed; its report has all."""


def summary(settings: Settings, client: AirflowApi, dag_id: str, run_id: str, follower: Follower) -> str:
    """Return the summary of an ended run, successful or not."""
    views = {view.task_id: view for view in follower.tasks()}
    results = {stage: result for stage in STAGES if (result := stage_result(client, dag_id, run_id, stage)) is not None}
    lines = ["", f"{'stage':<10}{'time':>9}{'rows':>12}{'rows/s':>12}  what"]
    for stage in STAGES:
        if stage in views:
            lines.append(_stage_line(views[stage], results.get(stage)))
            lines += _warnings(settings.store(), results[stage]) if stage in results else []
    if "evaluate" in results:
        lines += ["", *_comparison(settings.store(), results["evaluate"])]
    if "promote" in results:
        lines += ["", *_decision(settings.store(), results["promote"])]
        lines += approval_lines(settings, client, dag_id, results["promote"])
    elif "promote" in views and views["promote"].state == "skipped":
        lines += ["", f"decision  none: {NO_PROMOTION}"]
    failed = next((view for view in views.values() if view.state == "failed"), None)
    if failed is not None:
        lines += ["", f"{failed.task_id} failed: {failure_text(settings, dag_id, run_id, failed)}"]
        lines.append(f"its log: {log_path(settings, dag_id, run_id, failed)}")
    return "\n".join([*lines, "", *_places(settings, dag_id, run_id, results)])


def stage_result(client: AirflowApi, dag_id: str, run_id: str, stage: str) -> StageResult | None:
    """Return what a stage left in XCom, None if it left nothing.

    Raises:
        ContractError: it is malformed.
    """
    entry = client.find(f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{stage}/xcomEntries/return_value")
    if entry is None:
        return None
    value = entry["value"]
    return require_result(json.loads(value) if isinstance(value, str) else value, stage=stage)


def number(value: object) -> str:
    """Return a figure in at most four significant digits, or all digits of a whole number; a hyphen for None, which any terminal shows."""
    return "-" if value is None else brief(value)


def _stage_line(view: TaskView, result: StageResult | None) -> str:
    if result is None:
        return f"{view.task_id:<10}{view.seconds:>7.1f} s{'':>12}{'':>12}  {view.state}"
    rows = result.scalars.get("rows")
    if result.reused_from is not None:
        return f"{view.task_id:<10}{view.seconds:>7.1f} s{number(rows):>12}{'-':>12}  reused from {result.reused_from.run_id}"
    total = result.timings.get("total", 0.0)
    given = result.scalars.get("rows_per_second")
    rate = given if isinstance(given, int | float) else (rows / total if isinstance(rows, int) and total > 0 else None)
    again = f"{result.attempts} attempts" if result.attempts > 1 else ""
    words = [text for text in (again, _remark(result)) if text]
    shown_rate = "-" if rate is None else f"{rate:,.0f}"
    return f"{view.task_id:<10}{view.seconds:>7.1f} s{number(rows):>12}{shown_rate:>12}  {', '.join(words)}"


def _remark(result: StageResult) -> str:
    shown = [(name.replace("_", " "), result.scalars.get(name)) for name in TABLE[result.stage].summary]
    return ", ".join(f"{name} {number(value)}" for name, value in shown if value is not None)


def _warnings(store: Store, result: StageResult) -> list[str]:
    """Return the first warnings of a validation, a line each."""
    if not result.scalars.get("warnings"):
        return []
    manifest = store.manifests.get(result.artifact_uri, kind="validation")
    found = [for_terminal(check.line()) for check in warned_of(store.manifests.read(manifest, "results.json"))]
    more = len(found) - MAX_WARNINGS
    return [f"  warning: {line}" for line in found[:MAX_WARNINGS]] + ([f"  … and {counted(more, 'more warning')}"] if more > 0 else [])


def _comparison(store: Store, result: StageResult) -> list[str]:
    meta = store.manifests.get(result.artifact_uri, kind="evaluation").meta
    champion, comparison = meta["champion_metrics"], meta["comparison"]
    naive = meta.get("naive_baseline")  # Absent where no baseline is scored.
    beside = ([naive] if naive else []) + list(meta.get("named_baselines", []))
    lines = [f"{'metric':<{LABEL_WIDTH}}{'new model':>12}{'champion':>12}" + "".join(f"  {entry['name']}" for entry in beside)]
    for name, value in meta["metrics"].items():
        values = "".join(f"  {number(entry['metrics'].get(name)):>{len(entry['name'])}}" for entry in beside)
        lines.append(f"{name:<{LABEL_WIDTH}}{number(value):>12}{number(champion.get(name)):>12}{values}")
    lines += _baseline_lines(meta, result)
    if comparison is None:
        return [*lines, f"not compared: {meta['baseline']}"]
    gain, low, high = (number(comparison[name]) for name in ("gain", "low", "high"))
    return [*lines, f"{result.scalars['primary']} gain over the champion {gain}, interval {low} to {high}"]


def _baseline_lines(meta: Mapping[str, Any], result: StageResult) -> list[str]:
    """Return the gain over the best naive baseline and over each one that the spec names, and the warnings about them."""
    naive, primary = meta.get("naive_baseline"), str(result.scalars["primary"])
    best_gain, lines = result.scalars.get("naive_baseline_gain"), []
    if naive and best_gain is not None:
        lines.append(f"{primary} gain over the naive baseline {naive['name']} {number(best_gain)}")
    for entry in meta.get("named_baselines", []):
        new, old = meta["metrics"].get(primary), entry["metrics"].get(primary)
        is_known = isinstance(new, float | int) and isinstance(old, float | int)
        gain = (old - new if is_lower_better(primary) else new - old) if is_known else None
        lines.append(f"{primary} gain over the naive baseline {entry['name']} {number(gain)} ({entry['key']})")
    return lines + [f"warning: {warning}" for warning in meta.get("baseline_warnings", [])]


def _decision(store: Store, result: StageResult) -> list[str]:
    meta = store.manifests.get(result.artifact_uri, kind="decision").meta
    semantic = f" ({meta['semantic_version']})" if meta.get("semantic_version") else ""
    champion, canary = result.scalars["champion_version"], result.scalars.get("canary_version")
    seats = ("no champion" if champion is None else f"champion is version {champion}") + (f", canary is version {canary}" if canary else "")
    return [
        f"decision  {meta['outcome'].replace('_', ' ')}",
        f"version   {meta['version']}{semantic} of {result.scalars['model']}, {seats}",
        *[f"  {reason_line(Reason.from_json(reason))}" for reason in meta["reasons"]],
    ]


def _places(settings: Settings, dag_id: str, run_id: str, results: Mapping[str, StageResult]) -> list[str]:
    secret = credentials(settings)
    lines = [
        f"run       {airflow_url(settings)}/dags/{dag_id}/runs/{run_id}   login {USERNAME} / {secret['airflow_password']}",
        f"MLflow    {settings.mlflow_uri}" + (f"   login {USERNAME} / {secret['mlflow_password']}" if owns_mlflow(settings) else ""),
    ]
    return lines + [f"report    {path}" for path in save_reports(settings, dag_id, run_id, results.values())]


def save_reports(settings: Settings, dag_id: str, run_id: str, results: Iterable[StageResult]) -> list[Path]:
    """Copy a run's reports out of the store, where they have digests for names, to files that a browser opens; return their paths.

    A stage that failed leaves no result; a page that it published before is in the run's refs.
    """
    store = settings.store()
    folder = settings.home / "reports" / dag_id / run_id
    found = {name: uri for result in results for name, uri in result.reports.items()}
    for name in store.bucket.folders(f"runs/{dag_id}/{run_id}/reports"):
        head = None if name in found else store.run_ref(dag_id, run_id, f"reports/{name}").read()
        if head is not None:
            found[name] = head.value
    paths = []
    for name, uri in found.items():
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}.html"
        path.write_bytes(store.reports.get(uri))
        paths.append(path)
    return paths


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
