"""The note of a run: its outcome in one line, written in the transaction that ends the run."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.api.common.delete_dag import delete_dag
from airflow.models import DagRun  # noqa: TID251 - what the listener is given
from airflow.models.xcom import XComModel  # noqa: TID251 - as above
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from sqlalchemy import delete
from sqlalchemy.orm import Session

from nightshift.airflow_ext import links, run_notes
from nightshift.operators import failure_message
from nightshift.operators.failure_message import noted_failure
from nightshift.wiring.approval import approval_dag
from tests.unit.plugins.airflow_dags import running_run, write_dag
from training.runtime.provenance import CHECKOUT
from training.spec import parse_spec

APPROVALS = "search_ranking.approval"


@pytest.fixture
def session(airflow_dags: None) -> Iterator[Session]:
    with create_session() as session:
        session.execute(delete(DagRun))
    with create_session() as session:
        yield session


@pytest.fixture
def approvals(session: Session) -> Iterator[Session]:
    """The session, with the DAG of search_ranking's approvals: the shipped pipelines have none."""
    text = (CHECKOUT / "dags" / "pipelines" / "search_ranking.yaml").read_bytes()
    write_dag(approval_dag(parse_spec(text.replace(b"approval: automatic", b"approval: required")), {}))
    yield session
    session.commit()
    delete_dag(APPROVALS)


def ended(session: Session, state: DagRunState, values: dict[str, tuple[str, Any]], *, failed: tuple[str, ...] = (), dag_id: str) -> DagRun:
    """Make a run with values in XCom (task to key and value), and end it as the scheduler does."""
    run = running_run(session, dag_id)
    for task_id, (key, value) in values.items():
        XComModel.set(key=key, value=value, dag_id=dag_id, task_id=task_id, run_id="r1", session=session)
    for task_id in failed:
        task = run.get_task_instance(task_id, session=session)
        assert task is not None
        task.state = "failed"
    session.flush()
    run.set_state(state)
    (run_notes.on_dag_run_success if state is DagRunState.SUCCESS else run_notes.on_dag_run_failed)(dag_run=run, msg="")
    session.flush()
    return run


def answered(session: Session, line: str, *, asked_by: str) -> DagRun:
    """End a run of the approval's DAG whose answer was `line`."""
    run = ended(session, DagRunState.RUNNING, {"promote": ("return_value", {"scalars": {"headline": line}})}, dag_id=APPROVALS)
    XComModel.set(key=run_notes.ASKED_BY, value=asked_by, dag_id=APPROVALS, task_id="promote", run_id="r1", session=session)
    run_notes.on_dag_run_success(dag_run=run, msg="")
    session.flush()
    return run


def test_the_headline_of_a_decision_is_the_note(session: Session) -> None:
    line = "rejected: ndcg@10 +0.1 % [-0.8 %, +1.0 %], required > 0.5 %; version 7 of search_ranking"
    result = {"promote": ("return_value", {"scalars": {"headline": line}})}
    run = ended(session, DagRunState.SUCCESS, result, dag_id="search_ranking")
    assert run.note == line


@pytest.mark.parametrize("by_a_person", [False, True])
def test_an_answer_is_in_the_note_of_the_run_that_asked_unless_that_is_a_persons(approvals: Session, by_a_person: bool) -> None:
    asked = {"promote": ("return_value", {"scalars": {"headline": "needs approval: version 7 of search_ranking"}})}
    run = ended(approvals, DagRunState.SUCCESS, asked, dag_id="search_ranking")
    if by_a_person:
        run.dag_run_note.user_id = "eve"
    line = "promoted: approved by eve; version 7 of search_ranking"
    answer = answered(approvals, line, asked_by="r1")
    # Its tasks are cleared, and it ends again.
    run_notes.on_dag_run_success(dag_run=answer, msg="")
    approvals.flush()
    assert answer.note == line
    approvals.refresh(run)
    assert run.note == ("needs approval: version 7 of search_ranking" if by_a_person else line)


def test_an_answer_to_a_run_that_is_gone_is_noted_on_the_approval_alone(approvals: Session) -> None:
    assert answered(approvals, "promoted: version 7", asked_by="deleted").note == "promoted: version 7"


def test_a_task_that_left_a_report_has_its_links_in_its_note_and_a_persons_note_stays(session: Session) -> None:
    left = {"validate": ("_link_ReportLink", "http://air/nightshift/reports/p/1"), "train": ("_link_MlflowLink", "http://ml/#/runs/1")}
    run = ended(session, DagRunState.FAILED, left, failed=("train",), dag_id="search_ranking")

    def note(task_id: str) -> str | None:
        task = run.get_task_instance(task_id, session=session)
        assert task is not None
        return task.note

    assert note("validate") == "[Report](http://air/nightshift/reports/p/1)"
    assert note("train") == "[MLflow](http://ml/#/runs/1)"
    assert note("evaluate") is None
    task = run.get_task_instance("train", session=session)
    assert task is not None
    assert task.task_instance_note is not None
    task.task_instance_note.content, task.task_instance_note.user_id = "looked at", "ada"
    session.flush()
    run_notes.on_dag_run_failed(dag_run=run, msg="")
    assert (note("train"), run.note) == ("looked at", "failed in train")


def test_links_are_in_one_line_and_what_is_no_url_is_left_out() -> None:
    urls = {"_link_MlflowLink": "http://ml/#/runs/1", "_link_ReportLink": "/nightshift/reports/p/1", "_link_ReusedFromLink": ""}
    assert run_notes.links_line(urls) == "[Report](/nightshift/reports/p/1) · [MLflow](http://ml/#/runs/1)"
    assert run_notes.links_line({"_link_ReportLink": "javascript:alert(1)", "_link_MlflowLink": {"a": 1}}) == ""
    # The keys are those that Airflow gives the operators' links.
    kinds = (links.ReportLink, links.MlflowLink, links.ReusedFromLink)
    assert {kind().xcom_key: kind.name for kind in kinds} == dict(run_notes.LINKS)


def test_a_run_of_housekeeping_names_what_was_done_and_nothing_else() -> None:
    done = {"repair": {"scalars": {"models": 2}}, "collect": {"kept": 5, "deleted": 12_300_000}, "clean": 200_000}
    line = "models compared with MLflow: 2; 12.3 MB deleted from the store; 0.2 MB of old logs and pages deleted"
    assert run_notes.housekeeping_line(done) == line
    nothing = {"collect": {"kept": 5, "deleted": 0}, "clean": 0}
    assert run_notes.housekeeping_line({}) == run_notes.housekeeping_line(nothing) == "nothing to do"


def test_a_canarys_run_without_a_canary_says_that_there_was_nothing_to_do(session: Session) -> None:
    result = {"resolve": ("failure", "search_ranking has no canary")}
    run = ended(session, DagRunState.SUCCESS, result, dag_id="search_ranking")
    assert run.note == "nothing to do: search_ranking has no canary"


def test_a_failed_run_names_the_task_what_it_said_and_no_password(session: Session) -> None:
    said = {"validate": ("failure", "[data.nulls] clicks.item_id: 3 nulls; postgresql://nightshift:hunter2@db/x")}
    run = ended(session, DagRunState.FAILED, said, failed=("validate",), dag_id="search_ranking")
    assert run.note is not None
    assert run.note.startswith("failed in validate: [data.nulls] clicks.item_id: 3 nulls")
    assert "hunter2" not in run.note
    assert len(run_notes.failure_line({"train": None})) < run_notes.MAX_CHARS


def test_characters_that_a_database_refuses_are_left_out(session: Session) -> None:
    run = ended(session, DagRunState.FAILED, {"train": ("failure", "a\x00b\ud800\x1b[31mc")}, failed=("train",), dag_id="search_ranking")
    assert run.note == "failed in train: a b [31mc"


def test_a_long_reason_is_cut_to_what_airflow_keeps(session: Session) -> None:
    run = ended(session, DagRunState.FAILED, {"train": ("failure", "x" * 5000)}, failed=("train",), dag_id="search_ranking")
    assert run.note is not None
    assert len(run.note) == run_notes.MAX_CHARS


def test_a_persons_note_stays_and_ours_is_renewed(session: Session) -> None:
    run = ended(session, DagRunState.FAILED, {}, failed=("train",), dag_id="search_ranking")
    assert run.note == "failed in train"
    run_notes.on_dag_run_success(dag_run=run, msg="")
    assert run.note == "failed in train", "nothing was decided"
    assert run.dag_run_note is not None
    run.dag_run_note.content, run.dag_run_note.user_id = "looked at", "ada"
    session.flush()
    run_notes.on_dag_run_failed(dag_run=run, msg="")
    assert run.note == "looked at"


def test_values_of_another_form_leave_no_note_and_stop_nothing(session: Session) -> None:
    forged = {"promote": ("return_value", {"scalars": ["rejected"]})}
    assert ended(session, DagRunState.SUCCESS, forged, dag_id="search_ranking").note is None


def test_runs_of_other_dags_have_no_note(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_notes, "PIPELINE_TAG", "another tag")
    assert ended(session, DagRunState.FAILED, {}, failed=("train",), dag_id="search_ranking").note is None


@pytest.mark.parametrize(("error", "kept"), [(AirflowFailException("[data.nulls] 3"), ["[data.nulls] 3"]), (AirflowSkipException("x"), [])])
def test_a_task_keeps_the_words_of_its_failure_and_of_nothing_else(error: Exception, kept: list[str]) -> None:
    pushed: list[str] = []

    def push(*, key: str, value: str) -> None:
        assert key == run_notes.FAILURE == failure_message.FAILURE
        pushed.append(value)

    context: Any = {"ti": SimpleNamespace(xcom_push=push)}
    with pytest.raises(type(error)), noted_failure(context, AirflowFailException):
        raise error
    assert pushed == kept


def test_a_note_that_cannot_be_left_does_not_hide_the_error() -> None:
    def push(*, key: str, value: str) -> None:
        raise ConnectionError(f"{key} {value}")

    context: Any = {"ti": SimpleNamespace(xcom_push=push)}
    with pytest.raises(AirflowFailException, match="3 nulls"), noted_failure(context, AirflowFailException):
        raise AirflowFailException("3 nulls")
