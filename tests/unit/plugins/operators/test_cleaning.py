"""Housekeeping deletes what retention lets go: in the store once a day, and beside it on a laptop alone."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from devstack import cleaning
from devstack.airflow_database import CleaningLimits
from devstack.cleaning import OF_RUNS, delete_old_file, delete_old_folder, delete_old_folders, delete_old_studies
from nightshift.operators.cleaning import CleanHomeOperator, CollectOperator
from tests.unit.training.store.collected_store import collector_of
from training.errors import UnavailableError
from training.retention.settings import Retention
from training.store import Store
from training.store.garbage_collector import Collector

OLD = time.time() - 60 * 86_400


def write(path: Path, *, old: bool) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x" * 100, encoding="utf-8")
    if old:
        os.utime(path, (OLD, OLD))
        os.utime(path.parent, (OLD, OLD))
        os.utime(path.parent.parent, (OLD, OLD))
    return path


def test_collection_runs_once_in_its_interval(store: Store, execute: Callable[..., Any], context_of: Callable[..., Any]) -> None:
    task = CollectOperator(task_id="collect")
    store.objects.put_bytes(b"garbage")
    assert execute(task, context_of("collect")) == {"kept": 0, "condemned": 7, "deleted": 0}
    with pytest.raises(AirflowSkipException, match="the last collection ended"):
        execute(task, context_of("collect"))


def test_collection_beside_another_one_is_skipped_and_a_damaged_record_fails_the_task(
    store: Store, execute: Callable[..., Any], context_of: Callable[..., Any]
) -> None:
    running = collector_of(store, Retention().rules())
    running._begin()
    with pytest.raises(AirflowSkipException, match=r"retention\.running"):
        execute(CollectOperator(task_id="collect"), context_of("collect"))
    running._end("failed")
    store.bucket.put("refs/kept/x/0000000001.json", b"{")
    with pytest.raises(AirflowFailException, match=r"refs/kept/x/0000000001\.json"):
        execute(CollectOperator(task_id="collect"), context_of("collect"))


def test_wrong_settings_fail_the_task(
    installation: Path, monkeypatch: pytest.MonkeyPatch, execute: Callable[..., Any], context_of: Callable[..., Any]
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_RETENTION", str(installation / "absent.yaml"))
    for task in (CollectOperator(task_id="collect"), CleanHomeOperator(task_id="clean")):
        with pytest.raises(AirflowFailException, match=r"settings\.retention"):
            execute(task, context_of("collect"))


def clean_home(home: Path) -> int:
    before = time.time() - Retention().runs.total_seconds()
    return delete_old_folders(home, OF_RUNS, before) + delete_old_studies(home / "tuning", before)


def test_old_reports_and_journals_go_and_young_ones_stay(installation: Path) -> None:
    gone = [
        write(installation / "reports" / "p" / "r1" / "evaluation.html", old=True),
        write(installation / "tuning" / "s1.journal", old=True),
    ]
    kept = [
        write(installation / "reports" / "p" / "r2" / "evaluation.html", old=False),
        write(installation / "tuning" / "s2.journal", old=True),
        write(installation / "tuning" / "s2.lock", old=False),
    ]
    assert clean_home(installation) == 200
    assert [path.exists() for path in (*gone, *kept)] == [False] * len(gone) + [True] * len(kept)


def test_logs_go_by_the_limit_that_unfinished_runs_set(
    installation: Path, monkeypatch: pytest.MonkeyPatch, execute: Callable[..., Any], context_of: Callable[..., Any]
) -> None:
    runs = installation / "airflow" / "logs" / "dag_id=p"
    service = write(installation / "logs" / "scheduler.log", old=True)
    old = write(runs / "run_id=1" / "task_id=train" / "attempt=1.log", old=True)
    young = write(runs / "run_id=2" / "task_id=train" / "attempt=1.log", old=False)
    write(installation / "airflow" / "airflow.db", old=False)
    monkeypatch.setenv("AIRFLOW_HOME", str(installation / "airflow"))
    monkeypatch.setattr(cleaning.subprocess, "run", lambda *_arguments, **_options: SimpleNamespace(returncode=0))
    for seconds, expected in ((-60.0, [True, True, True]), (60.0, [False, True, True])):
        (installation / cleaning.STAMP).unlink(missing_ok=True)
        limit = datetime.fromtimestamp(OLD + seconds, UTC)
        monkeypatch.setattr(
            cleaning, "limits", lambda _api, _before, limit=limit: CleaningLimits(before=limit, reason="run 1 of p is running")
        )
        execute(CleanHomeOperator(task_id="clean"), context_of("clean"))
        assert [path.exists() for path in (old, young, service)] == expected


@pytest.mark.parametrize("how", ["appended", "replaced"])
def test_file_that_is_renewed_between_the_look_and_its_removal_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    path, before = write(tmp_path / "run" / "task" / "1.log", old=True), time.time() - 86_400
    other = write(tmp_path / "run" / "task" / "2.log", old=True)
    real = Path.rename

    def renewed(self: Path, target: Path) -> Path:
        if self == path:
            if how == "appended":
                with path.open("a", encoding="utf-8") as file:
                    file.write("new")
            else:
                write(path.with_name("next"), old=False).replace(path)
        return real(self, target)

    monkeypatch.setattr(Path, "rename", renewed)
    assert delete_old_folder(tmp_path / "run", before) == 100
    assert path.exists()
    assert not other.exists()
    assert [found.name for found in path.parent.iterdir()] == ["1.log"]


def test_file_that_is_made_again_while_the_old_one_goes_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "run" / "task" / "1.log", old=True)
    real = Path.rename

    def renewed(self: Path, target: Path) -> Path:
        done = real(self, target)
        with target.open("a", encoding="utf-8") as file:
            file.write("of a writer that had the old name open")
        write(path, old=False)
        return done

    monkeypatch.setattr(Path, "rename", renewed)
    assert delete_old_file(path, time.time() - 86_400) == 0
    texts = {found.read_text(encoding="utf-8") for found in path.parent.iterdir()}
    assert texts == {"x" * 100, "x" * 100 + "of a writer that had the old name open"}


@pytest.mark.parametrize("vanishes", ["at the look", "at the removal"])
def test_file_that_another_process_deletes_in_the_meantime_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vanishes: str
) -> None:
    path = write(tmp_path / "run" / "task" / "1.log", old=True)
    write(tmp_path / "run" / "task" / "2.log", old=True)
    name = "lstat" if vanishes == "at the look" else "rename"
    real = getattr(Path, name)

    def gone(self: Path, *arguments: Any) -> Any:
        if self == path:
            path.unlink(missing_ok=True)
            os.utime(path.parent, (OLD, OLD))
        return real(self, *arguments)

    monkeypatch.setattr(Path, name, gone)
    assert delete_old_folder(tmp_path / "run", time.time() - 86_400) == 100
    assert list(tmp_path.rglob("*")) == []


def test_what_a_killed_cleaning_left_aside_of_a_study_goes_later(installation: Path) -> None:
    left = write(installation / "tuning" / "s1.journal.0123abcd", old=True)
    young = write(installation / "tuning" / "s2.lock.0123abcd", old=False)
    assert clean_home(installation) == 100
    assert (left.exists(), young.exists()) == (False, True)


def test_file_whose_name_leaves_no_room_to_rename_it_stays_and_stops_nothing(installation: Path) -> None:
    run = installation / "reports" / "p" / "r1"
    long, other = write(run / ("x" * 250), old=True), write(run / "a.html", old=True)
    assert clean_home(installation) == 100
    assert (long.exists(), other.exists()) == (True, False)


def test_last_collection_in_the_future_skips_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch, execute: Callable[..., Any], context_of: Callable[..., Any]
) -> None:
    monkeypatch.setattr(Collector, "last_done", lambda _self: datetime.now(UTC) + timedelta(days=400))
    assert execute(CollectOperator(task_id="collect"), context_of("collect")) == {"kept": 0, "condemned": 0, "deleted": 0}


def test_collection_that_takes_long_shows_progress_in_the_task_log(
    store: Store, monkeypatch: pytest.MonkeyPatch, execute: Callable[..., Any], context_of: Callable[..., Any]
) -> None:
    said = threading.Event()
    lines: list[str] = []

    def say(line: str, *_values: object) -> None:
        lines.append(line)
        said.set()

    real = Collector.last_done

    def last_done(self: Collector) -> Any:
        monkeypatch.setattr(self, "_interval_seconds", 0.01)
        monkeypatch.setattr(self._roots, "uris", lambda: (said.wait(60), ())[1])
        return real(self)

    monkeypatch.setattr(Collector, "last_done", last_done)
    monkeypatch.setattr(CollectOperator, "log", SimpleNamespace(info=say))
    execute(CollectOperator(task_id="collect"), context_of("collect"))
    assert "objects of" in lines[0]


def test_airflows_own_database_is_cleaned_on_a_laptop_once_in_its_interval(
    installation: Path, monkeypatch: pytest.MonkeyPatch, execute: Callable[..., Any], context_of: Callable[..., Any]
) -> None:
    task, calls = CleanHomeOperator(task_id="clean"), []
    with pytest.raises(AirflowSkipException, match="not this installation's own"):
        execute(task, context_of("clean"))
    write(installation / "airflow" / "airflow.db", old=False)
    monkeypatch.setenv("AIRFLOW_HOME", str(installation / "airflow"))

    instant = datetime(2026, 1, 1, tzinfo=UTC)
    monkeypatch.setattr(cleaning, "limits", lambda _api, _before: CleaningLimits(before=instant, reason="run r of d is running"))

    def run(command: list[str], **options: Any) -> Any:
        calls.append((command, options["env"]["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]))
        return SimpleNamespace(returncode=len(calls) - 1, stdout="", stderr="locked")

    monkeypatch.setattr(cleaning.subprocess, "run", run)
    execute(task, context_of("clean"))
    execute(task, context_of("clean"))
    ((command, database),) = calls
    assert command[2:7] == ["airflow", "db", "clean", "--clean-before-timestamp", "2026-01-01T00:00:00.000000+00:00"]
    assert database == f"sqlite:///{installation}/airflow/airflow.db"
    # One of the future was made by a wrong clock.
    for made in (OLD, time.time() + 400 * 86_400):
        os.utime(installation / cleaning.STAMP, (made, made))
        with pytest.raises(AirflowException, match=r"ended with \d: locked"):
            execute(task, context_of("clean"))


def test_nothing_is_deleted_from_airflows_database_where_its_api_does_not_answer(
    installation: Path, monkeypatch: pytest.MonkeyPatch, execute: Callable[..., Any], context_of: Callable[..., Any]
) -> None:
    write(installation / "airflow" / "airflow.db", old=False)
    monkeypatch.setenv("AIRFLOW_HOME", str(installation / "airflow"))
    monkeypatch.setattr(cleaning.subprocess, "run", lambda *_arguments, **_options: pytest.fail("a command was started"))

    def away(*_arguments: object) -> CleaningLimits:
        raise UnavailableError("airflow.unreachable", "away")

    monkeypatch.setattr(cleaning, "limits", away)
    with pytest.raises(AirflowException, match=r"airflow\.unreachable.*nothing was deleted"):
        execute(CleanHomeOperator(task_id="clean"), context_of("clean"))
    assert not (installation / cleaning.STAMP).exists()
