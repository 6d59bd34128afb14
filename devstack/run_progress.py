"""Shows a run while it is in progress: each stage's state, seconds and reported progress."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from devstack.airflow_api import AirflowApi
from devstack.environment import airflow_home
from nightshift.settings import Settings
from training.stage_table import STAGES

TASKS: Final = ("resolve", "wait", *STAGES)
POLL_SECONDS: Final = 0.5
PLAIN_PROGRESS_SECONDS: Final = 10.0
"""How often a running stage speaks where the output is not a terminal."""
ENDED_RUN_STATES: Final = frozenset({"success", "failed"})
ENDED_TASK_STATES: Final = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
WORKING_STATES: Final = frozenset({"running", "deferred", "restarting"})
WAITING_WORDS: Final = {
    "none": "is next",
    "scheduled": "waits for a slot of the pool {pool}",
    "queued": "waits for a worker",
    "up_for_reschedule": "waits",
    "up_for_retry": "is retried soon",
}
PROGRESS_LOGGER: Final = "training.progress: "
TAIL_BYTES: Final = 16_384


@dataclass(frozen=True, slots=True)
class TaskView:
    """One task as Airflow sees it now."""

    task_id: str
    state: str
    try_number: int
    seconds: float
    pool: str

    @classmethod
    def of(cls, values: dict[str, Any], now: datetime) -> TaskView:
        started = values.get("start_date")
        seconds = values.get("duration") if values.get("state") in ENDED_TASK_STATES else None
        if seconds is None:
            seconds = (now - datetime.fromisoformat(started)).total_seconds() if started else 0.0
        return cls(values["task_id"], values.get("state") or "none", int(values.get("try_number") or 0), float(seconds), values["pool"])


class Follower:
    """Follows one run to its end, and says what changes."""

    def __init__(self, settings: Settings, client: AirflowApi, dag_id: str, run_id: str, say: Callable[[str], None]) -> None:
        self._settings = settings
        self._client = client
        self._dag_id = dag_id
        self._run_id = run_id
        self._say = say
        self._terminal = sys.stdout.isatty()
        self._told: set[tuple[str, int, str]] = set()
        self._progress_at = self._since = time.monotonic()
        self._situation: tuple[tuple[str, str], ...] = ()
        """Tasks and their states since `_since`."""

    def follow(self) -> str:
        """Return the run's final state, `success` or `failed`."""
        while True:
            self._client.keep_up()
            run = self._client.get(f"/dags/{self._dag_id}/dagRuns/{self._run_id}")
            views = self.tasks()
            for view in views:
                self._tell(view)
            if run["state"] in ENDED_RUN_STATES:
                self._transient("")
                return str(run["state"])
            self._show_progress(str(run["state"]), views)
            time.sleep(POLL_SECONDS)

    def tasks(self) -> list[TaskView]:
        """Return the run's tasks in the order of the chain."""
        found = self._client.get(f"/dags/{self._dag_id}/dagRuns/{self._run_id}/taskInstances", limit=100)["task_instances"]
        now = datetime.now().astimezone()
        order = {task_id: position for position, task_id in enumerate(TASKS)}
        return sorted((TaskView.of(values, now) for values in found), key=lambda view: (order.get(view.task_id, len(order)), view.task_id))

    def _tell(self, view: TaskView) -> None:
        event = (view.task_id, view.try_number, view.state)
        if event in self._told or view.state not in (*ENDED_TASK_STATES, "up_for_retry", "up_for_reschedule"):
            return
        self._told.add(event)
        words = {"success": "done", "up_for_retry": f"try {view.try_number} failed, is retried", "up_for_reschedule": "waits"}
        self._transient("")
        self._say(f"  {view.task_id:<10} {words.get(view.state, view.state):<8} {view.seconds:6.1f} s")
        # Only `wait` is put off on purpose; anything else could not be started, and its log says why.
        if view.state == "up_for_retry" or (view.state == "up_for_reschedule" and view.task_id != "wait"):
            self._say(f"             {failure_text(self._settings, self._dag_id, self._run_id, view)}")

    def _show_progress(self, run_state: str, views: list[TaskView]) -> None:
        situation = tuple((view.task_id, view.state) for view in views)
        if situation != self._situation:
            self._situation, self._since = situation, time.monotonic()
        lines = self._lines(run_state, views)
        if self._terminal:
            self._transient(lines[-1])
        elif time.monotonic() - self._progress_at >= PLAIN_PROGRESS_SECONDS:
            self._progress_at = time.monotonic()
            for line in lines:
                self._say(line)

    def _lines(self, run_state: str, views: list[TaskView]) -> list[str]:
        """Return what happens now, at least one line: the running tasks, or what the run waits for."""
        working = [view for view in views if view.state in WORKING_STATES]
        if working:
            return [f"  {view.task_id:<10} {view.state:<8} {view.seconds:6.1f} s  {self._progress(view)}".rstrip() for view in working]
        seconds = time.monotonic() - self._since
        if run_state == "queued":
            return [f"  waiting for Airflow to begin the run, after earlier ones of this pipeline  {seconds:.0f} s"]
        following = next((view for view in views if view.state not in ENDED_TASK_STATES), None)
        if following is None:
            return [f"  waiting for Airflow to end the run  {seconds:.0f} s"]
        return [
            f"  {following.task_id:<10} {WAITING_WORDS.get(following.state, following.state).format(pool=following.pool)}  {seconds:.0f} s"
        ]

    def _progress(self, view: TaskView) -> str:
        path = log_path(self._settings, self._dag_id, self._run_id, view)
        spoken = [event for event in log_events(path) if PROGRESS_LOGGER in str(event.get("event"))]
        return str(spoken[-1]["event"]).split(PROGRESS_LOGGER, 1)[1] if spoken else ""

    def _transient(self, text: str) -> None:
        if self._terminal:
            width = max(shutil.get_terminal_size().columns - 1, 20)
            sys.stdout.write(f"\r\x1b[K{text[:width]}")
            sys.stdout.flush()


def log_path(settings: Settings, dag_id: str, run_id: str, view: TaskView) -> Path:
    """Return the file of one try's log."""
    folder = airflow_home(settings) / "logs" / f"dag_id={dag_id}" / f"run_id={run_id}" / f"task_id={view.task_id}"
    return folder / f"attempt={max(view.try_number, 1)}.log"


def log_events(path: Path) -> list[dict[str, Any]]:
    """Return the last entries of a task's log, as Airflow wrote them; none while there is no log."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return []
    events = []
    for line in lines:
        try:
            events.append(json.loads(line))
        except ValueError:
            continue  # the first line of the tail may be cut, the last one half written
    return [event for event in events if isinstance(event, dict)]


def failure_text(settings: Settings, dag_id: str, run_id: str, view: TaskView) -> str:
    """Return what a failed try said at its end; of one that said nothing, its state and where to look."""
    path = log_path(settings, dag_id, run_id, view)
    events = log_events(path)
    for event in reversed(events):
        for detail in event.get("error_detail") or []:
            return str(detail.get("exc_value") or detail.get("exc_type"))
        if event.get("level") in ("error", "critical"):
            return str(event.get("event"))
    if events:
        return f"its log ends without an error, as after a kill (state {view.state}): {path}"
    return f"it ended before its first line of log (state {view.state}); see {settings.home / 'logs' / 'scheduler.log'}"
