"""Manual rollback of a model to an earlier champion, by an order of the REST API.

`nightshift rollback MODEL --server URL --reason …` gives the order, which needs the rights on the pipelines of that model, and starts this
DAG with its id. `nightshift rollback` without a server does it without Airflow, and so without events and alerts.
"""

from __future__ import annotations

from airflow.sdk import DAG, Param

from nightshift.operators.rollback import RollbackOperator
from nightshift.wiring.task_classes import task_class
from training.spec.rules.names import HELPER_TAG, ROLLBACK


def rollback_dag() -> DAG:
    """Return the DAG `rollback`."""
    dag = DAG(
        dag_id=ROLLBACK,
        description="Helper of all pipelines: makes an earlier version of a model champion again, in seconds",
        doc_md=__doc__,
        schedule=None,
        catchup=False,
        is_paused_upon_creation=False,
        tags=["nightshift", HELPER_TAG],
        params={
            "order": Param(type="string", pattern="^[0-9a-f]{32}$", description="Id of an order that the REST API has written."),
        },
    )
    with dag:
        # Not the pool of stages: a rollback waits for no evaluation.
        rolling_back, arguments = task_class(RollbackOperator, "promote", None)
        rolling_back(task_id=ROLLBACK, retries=2, **arguments)
    return dag
