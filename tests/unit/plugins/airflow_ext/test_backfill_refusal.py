"""Airflow's own backfill on SQLite: refused before anything is written."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from airflow.api_fastapi.app import create_app, get_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.cli.cli_parser import get_parser
from airflow.cli.commands.backfill_command import create_backfill
from airflow.models.backfill import Backfill, BackfillDagRun  # noqa: TID251 - what the api-server and the command write
from airflow.models.dagrun import DagRun  # noqa: TID251 - as above
from airflow.utils.session import create_session
from fastapi.testclient import TestClient
from sqlalchemy import create_engine, delete, event, func, select
from sqlalchemy.orm import Session

from nightshift.airflow_ext import backfill_refusal
from nightshift.airflow_ext.backfill_refusal import HINT
from nightshift_plugin import NightshiftPlugin
from tests.databases import postgres_cluster, why_no_postgres

DAG = "search_ranking"


@pytest.fixture(autouse=True)
def loaded() -> Iterator[None]:
    NightshiftPlugin.on_load()
    yield
    event.remove(Backfill, "before_insert", backfill_refusal._refuse)


@pytest.fixture
def airflow_api(airflow_dags: None) -> TestClient:
    """Airflow's own application, and an administrator."""
    with create_session() as session:
        session.execute(delete(DagRun))
    client = TestClient(create_app(apps="core"))
    token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username="ada", role="admin"))
    client.headers["Authorization"] = f"Bearer {token}"
    return client


def num_written() -> int:
    with create_session() as session:
        return sum(session.scalar(select(func.count()).select_from(kind)) or 0 for kind in (Backfill, BackfillDagRun, DagRun))


def test_airflows_api_refuses_a_backfill_with_the_command_that_works(airflow_api: TestClient) -> None:
    days = {"from_date": "2026-02-01T00:00:00Z", "to_date": "2026-02-03T00:00:00Z"}
    answer = airflow_api.post("/api/v2/backfills", json={"dag_id": DAG, **days})
    assert (answer.status_code, answer.json()) == (400, {"detail": HINT.format(DAG)})
    assert num_written() == 0


def test_airflows_command_refuses_a_backfill_in_one_line(airflow_dags: None, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["backfill", "create", "--dag-id", DAG, "--from-date", "2026-02-01", "--to-date", "2026-02-03"]
    with pytest.raises(SystemExit, match="1"):
        create_backfill(get_parser().parse_args(given))
    assert capsys.readouterr().out.splitlines()[-1] == f"Warning: {HINT.format(DAG)}"
    assert num_written() == 0


@pytest.mark.skipif(bool(why_no_postgres()), reason=why_no_postgres())
def test_a_backfill_is_made_on_postgresql() -> None:
    with postgres_cluster() as url:
        engine = create_engine(url)
        Backfill.metadata.create_all(engine, tables=[Backfill.__table__])  # type: ignore[list-item]
        now = datetime.now(UTC)
        with Session(engine) as session:
            session.add(Backfill(dag_id=DAG, from_date=now, to_date=now, max_active_runs=1))
            session.commit()
            assert session.scalar(select(func.count()).select_from(Backfill)) == 1
        engine.dispose()
