"""The way back: one DAG for all models, triggered by hand.

`python -m training.registry rollback` does it without Airflow, and so without events and alerts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import DAG, Param

from nightshift.operators.rollback import RollbackOperator
from training.spec.rules.names import HELPER_TAG, ROLLBACK

if TYPE_CHECKING:
    pass


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
            "model": Param(type="string", minLength=1, maxLength=63, description="Name in the registry."),
            "version": Param(None, type=["null", "string"], description="Number or semantic version; empty: the champion before this one."),
            "reason": Param(type="string", minLength=1, maxLength=1000, description="For those who read the ledger a year later."),
        },
    )
    with dag:
        # Not the pool of stages: the way back waits for no evaluation.
        RollbackOperator(task_id=ROLLBACK, retries=2)
    return dag
