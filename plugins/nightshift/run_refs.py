"""What the store has about a run, by Airflow's ids: users of Airflow's API may write XCom, and not the store."""

from __future__ import annotations

from training.store import Store
from training.store.refs import Ref


def settled_ref(store: Store, dag_id: str, run_id: str) -> Ref:
    """Return the ref with what a run's first task has settled."""
    return store.run_ref(dag_id, run_id, "settled")


def study_ref(store: Store, dag_id: str, run_id: str) -> Ref:
    """Return the ref with the name of the study that a run works on: `{"study": …}`."""
    return store.run_ref(dag_id, run_id, "study")
