"""The stage of a model's version: what an order to change it may do, which goes through gates and ledger and never around them."""

from __future__ import annotations

from typing import Any, Final, Literal, cast

from airflow.api.common.trigger_dag import trigger_dag
from airflow.exceptions import DagNotFound, DagRunAlreadyExists
from airflow.models import DagRun
from airflow.models.serialized_dag import SerializedDagModel
from airflow.utils.state import DagRunState
from airflow.utils.types import DagRunTriggeredByType
from sqlalchemy import CursorResult, select, update
from sqlalchemy.exc import IntegrityError

from nightshift.queries.models import May, version
from nightshift.queries.runs import airflow_session
from nightshift.queries.schemas import ModelVersion, RunState, StageOrder
from nightshift.settings import Settings
from training.errors import DeniedError
from training.registry.ledger.decisions import CHAMPIONS
from training.registry.ledger.ledger import Ledger
from training.registry.ledger.rollback_orders import RollbackOrder, place
from training.spec.rules.names import ROLLBACK

StageName = Literal["champion", "canary", "archived"]
SYNONYMS: Final[dict[str, StageName]] = {"production": "champion", "staging": "canary"}
"""Names that other registries have."""


def order_stage(ledger: Ledger, model: str, wanted: str, stage: StageName, may: May, *, by: str, reason: str) -> StageOrder:
    """Carry out what can be: an earlier champion becomes champion again, by a run of the DAG `rollback`; what is so already stays.

    Args:
        wanted: semantic version, digest or number.
        reason: stored in the ledger.

    Raises:
        DeniedError: `model.unknown`, `version.unknown`, `version.ambiguous`; `stage.approval`, it waits for a person; `stage.transition`,
            only gates can do it.
    """
    found = version(ledger, model, wanted, may)
    done = found.alias == stage or (stage == "archived" and found.alias is None)
    if done:
        return StageOrder(model=model, version=found.version, stage=stage, is_done=True, run=None, run_state=None)
    if stage != "champion":
        raise _refused(found, stage, "a canary is made by the gates, and a version leaves its alias when another one takes it")
    if any(entry.weights_digest == found.weights_digest for entry in ledger.open_requests(model)):
        message = f"version {found.semantic_version} of {model} waits for an approval"
        raise DeniedError(
            "stage.approval", message, hint="answer it: PUT …/approval, `nightshift approve`, or Required actions of the .approval DAG"
        )
    if not any(decision.action in CHAMPIONS for decision in found.decisions):
        raise _refused(found, stage, "it was never champion, and a rollback goes around no gate")
    # The same order is one run for as long as nothing else moves the model; that begins again where it failed.
    revision = ledger.standing(model).revision
    order = RollbackOrder(model=model, weights_digest=found.weights_digest, revision=revision, reason=reason, ordered_by=by)
    run_id = f"api__{order.order_id}"
    state = start_rollback(run_id, order)
    return StageOrder(model=model, version=found.version, stage=stage, is_done=False, run=f"rollback:{run_id}", run_state=state)


def _refused(found: ModelVersion, stage: str, why: str) -> DeniedError:
    last = found.decisions[0]
    message = f"version {found.semantic_version} of {found.model} ({last.outcome}) cannot be made {stage}: {why}"
    if stage == "archived":
        return DeniedError("stage.transition", message, hint="make another version champion: it takes the alias from this one")
    return DeniedError("stage.transition", message, hint="train and evaluate it again: a run's gates decide")


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
