"""What the store has about a run, by Airflow's ids: users of Airflow's API may write XCom, and not the store."""

from __future__ import annotations

import re
from typing import Final

from training.errors import shown, spec_error
from training.spec import PipelineSpec
from training.store import Store
from training.store.chains import Chain

RUN_ID_RULE: Final = r"(\.{0,2}[A-Za-z0-9_~:+-]|\.{3})[A-Za-z0-9_.~:+-]{0,249}"
"""Airflow's own rule, without what cannot name a folder in the store: `.` and `..`. Airflow takes a line break at the end, too."""


def check_run_id(run_id: str) -> None:
    """Refuse the id of a run that can have no folder in the store.

    Raises:
        SpecError: `run.id`.
    """
    if not re.fullmatch(RUN_ID_RULE, run_id):
        message = f"the run id {shown(run_id)} cannot name a folder in the store"
        hint = "trigger the run again, with an id of letters, digits and _ . ~ : + -, or without one"
        raise spec_error("trigger", "run.id", message, hint=hint, field="dag_run_id")


def settled_ref(store: Store, dag_id: str, run_id: str) -> Chain:
    """Return the ref with what a run's first task has settled."""
    return store.run_ref(dag_id, run_id, "settled")


def study_ref(store: Store, dag_id: str, run_id: str) -> Chain:
    """Return the ref with the name of the study that a run works on: `{"study": …}`."""
    return store.run_ref(dag_id, run_id, "study")


def settled_spec(store: Store, dag_id: str, run_id: str) -> PipelineSpec | None:
    """Return the spec that a run's first task has settled; None: it has not yet."""
    settled = settled_ref(store, dag_id, run_id).read()
    return None if settled is None else PipelineSpec.thaw(store.get_json(str(settled.value["spec_uri"])))


def planned_study(store: Store, dag_id: str, run_id: str) -> str | None:
    """Return the name of the study that a run works on; None: it is not planned."""
    planned = study_ref(store, dag_id, run_id).read()
    return None if planned is None else str(planned.value["study"])
