"""A person's answer to a request for approval: given to Airflow's question, as its page does, so the same rules judge it."""

from __future__ import annotations

from typing import Any, Final, Literal

from airflow.api_fastapi.core_api.datamodels.hitl import UpdateHITLDetailPayload
from airflow.api_fastapi.core_api.routes.public.hitl import update_hitl_detail
from airflow.models.hitl import HITLDetail
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from airflow.utils.state import TaskInstanceState
from fastapi import HTTPException
from sqlalchemy import select, update
from sqlalchemy.orm import Session, joinedload

from nightshift.queries.approval_question import ASK, OPTION_OF, subject_words
from nightshift.queries.models import May, version
from nightshift.queries.schemas import ApprovalAnswer
from nightshift.settings import Settings
from training.database.pipeline_runs import config_of
from training.errors import DeniedError, UnavailableError
from training.registry.ledger.ledger import REQUEST, Entry, Ledger, name_of
from training.spec.rules.names import APPROVAL_SUFFIX

AnswerName = Literal["approve", "decline"]
OUTCOME_OF: Final = {"approve": "approved", "decline": "declined"}
"""Answer to how the request ends in the ledger."""
WAITING: Final = (TaskInstanceState.AWAITING_INPUT, TaskInstanceState.DEFERRED)


def request_about(ledger: Ledger, model: str, wanted: str, may: May) -> Entry:
    """Return the newest request for approval of a version, open or not.

    Args:
        wanted: semantic version, digest or number.

    Raises:
        DeniedError: `model.unknown`, `version.unknown`; `approval.none`, nobody was ever asked about it.
    """
    found = version(ledger, model, wanted, may)
    key = next((entry.key for entry in found.decisions if entry.outcome == REQUEST), None)
    request = None if key is None else ledger.decision(model, key)
    if request is None:
        message = f"version {found.semantic_version} of {model} never waited for an approval"
        raise DeniedError("approval.none", message, hint=f"nightshift show {model} lists the versions that wait")
    return request


def asking_dag(request: Entry) -> str:
    """Return the DAG that asks about a request."""
    return f"{request.evidence['pipeline']}{APPROVAL_SUFFIX}"


def answer(ledger: Ledger, request: Entry, given: AnswerName, *, note: str, user: Any) -> ApprovalAnswer:
    """Answer the question about a request as `user`; the same answer twice is one.

    Args:
        note: reason, stored in the ledger; may be empty.
        user: Airflow's, with the right to answer questions of the DAG.

    Raises:
        DeniedError: `approval.ended`, it was answered otherwise, has expired or was superseded; `approval.self`, `approval.approver`, this
            user may not answer it.
        UnavailableError: `approval.not_asked`, its question has not been asked yet.
    """
    name = str(user.get_name())
    ending = ledger.ending_of(request.model, request.key)
    if ending is not None:
        if (ending.outcome, ending.decided_by) != (OUTCOME_OF[given], name):
            message = f"the request about version {name_of(request)} of {request.model} is {ending.outcome} by {ending.decided_by}"
            raise DeniedError("approval.ended", message, hint="the model's decisions have the reason")
        return _record(request, given, name, run=None)
    with create_session() as session:
        task = _question(session, request)
        detail = None if task is None else _locked(session, task)
        if task is None or detail is None or (task.state not in WAITING and not _is_by(detail, name, given)):
            if detail is not None and detail.response_received:
                message = f"an answer about version {name_of(request)} is being recorded"
                raise UnavailableError(
                    "approval.not_asked", message, hint="repeat the request: it is asked again if that answer does not count"
                )
            message = f"the DAG {asking_dag(request)} has not asked about version {name_of(request)} yet"
            raise UnavailableError("approval.not_asked", message, hint="repeat the request; see whether the DAG is paused")
        if not detail.response_received:
            _check_not_own(request, user)
            _respond(session, task, request, given, note=note, user=user)
        elif not _is_by(detail, name, given):
            message = f"another user has answered about version {name_of(request)} of {request.model}"
            raise DeniedError("approval.ended", message, hint="the model's decisions have the reason")
        return _record(request, given, name, run=f"{task.dag_id}:{task.run_id}")


def _is_by(detail: HITLDetail, name: str, given: AnswerName) -> bool:
    """Return whether the question has this answer of this user."""
    by = detail.responded_by_user
    return by is not None and by["name"] == name and list(detail.chosen_options or []) == [OPTION_OF[given]]


def _question(session: Session, request: Entry) -> TaskInstance | None:
    """Return the task that asks about a request, None where none does."""
    query = (
        select(TaskInstance)
        .join(HITLDetail, HITLDetail.ti_id == TaskInstance.id)
        .options(joinedload(TaskInstance.hitl_detail))
        .where(TaskInstance.dag_id == asking_dag(request), TaskInstance.task_id == ASK)
        .where(HITLDetail.body.contains(subject_words(request.evidence), autoescape=True))
        .order_by(TaskInstance.queued_dttm.desc())
    )
    return session.scalars(query).first()


def _locked(session: Session, task: TaskInstance) -> HITLDetail | None:
    """Return the question as it is now, and let no other answer in before this session ends.

    Airflow locks it too, but judges what its session knew before. Tasks are locked first, as there.
    """
    session.execute(select(TaskInstance.id).where(TaskInstance.id == task.id).with_for_update())
    # SQLite has no locks of rows: a change takes its only one.
    wanted = update(HITLDetail).where(HITLDetail.ti_id == task.id).values(ti_id=HITLDetail.ti_id)
    session.execute(wanted.execution_options(synchronize_session=False))
    session.refresh(task)
    return session.scalar(select(HITLDetail).where(HITLDetail.ti_id == task.id).execution_options(populate_existing=True))


def _respond(session: Session, task: TaskInstance, request: Entry, given: AnswerName, *, note: str, user: Any) -> None:
    payload = UpdateHITLDetailPayload(chosen_options=[OPTION_OF[given]], params_input={"note": note or None})
    try:
        update_hitl_detail(task.dag_id, task.run_id, task.task_id, payload, user, session, task.map_index)
    except HTTPException as err:
        if err.status_code == 403:
            raise _not_an_approver(request, str(user.get_name())) from err
        # 409: another answer was faster.
        raise DeniedError("approval.ended", str(err.detail), hint="the model's decisions have the reason") from err


def _check_not_own(request: Entry, user: Any) -> None:
    """Refuse the answer of the user who started the run, which the task that asks would refuse too, and ask again.

    Airflow refuses it where it knows the approvers by their ids. With the FAB auth manager a task does not, and the run has the name.
    """
    name, started_by = str(user.get_name()), request.evidence.get("triggered_by")
    if started_by is None or started_by not in (name, str(user.get_id())):
        return
    known = config_of(Settings.from_environment().database(), str(request.evidence["pipeline"]))
    # Without a record of the pipeline, the task judges.
    if known is not None and not known["promote"].get("approve_own", False):
        raise _own(request, name)


def _own(request: Entry, name: str) -> DeniedError:
    about = f"version {name_of(request)} of {request.model}"
    message = f"{name} started the run that made {about}, and may not answer about it (promote.approve_own is false)"
    return DeniedError("approval.self", message, hint="ask another approver; of a laptop installation, answer with --user approver")


def _not_an_approver(request: Entry, name: str) -> DeniedError:
    about = f"version {name_of(request)} of {request.model}"
    if name == request.evidence.get("triggered_by"):
        return _own(request, name)
    return DeniedError(
        "approval.approver", f"{name} may not answer about {about}", hint="promote.approvers of the pipeline's YAML lists who may"
    )


def _record(request: Entry, given: AnswerName, name: str, *, run: str | None) -> ApprovalAnswer:
    return ApprovalAnswer(model=request.model, version=name_of(request), request=request.key, answer=given, answered_by=name, run=run)
