"""Answers to requests for approval: Airflow's question gets them, with the rights and rules of its page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.models import DagRun, TaskInstance  # noqa: TID251 - what asks
from airflow.models.hitl import HITLDetail  # noqa: TID251 - as above
from airflow.models.serialized_dag import SerializedDagModel  # noqa: TID251 - as above
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, TaskInstanceState
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from fastapi.responses import JSONResponse
from sqlalchemy import delete, select
from sqlalchemy.orm import Session, joinedload

from nightshift.console import run
from nightshift.queries import approvals
from nightshift.queries.approval_question import ASK, subject_words
from nightshift.wiring.approval import approval_dag
from tests.unit.plugins.airflow_dags import write_dag
from tests.unit.plugins.client.test_client import Server, token
from tests.unit.plugins.seeded_installation import Seeded
from training.registry.ledger.decisions import answer_request
from training.registry.ledger.ledger import Entry, Ledger
from training.runtime.provenance import CHECKOUT
from training.spec import load_spec

MODEL = "search_ranking"
PATH = f"/models/{MODEL}/versions/3/approval"
YES = {"answer": "approve", "note": "seen with Eve"}


def request(model: str = MODEL) -> Entry:
    (found,) = Ledger().open_requests(model)
    return found


def ask(model: str = MODEL, *, assigned: list[dict[str, str]] | None = None) -> TaskInstance:
    """Let a run of the DAG that asks wait for an answer about version 3."""
    write_dag(approval_dag(load_spec(CHECKOUT / f"dags/pipelines/{model}.yaml"), {}))
    with create_session() as session:
        dag = SerializedDagModel.get_dag(f"{model}.approval", session=session)
        assert dag is not None
        run = dag.create_dagrun(
            run_id="asked",
            run_after=datetime.now(UTC),
            logical_date=None,
            data_interval=None,
            run_type=DagRunType.MANUAL,
            triggered_by=DagRunTriggeredByType.REST_API,
            state=DagRunState.RUNNING,
            session=session,
        )
        session.flush()
        task = run.get_task_instance(ASK, session=session)
        assert task is not None
        found = session.get(TaskInstance, task.id)
        assert found is not None
        found.state = TaskInstanceState.AWAITING_INPUT
        body = f"**{model} 1.3.0**, {subject_words(request(model).evidence)}."
        session.add(HITLDetail(ti_id=found.id, options=["Approve", "Decline"], subject="May it?", body=body, assignees=assigned))
    return asked(model)


def asked(model: str = MODEL) -> TaskInstance:
    with create_session() as session:
        query = select(TaskInstance).where(TaskInstance.dag_id == f"{model}.approval", TaskInstance.task_id == ASK)
        found = session.scalars(query.options(joinedload(TaskInstance.hitl_detail))).one()
        assert found.hitl_detail is not None
        session.expunge_all()
        return found


@pytest.fixture
def waiting(seeded: Seeded) -> Iterator[Seeded]:
    ask()
    yield seeded
    with create_session() as session:
        session.execute(delete(DagRun))


@pytest.mark.parametrize(("answer", "option"), [("approve", "Approve"), ("decline", "Decline")])
@pytest.mark.parametrize("version", ["3", "1.3.0"])
def test_an_answer_is_airflows_own_record_and_wakes_the_task(waiting: Seeded, answer: str, option: str, version: str) -> None:
    given = waiting.put(f"/models/{MODEL}/versions/{version}/approval", {"answer": answer, "note": " seen with Eve "})
    assert given.status_code == 202, given.text
    assert given.json() == {
        "model": MODEL,
        "version": "1.3.0",
        "request": request().key,
        "answer": answer,
        "answered_by": "bob",
        "run": f"{MODEL}.approval:asked",
    }
    task = asked()
    assert (task.hitl_detail.chosen_options, task.hitl_detail.params_input) == ([option], {"note": "seen with Eve"})
    assert task.hitl_detail.responded_by == {"id": "bob", "name": "bob"}
    assert task.state == TaskInstanceState.SCHEDULED
    # The run judges and records it; the request is open until then.
    assert waiting.get(f"/models/{MODEL}").json()["awaiting_approval"] == ["1.3.0"]


def test_the_same_answer_twice_is_one_and_another_is_refused(waiting: Seeded) -> None:
    first, again = (waiting.put(PATH, YES) for _ in range(2))
    assert (first.status_code, first.json()) == (again.status_code, again.json())
    # The task runs again, to record the answer: what it will say is not known yet.
    assert waiting.put(PATH, {"answer": "decline"}).status_code == 503
    entry = request()
    answer_request(Ledger(), entry, "approved", by="bob", words="approved by bob")
    assert waiting.put(PATH, YES).json() == {**first.json(), "run": None}
    refused = waiting.put(PATH, {"answer": "decline"})
    assert (refused.status_code, refused.json()["code"]) == (409, "approval.ended")
    assert waiting.put(PATH, YES, user="eve").json()["code"] == "approval.ended"


def test_who_may_answer_is_airflows_to_say(seeded: Seeded) -> None:
    ask(assigned=[{"id": "eve", "name": "eve"}])
    assert seeded.put(PATH, YES, role=None).status_code == 401
    viewer = seeded.put(PATH, YES, user="ada", role="viewer")
    assert (viewer.status_code, viewer.json()["code"]) == (403, "access.denied")
    other = seeded.put(PATH, YES)
    assert (other.status_code, other.json()["code"]) == (403, "approval.approver")
    assert not asked().hitl_detail.response_received
    assert seeded.put(PATH, YES, user="eve").status_code == 202
    with create_session() as session:
        session.execute(delete(DagRun))


@pytest.mark.parametrize(("approve_own", "status", "code"), [(False, 403, "approval.self"), (True, 202, None), (None, 202, None)])
def test_who_started_the_run_may_not_answer_also_where_airflow_cannot_know(
    waiting: Seeded, monkeypatch: pytest.MonkeyPatch, approve_own: bool | None, status: int, code: str | None
) -> None:
    # None: no run of the pipeline has begun, so that the DAG that asks judges.
    known = None if approve_own is None else {"promote": {"approve_own": approve_own}}
    monkeypatch.setattr("nightshift.queries.approvals.config_of", lambda _engine, _pipeline: known)
    own = replace(request(), evidence={**request().evidence, "triggered_by": "bob"})
    monkeypatch.setattr("nightshift.queries.approvals.request_about", lambda *_arguments: own)
    found = waiting.put(PATH, YES)
    assert (found.status_code, found.json().get("code")) == (status, code)
    assert asked().hitl_detail.response_received == (status == 202)
    assert waiting.put(PATH, YES, user="olga", role="op").status_code == (202 if code else 503)


@pytest.mark.parametrize(("user", "option", "status"), [("bob", "Approve", 202), ("bob", "Decline", 409), ("olga", "Approve", 409)])
def test_of_two_answers_at_the_same_moment_the_first_counts(
    waiting: Seeded, monkeypatch: pytest.MonkeyPatch, user: str, option: str, status: int
) -> None:
    look = approvals._question

    def answered_after_the_look(session: Any, about: Entry) -> Any:
        found = look(session, about)
        # A session of its own: `create_session` has one for each thread.
        with Session(session.get_bind()) as other, other.begin():
            question = other.scalars(select(HITLDetail)).one()
            question.responded_at, question.responded_by = datetime.now(UTC), {"id": user, "name": user}
            question.chosen_options = [option]
        return found

    monkeypatch.setattr(approvals, "_question", answered_after_the_look)
    answer = waiting.put(PATH, YES)
    assert answer.status_code == status, answer.text
    question = asked().hitl_detail
    assert (question.responded_by["name"], question.chosen_options, question.params_input) == (user, [option], {})


@pytest.mark.parametrize(
    ("version", "status", "code"), [("3", 503, "approval.not_asked"), ("1", 409, "approval.none"), ("9", 404, "version.unknown")]
)
def test_an_answer_without_a_question_decides_nothing(seeded: Seeded, version: str, status: int, code: str) -> None:
    found = seeded.put(f"/models/{MODEL}/versions/{version}/approval", YES)
    assert (found.status_code, found.json()["code"]) == (status, code)
    assert Ledger().ending_of(MODEL, request().key) is None


@pytest.mark.parametrize("body", [{}, {"answer": "maybe"}, {"answer": "approve", "note": "x" * 1001}, {"answer": "approve", "by": "eve"}])
def test_an_answer_of_another_form_is_invalid(waiting: Seeded, body: dict[str, Any]) -> None:
    assert waiting.put(PATH, body).status_code == 422
    assert not asked().hitl_detail.response_received


def test_the_command_answers_by_the_same_route(
    waiting: Seeded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Server() as server:
        monkeypatch.setenv("NIGHTSHIFT_SERVER", server.url)
        monkeypatch.setenv("NIGHTSHIFT_TOKEN", token("bob", "user"))
        assert run(["decline", MODEL, "1.3.0", "--note", "too slow"]) == 0
        assert capsys.readouterr().out == f"{MODEL} 1.3.0: decline by bob; {MODEL}.approval:asked records it\n"
        answer_request(Ledger(), request(), "declined", by="bob", words="declined by bob: too slow")
        assert run(["decline", MODEL, "3", "--wait", "--json"]) == 0
        assert run(["approve", MODEL, "3"]) == 77
        assert "[approval.ended]" in capsys.readouterr().err
    assert asked().hitl_detail.params_input == {"note": "too slow"}


def test_a_command_that_waits_ends_when_the_dag_refuses_the_answer_and_asks_again(
    waiting: Seeded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("nightshift.client.answer_command.POLL_SECONDS", 0.01)
    questions: list[tuple[int, dict[str, Any]]] = [
        (200, {"response_received": True, "subject": "May it?"}),
        (404, {"detail": "Human-in-the-loop detail does not exist"}),
        (200, {"response_received": False, "subject": "REFUSED, asked again: May it?"}),
    ]
    with Server() as server:

        @server.mounted.get(f"/api/v2/dags/{MODEL}.approval/dagRuns/asked/taskInstances/{ASK}/-1/hitlDetails")
        def question_of_airflow() -> JSONResponse:
            status, found = questions.pop(0)
            return JSONResponse(found, status_code=status)

        monkeypatch.setenv("NIGHTSHIFT_SERVER", server.url)
        monkeypatch.setenv("NIGHTSHIFT_TOKEN", token("bob", "user"))
        assert run(["approve", MODEL, "3", "--wait"]) == 77
    assert "[approval.refused]" in capsys.readouterr().err
    assert questions == []


@pytest.mark.parametrize(("outcome", "by"), [("expired", "nobody"), ("declined", "eve"), ("approved", "eve")])
def test_a_command_that_waited_fails_where_the_request_ended_otherwise(
    waiting: Seeded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], outcome: str, by: str
) -> None:
    def ends(_seconds: float) -> None:
        answer_request(Ledger(), request(), outcome, by=by, words=outcome)

    monkeypatch.setattr("nightshift.client.answer_command.time", SimpleNamespace(sleep=ends))
    with Server() as server:
        monkeypatch.setenv("NIGHTSHIFT_SERVER", server.url)
        monkeypatch.setenv("NIGHTSHIFT_TOKEN", token("bob", "user"))
        assert run(["approve", MODEL, "3", "--wait"]) == 77
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"[approval.ended] the request about version 1.3.0 of {MODEL} is {outcome} by {by}" in printed.err
