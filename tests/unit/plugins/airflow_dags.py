"""The shipped pipelines in Airflow's database, as its parser writes them."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.models.dagbundle import DagBundleModel  # noqa: TID251 - the database that the api-server and the scheduler read
from airflow.models.dagrun import DagRun  # noqa: TID251 - as below
from airflow.models.serialized_dag import SerializedDagModel  # noqa: TID251 - as above
from airflow.sdk import DAG
from airflow.serialization.definitions.dag import SerializedDAG
from airflow.serialization.serialized_objects import LazyDeserializedDAG
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from sqlalchemy.orm import Session

from nightshift.wiring.pipeline import build_dag, decision_dags
from nightshift.wiring.rollback import rollback_dag
from training.runtime.provenance import CHECKOUT
from training.spec import load_spec
from training.spec.reader.loader import parse_spec
from training.spec.rules.names import TUNE_SUFFIX

PIPELINES = ("search_ranking", "flight_delay")
BUNDLE = "dags-folder"
STUDY = b"\ntune:\n  trials: 3\n  space: {learning_rate: {float: [1e-4, 1e-2], log: true}}\n"
"""The section of a pipeline that has a study."""


def write_dags() -> None:
    """Write the DAGs of the pipelines, helper DAGs too."""
    with create_session() as session:
        if session.get(DagBundleModel, BUNDLE) is None:
            session.add(DagBundleModel(name=BUNDLE))
    write_dag(rollback_dag())
    for name in PIPELINES:
        path = CHECKOUT / "dags" / "pipelines" / f"{name}.yaml"
        spec = load_spec(path)
        for dag in (build_dag(spec, path), *decision_dags(spec, path)):
            write_dag(dag)
        # The shipped pipelines have no study: the helper DAG alone, so that the runs of the pipeline stay as they are shipped.
        studied = parse_spec(path.read_bytes() + STUDY, path.name)
        write_dag(next(dag for dag in decision_dags(studied, path) if dag.dag_id == f"{name}{TUNE_SUFFIX}"))


def write_dag(dag: DAG) -> None:
    """Write one DAG."""
    lazy = LazyDeserializedDAG.from_dag(dag)
    with create_session() as session:
        SerializedDAG.bulk_write_to_db(BUNDLE, None, [lazy], session=session)
        SerializedDagModel.write_dag(lazy, bundle_name=BUNDLE, session=session)


def running_run(session: Session, dag_id: str) -> DagRun:
    """Start the run `r1` as the scheduler does, which keeps its transaction open."""
    dag = SerializedDagModel.get_dag(dag_id, session=session)
    assert dag is not None
    run = dag.create_dagrun(
        run_id="r1",
        run_after=datetime(2026, 2, 1, tzinfo=UTC),
        logical_date=None,
        data_interval=None,
        run_type=DagRunType.MANUAL,
        triggered_by=DagRunTriggeredByType.REST_API,
        state=DagRunState.RUNNING,
        session=session,
    )
    session.flush()
    return run
