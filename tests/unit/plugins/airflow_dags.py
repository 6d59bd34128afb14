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
from training.spec.loader import parse_spec
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
