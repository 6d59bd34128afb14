"""What is deleted from a real Airflow database, by Airflow's own command, and what unfinished runs and `make run` still need."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from devstack.airflow_api import AirflowApi
from devstack.airflow_database import MARGIN, CleaningLimits, clean_commands, limits

pytestmark = pytest.mark.slow

NOW = datetime.now(UTC)
BEFORE = NOW - timedelta(days=30)
PREFIX = "cleaning-"
"""Of this file's DAGs: the database is that of all unit tests."""


def ago(days: float) -> datetime:
    return NOW - timedelta(days=days)


class Database:
    """Rows of DAGs, runs, tasks, results and triggers, as the scheduler makes them."""

    def __init__(self, path: str) -> None:
        self.path = path
        if self.one("SELECT count(*) FROM dag_bundle WHERE name = 'cleaning'") == 0:
            self.insert("dag_bundle", name="cleaning")

    def insert(self, table: str, **values: Any) -> int:
        """Add a row; columns that are required and not named are empty. Return its number."""
        with closing(sqlite3.connect(self.path)) as database:
            for _, name, kind, is_required, default, key in database.execute(f"PRAGMA table_info({table})").fetchall():
                if is_required and default is None and not key:
                    values.setdefault(name, filler(kind))
            names, marks = ", ".join(f'"{name}"' for name in values), ", ".join("?" * len(values))
            added = database.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(values.values()))  # noqa: S608 - tests' own
            database.commit()
            return int(added.lastrowid or 0)

    def one(self, query: str, *values: Any) -> Any:
        with closing(sqlite3.connect(self.path)) as database:
            return database.execute(query, values).fetchone()[0]

    def dag(self, name: str) -> str:
        dag_id = f"{PREFIX}{name}"
        self.insert("dag", dag_id=dag_id, bundle_name="cleaning", last_parsed_time=stored(NOW), max_active_tasks=1, fileloc="f.py")
        return dag_id

    def run(self, dag_id: str, run_id: str, *, days: float, state: str, run_type: str = "manual", **more: Any) -> None:
        """Add a run that was created so many days ago, with a finished task and its result of the same day."""
        instants = {"run_after": ago(days), "queued_at": ago(days), "start_date": ago(days), **more}
        values = {name: None if instant is None else stored(instant) for name, instant in instants.items()}
        self.insert("dag_run", dag_id=dag_id, run_id=run_id, run_type=run_type, state=state, conf="{}", **values)
        self.task(dag_id, run_id, "ingest", days=days, state="success")

    def task(self, dag_id: str, run_id: str, task_id: str, *, days: float, state: str, trigger_id: int | None = None) -> None:
        instance = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id, "map_index": -1}
        times = {"start_date": stored(ago(days))}
        self.insert("task_instance", id=uuid.uuid4().hex, state=state, trigger_id=trigger_id, **instance, **times)
        self.insert("xcom", dag_run_id=self.number(dag_id, run_id), key="k", value="1", timestamp=stored(ago(days)), **instance)

    def trigger(self, *, days: float) -> int:
        return self.insert("trigger", classpath="c", kwargs="{}", created_date=stored(ago(days)))

    def event(self, dag_id: str, run_id: str, *, days: float) -> None:
        """Let a run be started by an asset event of so many days ago."""
        asset = self.insert("asset", name=dag_id, uri=f"x://{dag_id}", extra="{}", created_at=stored(NOW), updated_at=stored(NOW))
        event = self.insert("asset_event", asset_id=asset, extra="{}", source_map_index=-1, timestamp=stored(ago(days)))
        self.insert("dagrun_asset_event", dag_run_id=self.number(dag_id, run_id), event_id=event)

    def number(self, dag_id: str, run_id: str) -> int:
        return int(self.one("SELECT id FROM dag_run WHERE dag_id = ? AND run_id = ?", dag_id, run_id))

    def left(self, table: str, dag_id: str) -> set[str]:
        with closing(sqlite3.connect(self.path)) as database:
            return {row[0] for row in database.execute(f"SELECT run_id FROM {table} WHERE dag_id = ?", (dag_id,))}  # noqa: S608 - tests' own

    def count(self, table: str) -> int:
        return int(self.one(f"SELECT count(*) FROM {table}"))  # noqa: S608 - tests' own


def stored(instant: datetime) -> str:
    return instant.strftime("%Y-%m-%d %H:%M:%S.%f")


def filler(kind: str) -> Any:
    if kind.startswith(("DATETIME", "TIMESTAMP")):
        return stored(NOW)
    if kind == "JSON":
        return "{}"
    return 0 if kind.startswith(("INTEGER", "BIGINT", "SMALLINT", "BOOLEAN", "FLOAT")) else ""


@pytest.fixture
def database(airflow_database: None) -> Iterator[Database]:
    path = os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].removeprefix("sqlite:///")
    yield Database(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        for table in ("dag_run", "dag"):
            connection.execute(f"DELETE FROM {table} WHERE dag_id LIKE '{PREFIX}%'")  # noqa: S608 - tests' own
        for table in ("asset_event", "asset", "trigger"):
            connection.execute(f"DELETE FROM {table}")  # noqa: S608 - tests' own
        connection.commit()


@pytest.fixture
def api(database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AirflowApi:
    """Airflow's real API on that database, in this process, behind the client that an installation uses."""
    from airflow.api_fastapi.app import create_app
    from airflow.configuration import conf

    passwords = tmp_path / "passwords.json"
    passwords.write_text('{"ada": "secret"}', encoding="utf-8")
    conf.set("core", "simple_auth_manager_passwords_file", str(passwords))
    made = AirflowApi("http://airflow.test", "ada", "secret", retry_seconds=0)
    made._client.close()
    made._client = TestClient(create_app(apps="core"), base_url="http://airflow.test")
    return made


def clean(allowed: CleaningLimits) -> str:
    """Run Airflow's commands; return what they print."""
    said = ""
    for command in clean_commands(allowed):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
        said += done.stdout + done.stderr
    return said


def test_runs_that_have_not_finished_keep_their_tasks_results_and_triggers(database: Database, api: AirflowApi) -> None:
    training, approval, other = (database.dag(name) for name in ("training", "pipeline.approval", "other"))
    database.run(training, "long", days=60, state="running")
    database.run(approval, "asked", days=50, state="running", run_type="asset_triggered")
    database.event(approval, "asked", days=70)
    database.task(approval, "asked", "ask", days=50, state="deferred", trigger_id=database.trigger(days=50))
    database.run(other, "before", days=90, state="success")
    database.run(other, "beside", days=65, state="success")
    database.run(other, "young", days=1, state="success")
    allowed = limits(api, BEFORE)
    assert allowed.before == ago(70) - MARGIN, "the event that started the run which waits for an approval"
    assert allowed.reason == f"run asked of {approval} is running"
    said = clean(allowed)
    assert "not cleaned due to errors" not in said
    for table in ("dag_run", "task_instance", "xcom"):
        assert database.left(table, training) == {"long"}, table
        assert database.left(table, approval) == {"asked"}, table
        assert database.left(table, other) == {"beside", "young"}, table
    assert (database.count("trigger"), database.count("asset_event"), database.count("dagrun_asset_event")) == (1, 1, 1)


def test_nothing_is_deleted_while_a_run_of_an_event_has_not_begun(database: Database, api: AirflowApi) -> None:
    dag_id = database.dag("pipeline.approval")
    database.run(dag_id, "queued", days=0.1, state="queued", run_type="asset_triggered", start_date=None)
    database.event(dag_id, "queued", days=70)
    assert limits(api, BEFORE).before == datetime.fromtimestamp(0, UTC) - MARGIN


def test_command_without_the_limit_deletes_what_unfinished_runs_need(database: Database) -> None:
    """What Airflow's own command does by itself; the day that this fails, the limit may go."""
    dag_id = database.dag("training")
    database.run(dag_id, "long", days=60, state="running")
    clean(CleaningLimits(before=BEFORE))
    assert database.left("dag_run", dag_id) == set()


def test_run_whose_tasks_were_cleared_counts_from_its_first_start(database: Database, api: AirflowApi) -> None:
    dag_id = database.dag("cleared")
    database.run(dag_id, "again", days=45, state="running", queued_at=ago(0), start_date=ago(0))
    assert limits(api, BEFORE).before == ago(45) - MARGIN


def test_without_unfinished_runs_the_limit_is_that_of_the_settings(database: Database, api: AirflowApi) -> None:
    dag_id = database.dag("done")
    for state in ("success", "failed"):
        database.run(dag_id, state, days=60, state=state)
    database.run(dag_id, "now", days=0.1, state="queued", start_date=None)
    assert limits(api, BEFORE) == CleaningLimits(before=BEFORE)


def test_last_night_by_which_make_run_finds_the_next_one_stays_however_old(database: Database, api: AirflowApi) -> None:
    idle, busy = database.dag("idle"), database.dag("busy")
    database.run(idle, "night-2026-03-10", days=60, state="success")
    database.run(idle, "night-2026-02-05.2", days=5, state="success")
    database.run(busy, "night-2026-02-01", days=60, state="success")
    database.run(busy, "night-2026-02-02", days=2, state="success")
    database.run(busy, "by-hand", days=60, state="success")
    database.event(busy, "by-hand", days=60)
    allowed = limits(api, BEFORE)
    assert allowed == CleaningLimits(before=BEFORE, remembered=(idle,))
    clean(allowed)
    assert database.left("dag_run", idle) == {"night-2026-03-10", "night-2026-02-05.2"}
    assert database.left("dag_run", busy) == {"night-2026-02-02"}
    assert database.count("asset_event") == 0


class ShrinkingApi:
    """150 runs under way, of which the first one ends after each request; run 100 is the oldest."""

    def __init__(self) -> None:
        self.runs = [
            {"dag_id": "p", "dag_run_id": f"r{number}", "state": "running", "start_date": ago(1).isoformat()} for number in range(150)
        ]
        self.runs[100]["start_date"] = ago(60).isoformat()

    def get(self, path: str, *, limit: int, offset: int, **query: object) -> dict[str, object]:
        if "run_id_prefix_pattern" in query:
            return {"dag_runs": [], "total_entries": 0}
        page = {"dag_runs": self.runs[offset : offset + limit], "total_entries": len(self.runs)}
        self.runs = self.runs[1:]
        return page


def test_run_that_moves_to_another_page_while_others_end_is_not_overlooked() -> None:
    assert limits(ShrinkingApi(), BEFORE).before == ago(60) - MARGIN  # type: ignore[arg-type]
