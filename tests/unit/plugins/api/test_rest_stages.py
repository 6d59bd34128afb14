"""Orders to change a version's stage: through gates, approval and ledger, never around them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import pytest
from airflow.models import DagRun  # noqa: TID251 - what the order starts
from airflow.models.serialized_dag import SerializedDagModel  # noqa: TID251 - where a run is cleared
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from sqlalchemy import select
from sqlalchemy.orm import Session

from tests.unit.plugins.seeded_installation import Seeded, seed_model
from training.registry.ledger.decisions import roll_back
from training.registry.ledger.ledger import Ledger
from training.registry.ledger.rollback_orders import find_order

ORDER = {"stage": "champion", "reason": "complaints since Monday"}


@pytest.fixture
def replaced(seeded: Seeded) -> Seeded:
    """Version 4 has taken the place of version 1."""
    seed_model("search_ranking", ("4", "accepted"))
    return seeded


def rollback_runs() -> list[DagRun]:
    with create_session() as session:
        return list(session.scalars(select(DagRun).where(DagRun.dag_id == "rollback")))


def order_of(run: DagRun) -> tuple[str, str, str, str]:
    """Return model, weights, reason and person of the order that a run carries out."""
    found = find_order(run.conf["order"])
    assert found is not None
    return found.model, found.weights_digest, found.reason, found.ordered_by


def test_an_earlier_champion_is_champion_again_by_one_run_of_the_dag_rollback(replaced: Seeded) -> None:
    first, again = (replaced.put("/models/search_ranking/versions/1/stage", ORDER) for _ in range(2))
    assert (first.status_code, first.content) == (202, again.content)
    (run,) = rollback_runs()
    assert first.json()["run"] == f"rollback:{run.run_id}"
    assert (first.json()["is_done"], first.json()["run_state"]) == (False, "queued")
    # Users of other models may read the runs of this DAG.
    assert run.conf == {"order": run.run_id.removeprefix("api__")}
    assert order_of(run) == ("search_ranking", "1" * 64, ORDER["reason"], "bob")
    assert run.triggering_user_name == "bob"
    # The order alone moves nothing: the run does.
    assert replaced.get("/models/search_ranking").json()["champion"]["version"] == "4"


def test_an_order_after_another_move_is_another_run(replaced: Seeded) -> None:
    replaced.put("/models/search_ranking/versions/1.1.0/stage", {**ORDER, "stage": "production"})
    roll_back(Ledger(), "search_ranking", by="bob", reason="x", to="1")
    assert replaced.put("/models/search_ranking/versions/1/stage", ORDER).json()["is_done"]
    assert replaced.put("/models/search_ranking/versions/4/stage", ORDER).status_code == 202
    assert len({run.run_id for run in rollback_runs()}) == 2


def end_run(run: DagRun, state: str) -> None:
    with create_session() as session:
        found = session.get(DagRun, run.id)
        assert found is not None
        found.set_state(DagRunState(state))
        for task in found.get_task_instances(session=session):
            task.state = state


def test_an_order_whose_run_failed_begins_again_as_the_same_run_by_who_gives_it_now(replaced: Seeded) -> None:
    path = "/models/search_ranking/versions/1/stage"
    first = replaced.put(path, ORDER).json()
    (run,) = rollback_runs()
    end_run(run, "failed")
    again = replaced.put(path, {**ORDER, "reason": "still complaints"}, user="olga", role="op")
    assert (again.status_code, again.json()) == (202, first)
    (run,) = rollback_runs()
    assert (run.state, run.triggering_user_name) == ("queued", "olga")
    assert order_of(run)[2:] == ("still complaints", "olga")
    with create_session() as session:
        (task,) = session.merge(run).get_task_instances(session=session)
        assert task.state is None


def test_an_order_that_a_restored_ledger_does_not_have_begins_again_though_its_run_succeeded(replaced: Seeded) -> None:
    path = "/models/search_ranking/versions/1/stage"
    replaced.put(path, ORDER)
    # What it moved is not in the backup: the standing has the revision that the order names.
    end_run(rollback_runs()[0], "success")
    assert replaced.put(path, ORDER).json()["run_state"] == "queued"
    (run,) = rollback_runs()
    assert run.state == "queued"


def test_the_same_order_at_the_same_moment_in_two_processes_is_one_run(replaced: Seeded, monkeypatch: pytest.MonkeyPatch) -> None:
    path = "/models/search_ranking/versions/1/stage"
    first = replaced.put(path, ORDER)
    # Airflow looked for the run before the other process had made it.
    monkeypatch.setattr(DagRun, "find_duplicate", lambda *arguments, **options: None)
    again = replaced.put(path, ORDER)
    assert (again.status_code, again.content) == (202, first.content)
    assert len(rollback_runs()) == 1


def test_a_failed_run_is_cleared_while_no_equal_order_can_look_at_it(replaced: Seeded, monkeypatch: pytest.MonkeyPatch) -> None:
    path = "/models/search_ranking/versions/1/stage"
    replaced.put(path, ORDER)
    end_run(rollback_runs()[0], "failed")
    get_dag, looks = SerializedDagModel.get_dag, []

    class Cleared:
        def clear(self, *, run_id: str, session: Session) -> Any:
            with closing(sqlite3.connect(str(session.connection().engine.url.database), timeout=0)) as other:
                with pytest.raises(sqlite3.OperationalError, match="locked"):
                    other.execute("BEGIN IMMEDIATE")
                looks.append(run_id)
            return get_dag("rollback", session=session).clear(run_id=run_id, session=session)

    monkeypatch.setattr(SerializedDagModel, "get_dag", lambda *_arguments, **_options: Cleared())
    answer = replaced.put(path, ORDER, user="olga", role="op")
    (run,) = rollback_runs()
    assert (answer.status_code, looks) == (202, [run.run_id]), answer.text
    assert (run.state, run.triggering_user_name) == ("queued", "olga")


def test_an_order_whose_run_is_not_over_starts_nothing(replaced: Seeded) -> None:
    path = "/models/search_ranking/versions/1/stage"
    replaced.put(path, ORDER)
    (run,) = rollback_runs()
    end_run(run, "running")
    assert replaced.put(path, {**ORDER, "reason": "other words"}, user="olga", role="op").json()["run_state"] == "running"
    (run,) = rollback_runs()
    assert (run.state, run.triggering_user_name, *order_of(run)[2:]) == ("running", "bob", ORDER["reason"], "bob")


@pytest.mark.parametrize(("version", "stage"), [("4", "champion"), ("4", "production"), ("1", "archived"), ("2", "archived")])
def test_a_version_that_has_the_stage_keeps_it_and_nothing_runs(replaced: Seeded, version: str, stage: str) -> None:
    answer = replaced.put(f"/models/search_ranking/versions/{version}/stage", {**ORDER, "stage": stage})
    assert (answer.status_code, answer.json()["is_done"], answer.json()["run"]) == (200, True, None)
    assert rollback_runs() == []


@pytest.mark.parametrize(
    ("version", "stage", "status", "code"),
    [
        ("2", "champion", 409, "stage.transition"),
        ("2", "staging", 409, "stage.transition"),
        ("4", "archived", 409, "stage.transition"),
        ("9", "champion", 404, "version.unknown"),
        ("1", "retired", 422, "request.invalid"),
    ],
)
def test_what_only_gates_can_do_is_a_conflict(replaced: Seeded, version: str, stage: str, status: int, code: str) -> None:
    answer = replaced.put(f"/models/search_ranking/versions/{version}/stage", {**ORDER, "stage": stage})
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert rollback_runs() == []


def test_a_candidate_that_waits_for_a_person_is_sent_there(seeded: Seeded) -> None:
    answer = seeded.put("/models/search_ranking/versions/3/stage", ORDER)
    assert (answer.status_code, answer.json()["code"]) == (409, "stage.approval")
    assert ".approval" in answer.json()["hint"]


@pytest.mark.parametrize("reason", ["", "  ", None])
def test_an_order_without_a_reason_is_invalid(seeded: Seeded, reason: str | None) -> None:
    assert seeded.put("/models/search_ranking/versions/1/stage", {"stage": "champion", "reason": reason}).status_code == 422
