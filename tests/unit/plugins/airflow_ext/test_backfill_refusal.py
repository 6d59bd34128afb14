"""Airflow's own backfill on SQLite: refused before anything is written."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from airflow.exceptions import DagRunTypeNotAllowed
from airflow.models.backfill import Backfill, ReprocessBehavior, _create_backfill  # noqa: TID251 - what the api-server and the CLI call
from airflow.models.dagrun import DagRun  # noqa: TID251 - as above
from airflow.utils.session import create_session
from sqlalchemy import create_engine, delete, event, func, select
from sqlalchemy.orm import Session

from nightshift.airflow_ext import backfill_refusal
from nightshift_plugin import NightshiftPlugin
from tests.databases import postgres_cluster, why_no_postgres

DAG = "search_ranking"


@pytest.fixture(autouse=True)
def loaded() -> Iterator[None]:
    NightshiftPlugin.on_load()
    yield
    event.remove(Backfill, "before_insert", backfill_refusal._refuse)


def test_a_backfill_of_airflows_pages_is_refused_with_the_command_that_works(airflow_dags: None) -> None:
    with create_session() as session:
        session.execute(delete(DagRun))
    day = datetime(2026, 2, 1, tzinfo=UTC)
    with pytest.raises(DagRunTypeNotAllowed, match=f"nightshift backfill {DAG} --from DAY --to DAY"):
        _create_backfill(
            dag_id=DAG,
            from_date=day,
            to_date=day.replace(day=3),
            max_active_runs=1,
            reverse=False,
            dag_run_conf=None,
            triggering_user_name="ada",
            reprocess_behavior=ReprocessBehavior.NONE,
        )
    with create_session() as session:
        assert session.scalar(select(func.count()).select_from(Backfill)) == 0
        assert session.scalar(select(func.count()).select_from(DagRun)) == 0


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
