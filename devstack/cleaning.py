"""Deletes old files and old rows of Airflow's database of a laptop installation, as the retention settings say. docs/retention.md."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from devstack.airflow_api import AirflowApi
from devstack.airflow_database import Limits, clean_commands, limits
from devstack.environment import USERNAME, airflow_url, credentials, environment
from devstack.old_files import delete_old_file, delete_old_folder, newest
from nightshift.settings import Settings
from training.errors import NightshiftError, UnavailableError

if TYPE_CHECKING:
    from training.retention.settings import Retention

AIRFLOW_SECONDS: Final = 600
STAMP: Final = "airflow-cleaned"
"""File of the installation whose time is that of the last cleaning of Airflow's database."""
FUTURE_SECONDS: Final = 60.0
"""A stamp may be younger than this machine's clock by so much."""
_LEFT_ASIDE: Final = re.compile(r".+\.(journal|lock)\.[0-9a-f]{8}")
"""What a cleaning that was killed leaves of a study's files: see `devstack.old_files`."""
_TASK_LOGS: Final = re.compile(r"dag_id=.+")


def clean(settings: Settings, retention: Retention, say: Callable[[str], None]) -> int:
    """Delete old files of the home, and once in `retention.every` old rows and logs of Airflow; return the bytes of the files.

    Raises:
        NightshiftError: `airflow.unclean`, Airflow's own command failed; `airflow.unreachable`: nothing was deleted from its database.
    """
    deleted = clean_home(settings.home, retention, now=time.time())
    if is_due(settings.home / STAMP, retention.every):
        allowed = _limits(settings, datetime.now(UTC) - retention.airflow)
        if allowed.reason:
            say(f"Airflow keeps all rows and logs since {allowed.before}: {allowed.reason}")
        _clean_database(settings, allowed, say)
        deleted += clean_logs(settings.home, allowed.before.timestamp())
        (settings.home / STAMP).touch()
    return deleted


def _clean_database(settings: Settings, allowed: Limits, say: Callable[[str], None]) -> None:
    if allowed.remembered:
        say(f"the runs of {', '.join(allowed.remembered)} stay, its last night is older")
    for command in clean_commands(allowed):
        # Not in this process: Airflow keeps tasks away from its database.
        done = subprocess.run(command, env=environment(settings), capture_output=True, text=True, timeout=AIRFLOW_SECONDS, check=False)
        if done.returncode:
            said = (done.stderr or done.stdout)[-2000:]
            raise NightshiftError("airflow.unclean", f"airflow db clean ended with {done.returncode}: {said}")
    say(f"Airflow's database has no runs from before {allowed.before}")


def _limits(settings: Settings, before: datetime) -> Limits:
    """Request from Airflow's API server. This task reached it when it started."""
    try:
        api = AirflowApi(airflow_url(settings), USERNAME, credentials(settings)["airflow_password"])
        try:
            return limits(api, before)
        finally:
            api.close()
    except NightshiftError as err:
        raise UnavailableError(err.code, f"nothing was deleted from Airflow's database: {err.message}", hint=err.hint) from err


def is_due(stamp: Path, every: timedelta) -> bool:
    """Return whether the stamp is missing, or not of the last interval: one in the future was made by a wrong clock."""
    return not stamp.exists() or not -FUTURE_SECONDS <= time.time() - stamp.stat().st_mtime < every.total_seconds()


def clean_home(home: Path, retention: Retention, *, now: float) -> int:
    """Delete old copies of reports and journals of studies; return their bytes.

    A run's folder goes when everything in it is old.
    """
    old_runs, deleted = now - retention.runs.total_seconds(), 0
    for dag in _folders(home / "reports"):
        deleted += sum(delete_old_folder(run, old_runs) for run in _folders(dag))
    for journal in sorted((home / "tuning").glob("*.journal")):
        lock = journal.with_suffix(".lock")
        # The lock's age counts: each trial takes it again before it writes to the journal.
        if newest([journal, lock]) < old_runs:
            size_bytes = delete_old_file(journal, old_runs)
            if not journal.exists():
                delete_old_file(lock, old_runs)
            deleted += size_bytes
    deleted += sum(delete_old_file(path, old_runs) for path in (home / "tuning").glob("*") if _LEFT_ASIDE.fullmatch(path.name))
    return deleted


def clean_logs(home: Path, before: float) -> int:
    """Delete logs of tasks and of the DAG processor that are older than a time since the epoch, in seconds; return their bytes.

    A run's folder goes when everything in it is old.
    """
    deleted = 0
    for logs in (home / "airflow" / "logs", home / "logs"):
        for dag in _folders(logs):
            if _TASK_LOGS.fullmatch(dag.name):
                deleted += sum(delete_old_folder(run, before) for run in _folders(dag))
        deleted += sum(delete_old_folder(day, before) for day in _folders(logs / "dag_processor"))
    return deleted


def _folders(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from sorted(found for found in folder.iterdir() if found.is_dir() and not found.is_symlink())
