"""Makes the pools that a run of a pipeline needs, and gives them the installation's slots, when the run starts.

In each kind of installation, and for pipelines that were added later: tasks of a missing pool never run. A pool's description says how
many slots it was given here. While that is the number it has, it follows the installation; a pool whose number or description a person has
changed keeps its size. The scheduler calls this, and its own transaction has the rows, as in `run_notes`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow.listeners import hookimpl
from sqlalchemy import select, update

from nightshift.airflow_ext.pools import OTHERS, PURPOSES
from nightshift.airflow_ext.run_notes import is_ours
from nightshift.settings import Settings
from nightshift.slots import slots_by_pool

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from sqlalchemy.orm import Session

logger = logging.getLogger("nightshift.airflow_ext.pool_creation")


@hookimpl
def on_dag_run_running(dag_run: DagRun, msg: str) -> None:
    """Make the missing pools of the tasks of a run of ours, and resize those that this made with other slots."""
    del msg
    from airflow.models.pool import Pool
    from sqlalchemy.orm import object_session

    session = object_session(dag_run)
    if session is None:
        return
    names = {task.pool for task in dag_run.get_dag().tasks}
    if not is_ours(session, dag_run.dag_id):
        return
    slots = slots_by_pool(Settings.from_environment())
    found = {pool.pool: pool for pool in session.scalars(select(Pool).where(Pool.pool.in_(names)))}
    # In the same order everywhere: two schedulers would otherwise wait for each other.
    for name in sorted(names - {Pool.DEFAULT_POOL_NAME}):
        wanted = slots.get(name, 1)
        if name not in found:
            make_pool(session, name, wanted)
        elif found[name].slots != wanted and found[name].description == description(name, found[name].slots):
            _resize(session, name, found[name].slots, wanted)


def description(name: str, slots: int) -> str:
    """Return the description of a pool that was given so many slots here."""
    return f"{PURPOSES.get(name, OTHERS)}; given {slots} by Nightshift"


def make_pool(session: Session, name: str, slots: int) -> None:
    """Add a pool that another process may be adding, to the transaction of a session."""
    from airflow.models.pool import Pool
    from sqlalchemy.dialects import postgresql, sqlite

    # Another scheduler may make it at the same time. An error would end this scheduler's transaction.
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    row = {"pool": name, "slots": slots, "description": description(name, slots), "include_deferred": False}
    session.execute(insert(Pool).values(row).on_conflict_do_nothing())
    logger.info("made the pool %s with %d slots", name, slots)


def _resize(session: Session, name: str, before: int, slots: int) -> None:
    from airflow.models.pool import Pool

    # A person may be changing it at the same time: theirs stays.
    unchanged = (Pool.pool == name, Pool.slots == before, Pool.description == description(name, before))
    session.execute(update(Pool).where(*unchanged).values(slots=slots, description=description(name, slots)))
    logger.info("the pool %s had %d slots, and has %d now", name, before, slots)
