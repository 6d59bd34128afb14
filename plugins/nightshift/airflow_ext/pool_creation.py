"""Makes the pools that a run of a pipeline needs and that do not exist, when the run starts: tasks of a missing pool never run.

In each kind of installation, and for pipelines that were added later. A pool that exists keeps its size. The scheduler calls this, and its
own transaction has the rows, as in `run_notes`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from airflow.listeners import hookimpl
from sqlalchemy import select

from nightshift.airflow_ext.pools import POOLS, Pool
from nightshift.airflow_ext.run_notes import is_ours

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from sqlalchemy.orm import Session

logger = logging.getLogger("nightshift.airflow_ext.pool_creation")

KNOWN: Final = {pool.name: pool for pool in POOLS}


@hookimpl
def on_dag_run_running(dag_run: DagRun, msg: str) -> None:
    """Make the missing pools of the tasks of a run of ours."""
    del msg
    from airflow.models.pool import Pool as PoolRow
    from sqlalchemy.orm import object_session

    session = object_session(dag_run)
    if session is None:
        return
    wanted = {task.pool for task in dag_run.get_dag().tasks}
    missing = wanted.difference(session.scalars(select(PoolRow.pool).where(PoolRow.pool.in_(wanted))))
    if missing and is_ours(session, dag_run.dag_id):
        # In the same order everywhere: two schedulers would otherwise wait for each other.
        for name in sorted(missing):
            make_pool(session, KNOWN.get(name) or Pool(name=name, slots=1, description="Named by a pipeline"))


def make_pool(session: Session, pool: Pool) -> None:
    """Add a pool that another process may be adding, to the transaction of a session."""
    from airflow.models.pool import Pool as PoolRow
    from sqlalchemy.dialects import postgresql, sqlite

    # Another scheduler may make it at the same time. An error would end this scheduler's transaction.
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    row = {"pool": pool.name, "slots": pool.slots, "description": pool.description, "include_deferred": False}
    session.execute(insert(PoolRow).values(row).on_conflict_do_nothing())
    logger.info("made the pool %s with %s slots: %s", pool.name, pool.slots, pool.description)
