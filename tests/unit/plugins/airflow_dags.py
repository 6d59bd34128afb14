"""The shipped pipelines in Airflow's database, as its parser writes them."""

from __future__ import annotations

from airflow.models.dagbundle import DagBundleModel  # noqa: TID251 - the database that the api-server and the scheduler read
from airflow.models.serialized_dag import SerializedDagModel  # noqa: TID251 - as above
from airflow.sdk import DAG
from airflow.serialization.definitions.dag import SerializedDAG
from airflow.serialization.serialized_objects import LazyDeserializedDAG
from airflow.utils.session import create_session

from nightshift.wiring.pipeline import build_dag, decision_dags
from nightshift.wiring.rollback import rollback_dag
from training.runtime.provenance import CHECKOUT
from training.spec import load_spec

PIPELINES = ("search_ranking", "flight_delay")
BUNDLE = "dags-folder"


def write_dags() -> None:
    """Write the DAGs of the pipelines, helper DAGs too."""
    with create_session() as session:
        if session.get(DagBundleModel, BUNDLE) is None:
            session.add(DagBundleModel(name=BUNDLE))
    _write(rollback_dag())
    for name in PIPELINES:
        path = CHECKOUT / "dags" / "pipelines" / f"{name}.yaml"
        spec = load_spec(path)
        for dag in (build_dag(spec, path), *decision_dags(spec, path)):
            _write(dag)


def _write(dag: DAG) -> None:
    lazy = LazyDeserializedDAG.from_dag(dag)
    with create_session() as session:
        SerializedDAG.bulk_write_to_db(BUNDLE, None, [lazy], session=session)
        SerializedDagModel.write_dag(lazy, bundle_name=BUNDLE, session=session)
