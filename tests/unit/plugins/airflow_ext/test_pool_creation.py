"""Pools that a run needs: made by the scheduler as the run starts, in whatever way Airflow was installed."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from airflow.api.common.delete_dag import delete_dag
from airflow.models import DagRun, Pool  # noqa: TID251 - what the listener is given, and what it makes
from airflow.sdk import DAG, BaseOperator
from airflow.utils.session import create_session
from sqlalchemy import create_engine, delete, func, select, text, update
from sqlalchemy.orm import Session

from nightshift.airflow_ext import pool_creation
from nightshift.slots import CPU
from nightshift.wiring.housekeeping import housekeeping_dag
from nightshift.wiring.pipeline import build_dag
from nightshift_plugin import NightshiftPlugin
from tests.databases import postgres_cluster, why_no_postgres
from tests.unit.plugins.airflow_dags import running_run, write_dag
from training.runtime.provenance import CHECKOUT
from training.spec import parse_spec

SHIPPED = CHECKOUT / "dags" / "pipelines" / "search_ranking.yaml"


@pytest.fixture
def session(airflow_dags: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setenv("NIGHTSHIFT_SLOTS", "cpu:6,train:2")
    with create_session() as session:
        session.execute(delete(DagRun))
        session.execute(delete(Pool).where(Pool.pool != Pool.DEFAULT_POOL_NAME))
    with create_session() as session:
        yield session
    with create_session() as session:
        session.execute(delete(Pool).where(Pool.pool != Pool.DEFAULT_POOL_NAME))


def started(session: Session, dag_id: str) -> DagRun:
    """Start a run as the scheduler does, which keeps its transaction open."""
    run = running_run(session, dag_id)
    pool_creation.on_dag_run_running(dag_run=run, msg="started")
    return run


def announced(run: DagRun) -> None:
    """Announce a run that has started once more, as the next run would be."""
    pool_creation.on_dag_run_running(dag_run=run, msg="started")


def slots(session: Session) -> dict[str, int]:
    rows = session.execute(select(Pool.pool, Pool.slots).where(Pool.pool != Pool.DEFAULT_POOL_NAME))
    return {str(name): count for name, count in rows}


def test_the_first_run_of_an_installation_makes_the_pools_of_its_tasks(session: Session) -> None:
    started(session, "search_ranking")
    assert slots(session) == {"cpu": 6, "train": 2}


def test_a_pool_that_was_made_here_follows_the_slots_of_the_installation(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    run = started(session, "search_ranking")
    monkeypatch.setenv("NIGHTSHIFT_SLOTS", "cpu:12,train:4")
    announced(run)
    assert slots(session) == {"cpu": 12, "train": 4}
    monkeypatch.setenv("NIGHTSHIFT_SLOTS", "cpu:3,train:4")
    announced(run)
    assert slots(session) == {"cpu": 3, "train": 4}


def test_a_pool_that_a_person_has_resized_keeps_its_size(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    run = started(session, "search_ranking")
    # As Airflow's page does, which leaves the description, and as `airflow pools set` does, which wants a new one.
    session.execute(update(Pool).where(Pool.pool == CPU).values(slots=9))
    session.execute(update(Pool).where(Pool.pool == "train").values(slots=2, description="two of them"))
    monkeypatch.setenv("NIGHTSHIFT_SLOTS", "cpu:12,train:4")
    announced(run)
    assert slots(session) == {"cpu": 9, "train": 2}


def test_housekeeping_has_a_pool_of_its_own(session: Session) -> None:
    write_dag(housekeeping_dag())
    started(session, "housekeeping")
    assert slots(session) == {"housekeeping": 2}
    session.commit()
    delete_dag("housekeeping")


def test_a_pool_that_a_pipeline_names_is_made_with_one_slot(session: Session) -> None:
    named = (
        SHIPPED.read_bytes().replace(b"placement: {", b"placement: {pool: night_gpus, ").replace(b"name: search_ranking", b"name: named")
    )
    write_dag(build_dag(parse_spec(named), SHIPPED))
    started(session, "named")
    assert slots(session) == {"cpu": 6, "night_gpus": 1}
    session.commit()
    delete_dag("named")


def test_a_run_of_a_dag_that_is_not_ours_makes_no_pool(session: Session) -> None:
    with DAG(dag_id="theirs", schedule=None) as dag:
        BaseOperator(task_id="task", pool="mistyped")
    write_dag(dag)
    started(session, "theirs")
    assert slots(session) == {}
    session.commit()
    delete_dag("theirs")


def test_the_plugin_has_the_scheduler_call_it() -> None:
    assert pool_creation in NightshiftPlugin.listeners


# SQLite has one writer, and no row that another transaction is adding.
@pytest.mark.skipif(bool(why_no_postgres()), reason=why_no_postgres())
def test_two_schedulers_that_start_first_runs_at_once_make_a_pool_once_on_postgresql() -> None:
    with postgres_cluster() as url:
        engine = create_engine(url)
        Pool.metadata.create_all(engine, tables=[Pool.metadata.tables["team"], Pool.__table__])
        with Session(engine) as first, Session(engine) as second, engine.connect() as observer, ThreadPoolExecutor() as threads:
            pool_creation.make_pool(first, CPU, 4)
            other = threads.submit(pool_creation.make_pool, second, CPU, 4)
            while not observer.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")):
                observer.rollback()
            first.commit()
            other.result()
            second.commit()
            assert second.scalar(select(func.count()).select_from(Pool)) == 1
        engine.dispose()
