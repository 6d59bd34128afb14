"""Notes in our database how a run has ended, for SQL clients (docs/sql.md). Housekeeping notes what is missing once an hour.

A callback of the DAG, and no listener: the dag-processor calls it in a process of its own, and the scheduler never waits for our database.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nightshift.settings import Settings


def run_ended(state: str) -> Callable[[Mapping[str, Any]], None]:
    """Return a callback for runs that end in a state of Airflow's, `success` or `failed`."""

    def note(context: Mapping[str, Any]) -> None:
        # SQLAlchemy: a DAG file needs none of it.
        from training.database.pipeline_runs import QUEUED, RUNNING, note_state

        engine = Settings.from_environment().database()
        for noted in (RUNNING, QUEUED):
            note_state(engine, context["dag"].dag_id, context["run_id"], state, noted=noted)

    return note
