"""Deletes what retention lets go: from the store, and from what a laptop installation writes beside it. docs/retention.md."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from nightshift.airflow_database import Limits, clean_commands, limits
from nightshift.old_files import delete_old_file, delete_old_folder, newest
from nightshift.settings import Settings
from training.errors import LeaseHeldError, NightshiftError, UnavailableError
from training.patience import waiting_for_database
from training.store import Store

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

    from training.retention.settings import Retention

AIRFLOW_SECONDS: Final = 600
STAMP: Final = "airflow-cleaned"
"""File of the installation whose time is that of the last cleaning of Airflow's database."""
FUTURE_SECONDS: Final = 60.0
"""A stamp may be younger than this machine's clock by so much."""
_LEFT_ASIDE: Final = re.compile(r".+\.(journal|lock)\.[0-9a-f]{8}")
"""What a cleaning that was killed leaves of a study's files: see `nightshift.old_files`."""
_TASK_LOGS: Final = re.compile(r"dag_id=.+")


class CollectOperator(BaseOperator):
    """Collects the store once in `retention.every`; the log has bytes by kind."""

    @waiting_for_database()
    def execute(self, context: Context) -> dict[str, int]:
        """Return the bytes of each verdict: kept, condemned, deleted.

        Raises:
            AirflowSkipException: the last collection is not long ago, or another one is under way.
            AirflowFailException: the settings are wrong, or a record that might lead to anything cannot be read: nothing was deleted.
            UnavailableError: store or database do not answer; Airflow tries again.
        """
        from training.registry.retention import LedgerRoots
        from training.retention.report import report_lines
        from training.retention.settings import load_retention
        from training.store.collector import MAX_CLOCK_DIFFERENCE, Collector

        settings = Settings.from_environment()
        try:
            retention = load_retention()
            roots = LedgerRoots(settings.database_url, champions=retention.champions)
            collector = Collector(Store(settings.store_uri), retention.rules(), roots, say=self._say)
            last = collector.last_done()
            # One in the future was made by a wrong clock: the collection refuses to go by it, and says so.
            if last is not None and -MAX_CLOCK_DIFFERENCE <= datetime.now(UTC) - last < retention.every:
                raise AirflowSkipException(f"the last collection ended at {last:%Y-%m-%d %H:%M} UTC (retention every)")
            report = collector.collect()
        except UnavailableError:
            raise
        except LeaseHeldError as err:
            raise AirflowSkipException(str(err)) from err
        except NightshiftError as err:
            raise AirflowFailException(str(err)) from err
        for line in report_lines(report, dry_run=False):
            self.log.info("%s", line)
        return {verdict: report.total(verdict) for verdict in ("kept", "condemned", "deleted")}

    def _say(self, line: str) -> None:
        self.log.info("%s", line)


class CleanHomeOperator(BaseOperator):
    """On a laptop: old runs in Airflow's database, old task logs, copies of reports, journals of studies."""

    def execute(self, context: Context) -> int:
        """Return the bytes of the files that were deleted.

        Raises:
            AirflowSkipException: Airflow is not this installation's own, as in a cluster.
            AirflowException: Airflow's own command failed; its output is in the log.
        """
        from training.retention.settings import load_retention

        settings = Settings.from_environment()
        try:
            retention = load_retention()
        except NightshiftError as err:
            raise AirflowFailException(str(err)) from err
        if not is_laptop(settings):
            raise AirflowSkipException("Airflow's database and logs are not this installation's own: docs/retention.md")
        deleted = clean_home(settings.home, retention, now=time.time())
        if is_due(settings.home / STAMP, retention.every):
            allowed = self._limits(settings, datetime.now(UTC) - retention.airflow)
            if allowed.reason:
                self.log.info("Airflow keeps all rows and logs since %s: %s", allowed.before, allowed.reason)
            self._clean_database(settings, allowed)
            deleted += clean_logs(settings.home, allowed.before.timestamp())
            (settings.home / STAMP).touch()
        self.log.info("deleted files of %.2f MB below %s", deleted / 1e6, settings.home)
        return deleted

    def _clean_database(self, settings: Settings, allowed: Limits) -> None:
        from nightshift.services.environment import environment

        if allowed.remembered:
            self.log.info("the runs of %s stay, its last night is older", ", ".join(allowed.remembered))
        for command in clean_commands(allowed):
            # Not in this process: Airflow keeps tasks away from its database.
            done = subprocess.run(command, env=environment(settings), capture_output=True, text=True, timeout=AIRFLOW_SECONDS, check=False)
            if done.returncode:
                raise AirflowException(f"airflow db clean ended with {done.returncode}: {(done.stderr or done.stdout)[-2000:]}")
        self.log.info("Airflow's database has no runs from before %s", allowed.before)

    def _limits(self, settings: Settings, before: datetime) -> Limits:
        """Ask Airflow's API server, which this task has reached already to start.

        Raises:
            AirflowException: it does not answer; nothing is deleted, and the task is retried.
        """
        from nightshift.services.airflow_api import AirflowApi
        from nightshift.services.environment import USERNAME, airflow_url, credentials

        try:
            api = AirflowApi(airflow_url(settings), USERNAME, credentials(settings)["airflow_password"])
            try:
                return limits(api, before)
            finally:
                api.close()
        except NightshiftError as err:
            raise AirflowException(f"nothing was deleted from Airflow's database: {err}") from err


def is_laptop(settings: Settings) -> bool:
    """Return whether Airflow's database and logs are in the installation's own folder."""
    home = settings.home / "airflow"
    return os.environ.get("AIRFLOW_HOME") == str(home) and (home / "airflow.db").is_file()


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
