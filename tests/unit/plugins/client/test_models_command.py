"""`nightshift show` and `nightshift rollback` against a server."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from airflow.models import DagRun  # noqa: TID251 - what the order queues
from airflow.utils.session import create_session
from fastapi.responses import JSONResponse
from sqlalchemy import select

from nightshift.client.show_command import standing_lines
from nightshift.console import run
from nightshift.queries.schemas import Holder, Model
from tests.unit.plugins.client.test_client import Server, token
from tests.unit.plugins.seeded_installation import seed_model
from tests.unit.training.registry.scenes import candidate
from tests.unit.training.test_format import BOUNDS
from training.format import learned_words
from training.registry.ledger.decisions import roll_back
from training.registry.ledger.ledger import Ledger
from training.registry.ledger.rollback_orders import find_order
from training.registry.ledger.version_weights import MLflowRegistration

MODEL = "search_ranking"


@pytest.fixture
def two_champions(server: Server) -> Server:
    seed_model(MODEL, ("4", "accepted"))
    return server


def orders() -> list[Any]:
    with create_session() as session:
        return list(session.scalars(select(DagRun).where(DagRun.dag_id == "rollback")))


def test_a_server_shows_the_same_standing_and_decisions_as_the_ledger(
    two_champions: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [["show", MODEL], ["show"]]
    printed = []
    for words in lines:
        assert run(words) == 0
        printed.append(capsys.readouterr().out)
    assert "1.4.0" in printed[0]
    monkeypatch.delenv("NIGHTSHIFT_SERVER")
    for words, remote in zip(lines, printed, strict=True):
        assert run(words) == 0
        assert capsys.readouterr().out == remote


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["rollback", MODEL, "--reason", "x", "--yes", "--by", "ann"], "--by"),
        (["datasets", "deprecate", MODEL, "0a", "--reason", "x", "--by", "ann"], "--by"),
        (["datasets", "show", MODEL, "0a", "--store", "s3://x"], "--store"),
        (["checkpoints", "list", MODEL, "--store", "s3://x"], "--store"),
    ],
)
def test_options_that_a_server_has_no_use_for_are_refused_with_one(
    server: Server, capsys: pytest.CaptureFixture[str], words: list[str], option: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(words)
    assert f"{option} is for an installation without a server" in capsys.readouterr().err
    assert orders() == []


def test_show_without_a_model_is_the_standing_of_each(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == ["flight_delay", "search_ranking"]
    assert "  waits for an approval: version 1.3.0" in lines


def test_show_says_which_rows_the_champion_has_learned_from() -> None:
    known = replace(candidate(1), bounds=BOUNDS).to_json()
    champion = Holder.model_validate({name: known[name] for name in Holder.model_fields})
    rest = {"canary": None, "revision": 1, "awaiting_approval": [], "not_in_mlflow": 0, "shows_gains_above": None}
    model = Model.model_validate({"name": "m", "pipelines": ["m"], "champion": champion, **rest})
    assert f"  {'':<10}learned from {learned_words(BOUNDS)}" in standing_lines(model)


def test_show_for_programs_has_the_evidence_of_every_decision(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", MODEL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)[MODEL]
    assert [each["version"] for each in found["decisions"]] == ["1", "2", "3"]
    assert found["decisions"][0]["evidence"]["pipeline"] == MODEL
    assert found["standing"]["champion"]["version"] == "1"


def test_a_rollback_without_a_version_orders_the_champion_before_this_one(
    two_champions: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_TOKEN", token("olga", "op"))
    assert run(["rollback", MODEL, "--reason", "complaints", "--yes"]) == 0
    assert capsys.readouterr().out.endswith("(queued) makes version 1 champion\n")
    (ordered,) = orders()
    order = find_order(ordered.conf["order"])
    assert order is not None
    assert (order.model, order.weights_digest, order.reason) == (MODEL, "1" * 64, "complaints")
    assert ordered.triggering_user_name == "olga"


def test_a_rollback_that_waits_returns_when_the_run_has_succeeded(
    two_champions: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_TOKEN", token("olga", "op"))
    monkeypatch.setattr("nightshift.client.rollback_command.POLL_SECONDS", 0.01)
    states = ["queued", "running", "success"]

    @two_champions.mounted.get("/api/v2/dags/rollback/dagRuns/{run_id}")
    def run_of_airflow(run_id: str) -> JSONResponse:
        state = states.pop(0)
        if state == "success":
            roll_back(Ledger(), MODEL, by="olga", reason="complaints", to="1")
            # MLflow had lost it.
            again = MLflowRegistration(number="6", logged_model="m-6", artifact_digest="f" * 64)
            Ledger().note_registration(MODEL, "1" * 64, again)
            # What the next night promotes at the same moment is not rolled back.
            seed_model(MODEL, ("5", "accepted"))
        return JSONResponse({"state": state})

    assert run(["rollback", MODEL, "--reason", "complaints", "--yes", "--wait"]) == 0
    assert capsys.readouterr().out.endswith("search_ranking: champion is version 6\n")
    assert not states
    assert len(orders()) == 1


def test_a_rollback_whose_run_failed_is_refused_with_where_to_look(
    two_champions: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_TOKEN", token("olga", "op"))

    @two_champions.mounted.get("/api/v2/dags/rollback/dagRuns/{run_id}")
    def run_of_airflow(run_id: str) -> JSONResponse:
        return JSONResponse({"state": "failed"})

    assert run(["rollback", MODEL, "--to", "1.1.0", "--reason", "complaints", "--yes", "--wait"]) == 77
    assert "[rollback.failed]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (["--reason", " ", "--yes"], "rollback.reason"),
        (["--to", "1", "--reason", "x"], "rollback.unconfirmed"),
        (["--reason", "x", "--yes"], "rollback.nothing"),
        (["--to", "2", "--reason", "x", "--yes"], "stage.transition"),
    ],
)
def test_a_rollback_that_cannot_be_is_refused_and_orders_nothing(
    server: Server, capsys: pytest.CaptureFixture[str], more: list[str], code: str
) -> None:
    assert run(["rollback", MODEL, *more]) == 77
    assert f"[{code}]" in capsys.readouterr().err
    assert orders() == []
