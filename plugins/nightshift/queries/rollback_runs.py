"""Runs of the DAG `rollback`: one for each order, which begins again where it failed."""

from __future__ import annotations

from typing import Any, Final, cast

from airflow.api.common.trigger_dag import trigger_dag
from airflow.exceptions import DagNotFound, DagRunAlreadyExists
from airflow.models import DagRun
from airflow.models.serialized_dag import SerializedDagModel
from airflow.utils.state import DagRunState
from airflow.utils.types import DagRunTriggeredByType
from sqlalchemy import CursorResult, select, update
from sqlalchemy.exc import IntegrityError

from nightshift.queries.runs import airflow_session
from nightshift.queries.schemas import RunState
from nightshift.settings import Settings
from training.errors import DeniedError
from training.registry.ledger.rollback_orders import RollbackOrder, place
from training.spec.rules.names import ROLLBACK

OVER: Final = (DagRunState.FAILED, DagRunState.SUCCESS)
"""An order names the revision that it moves. Where the standing still has it, a run that succeeded moved a ledger that is no more."""


def start_rollback(run_id: str, order: RollbackOrder) -> RunState:
    """Queue a run of the DAG `rollback`, or find the one that has this id; return its state. One that is over is queued again.

    The run has the order's id alone: users of other models may read the runs of this DAG, and start it.

    It stays the same run: the ledger takes what one run orders once, also where a person clears it at the same moment.

    Raises:
        DeniedError: `rollback.missing`, Airflow does not have that DAG.
        UnavailableError: `airflow.database`, `database.unavailable`.
    """
    by = order.ordered_by
    if _state(run_id) in (None, *OVER):
        # Not over the words of an order that is being carried out, or was.
        place(order, Settings.from_environment().database_url)
    conf = {"order": order.order_id}
    try:
        trigger_dag(ROLLBACK, triggered_by=DagRunTriggeredByType.REST_API, triggering_user_name=by, run_id=run_id, conf=conf)
    except DagRunAlreadyExists:
        # The same order came before.
        _queue_again(run_id, by=by)
    except IntegrityError:
        if _state(run_id) is None:
            raise
        # The same order came at the same moment: its run waits already.
    except DagNotFound as err:
        message = f"Airflow has no DAG {ROLLBACK!r}"
        raise DeniedError("rollback.missing", message, hint="copy dags/rollback.py, or use `nightshift rollback`") from err
    return _state(run_id) or "queued"


def _state(run_id: str) -> RunState | None:
    with airflow_session() as session:
        state: RunState | None = session.scalar(select(DagRun.state).where(DagRun.dag_id == ROLLBACK, DagRun.run_id == run_id))
        return state


def _queue_again(run_id: str, *, by: str) -> None:
    """Clear a run that is over, as Airflow's page does; the ledger has then who ordered it last, and why."""
    over = update(DagRun).where(DagRun.dag_id == ROLLBACK, DagRun.run_id == run_id, DagRun.state.in_(OVER))
    with airflow_session() as session:
        dag = SerializedDagModel.get_dag(ROLLBACK, session=session)
        # The change locks the row, on SQLite the database: an equal order of this moment then finds none that is over.
        changed = session.execute(over.values(triggering_user_name=by).execution_options(synchronize_session=False))
        if dag is not None and cast(CursorResult[Any], changed).rowcount:
            dag.clear(run_id=run_id, session=session)
