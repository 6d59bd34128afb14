"""Deletes old files and old rows of Airflow's database of a laptop installation, as the retention settings say. docs/retention.md."""

from __future__ import annotations

import os
import secrets
import stat
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from devstack.airflow_api import AirflowApi
from devstack.airflow_database import CleaningLimits, clean_commands, limits
from devstack.environment import USERNAME, airflow_url, credentials, environment
from nightshift.settings import Settings
from training.errors import NightshiftError, UnavailableError

if TYPE_CHECKING:
    from training.retention.settings import Retention

AIRFLOW_SECONDS: Final = 600
STAMP: Final = "airflow-cleaned"
"""File of the installation whose time is that of the last cleaning of Airflow's database."""
FUTURE_SECONDS: Final = 60.0
"""A stamp may be younger than this machine's clock by so much."""
OF_RUNS: Final = ("reports/*/*",)
"""Folders that go by `retention.runs`: copies of a run's reports."""
OF_AIRFLOW: Final = tuple(f"{logs}/{unit}" for logs in ("airflow/logs", "logs") for unit in ("dag_id=*/*", "dag_processor/*"))
"""Folders that go by `retention.airflow`, and not before a run that is unfinished: logs of a run's tasks, a day's of the DAG processor."""
STUDY_FILES: Final = tuple(f"*.{kind}{aside}" for kind in ("journal", "lock") for aside in ("", "." + "[0-9a-f]" * 8))
"""Files of studies, which go by `retention.runs`, also under the names that `delete_old_file` gives them."""


def clean(settings: Settings, retention: Retention, say: Callable[[str], None]) -> int:
    """Delete old files of the home, and once in `retention.every` old rows and logs of Airflow; return the bytes of the files.

    Raises:
        NightshiftError: `airflow.unclean`, Airflow's own command failed; `airflow.unreachable`: nothing was deleted from its database.
    """
    old_runs = time.time() - retention.runs.total_seconds()
    deleted = delete_old_folders(settings.home, OF_RUNS, old_runs) + delete_old_studies(settings.home / "tuning", old_runs)
    if is_due(settings.home / STAMP, retention.every):
        allowed = _limits(settings, datetime.now(UTC) - retention.airflow)
        if allowed.reason:
            say(f"Airflow keeps all rows and logs since {allowed.before}: {allowed.reason}")
        _clean_database(settings, allowed, say)
        deleted += delete_old_folders(settings.home, OF_AIRFLOW, allowed.before.timestamp())
        (settings.home / STAMP).touch()
    return deleted


def _clean_database(settings: Settings, allowed: CleaningLimits, say: Callable[[str], None]) -> None:
    if allowed.remembered:
        say(f"the runs of {', '.join(allowed.remembered)} stay, its last night is older")
    for command in clean_commands(allowed):
        # Not in this process: Airflow keeps tasks away from its database.
        done = subprocess.run(command, env=environment(settings), capture_output=True, text=True, timeout=AIRFLOW_SECONDS, check=False)
        if done.returncode:
            said = (done.stderr or done.stdout)[-2000:]
            raise NightshiftError("airflow.unclean", f"airflow db clean ended with {done.returncode}: {said}")
    say(f"Airflow's database has no runs from before {allowed.before}")


def _limits(settings: Settings, before: datetime) -> CleaningLimits:
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


def delete_old_folders(home: Path, patterns: Iterable[str], before: float) -> int:
    """Delete the folders of these patterns in which everything is older than an instant; return the bytes of the deleted files.

    Args:
        before: seconds since the epoch.
    """
    found = sorted(folder for pattern in patterns for folder in home.glob(pattern) if folder.is_dir())
    return sum(delete_old_folder(folder, before) for folder in found if not folder.is_symlink() and not folder.parent.is_symlink())


def delete_old_studies(folder: Path, before: float) -> int:
    """Delete journals of studies with their locks, and what a cleaning that was killed left of them; return their bytes.

    The files of a study go together: each trial takes the lock again before it writes to the journal.
    """
    studies: dict[str, list[Path]] = {}
    for path in sorted(found for pattern in STUDY_FILES for found in folder.glob(pattern)):
        studies.setdefault(path.name.partition(".")[0], []).append(path)
    deleted = 0
    for paths in studies.values():
        if newest(paths) < before:
            for path in paths:
                deleted += delete_old_file(path, before)
                if path.exists():
                    # The journal was written to in the meantime: its lock stays.
                    break
    return deleted


def delete_old_folder(folder: Path, before: float) -> int:
    """Delete a folder in which everything is older than an instant; return the bytes of the deleted files.

    Args:
        before: seconds since the epoch. Where anything in the folder is younger, all of it stays.
    """
    found = list(_below(folder))
    if newest([folder, *found]) >= before:
        return 0
    # Files first, then the folders from the innermost out: one that is not empty has got something new, and stays.
    deleted = sum(delete_old_file(path, before) for path in found)
    for path in [*found, folder]:
        with suppress(OSError):
            os.rmdir(path)
    return deleted


def delete_old_file(path: Path, before: float) -> int:
    """Delete a file, or a symbolic link, that is older than an instant; return its bytes, 0 for a folder or where it stays.

    The file is renamed before the last check of its age. A process that opens its name after that makes a new file; if something was
    written before, the file gets its name back. A file that was deleted in the meantime, or cannot be renamed or deleted, is skipped.
    """
    aside = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        if stat.S_ISDIR(path.lstat().st_mode):
            return 0
        path.rename(aside)
        status = aside.lstat()
        if status.st_mtime < before:
            aside.unlink()
            return status.st_size
    except OSError:
        return 0
    # A link does not replace a file that was made under the name in the meantime; then both stay.
    with suppress(OSError):
        os.link(aside, path, follow_symlinks=False)
        aside.unlink()
    return 0


def newest(paths: Iterable[Path]) -> float:
    """Return the time of the last change of any of the paths, seconds since the epoch; 0 where there is none."""
    times = [0.0]
    for path in paths:
        with suppress(FileNotFoundError):
            times.append(path.lstat().st_mtime)
    return max(times)


def _below(folder: Path) -> Iterator[Path]:
    """Yield everything below a folder, innermost first; a folder that vanishes in the meantime counts as empty."""
    for place, folders, files in os.walk(folder, topdown=False):
        yield from (Path(place, name) for name in [*files, *folders])
