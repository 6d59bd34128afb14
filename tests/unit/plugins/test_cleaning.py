"""Housekeeping deletes what retention lets go: in the store once a day, and beside it on a laptop alone."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from nightshift import cleaning
from nightshift.cleaning import CleanHomeOperator, CollectOperator, clean_home
from training.retention.settings import Retention
from training.store import Store
from training.store.collector import Collector

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
    running = Collector(store, Retention().rules())
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
        with pytest.raises(AirflowFailException, match=r"retention\.unreadable"):
            execute(task, context_of("collect"))


def test_old_logs_reports_and_journals_go_and_young_ones_stay(installation: Path) -> None:
    runs = installation / "airflow" / "logs" / "dag_id=p"
    gone = [
        write(runs / "run_id=1" / "task_id=train" / "attempt=1.log", old=True),
        write(installation / "reports" / "p" / "r1" / "evaluation.html", old=True),
        write(installation / "tuning" / "s1.journal", old=True),
    ]
    kept = [
        write(runs / "run_id=2" / "task_id=train" / "attempt=1.log", old=False),
        write(installation / "logs" / "scheduler.log", old=True),
        write(installation / "reports" / "p" / "r2" / "evaluation.html", old=False),
        write(installation / "tuning" / "s2.journal", old=True),
        write(installation / "tuning" / "s2.lock", old=False),
    ]
    assert clean_home(installation, Retention(), now=time.time()) == 300
    assert [path.exists() for path in (*gone, *kept)] == [False] * len(gone) + [True] * len(kept)


def test_airflows_own_database_is_cleaned_on_a_laptop_once_in_its_interval(
    installation: Path, monkeypatch: pytest.MonkeyPatch, execute: Callable[..., Any], context_of: Callable[..., Any]
) -> None:
    task, calls = CleanHomeOperator(task_id="clean"), []
    with pytest.raises(AirflowSkipException, match="not this installation's own"):
        execute(task, context_of("clean"))
    write(installation / "airflow" / "airflow.db", old=False)
    monkeypatch.setenv("AIRFLOW_HOME", str(installation / "airflow"))

    def run(command: list[str], **options: Any) -> Any:
        calls.append((command, options["env"]["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]))
        return SimpleNamespace(returncode=len(calls) - 1, stdout="", stderr="locked")

    monkeypatch.setattr(cleaning.subprocess, "run", run)
    execute(task, context_of("clean"))
    execute(task, context_of("clean"))
    ((command, database),) = calls
    assert command[2:5] == ["airflow", "db", "clean"]
    assert database == f"sqlite:///{installation}/airflow/airflow.db"
    os.utime(installation / cleaning.STAMP, (OLD, OLD))
    with pytest.raises(AirflowException, match="ended with 1: locked"):
        execute(task, context_of("clean"))


@pytest.mark.slow
@pytest.mark.usefixtures("airflow_database")
def test_airflow_takes_the_command_that_cleans_its_database() -> None:
    from datetime import UTC, datetime

    done = subprocess.run(
        cleaning.clean_command(datetime(2020, 1, 1, tzinfo=UTC)), capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
