"""Answers of the REST API, kept for a day, in both databases."""

from __future__ import annotations

from datetime import timedelta

import pytest

from training.database import api_answers, connect
from training.database.api_answers import Answers
from training.registry.ledger import Entry, Ledger, decision_key


@pytest.fixture
def answers(empty_database: str) -> Answers:
    return Answers(connect(empty_database))


def test_a_request_has_its_first_answer_and_its_digest(answers: Answers) -> None:
    assert answers.find("n") is None
    answers.begin("n", "d")
    answers.begin("n", "another")
    begun = answers.find("n")
    assert begun is not None
    assert (begun.request_digest, begun.status, begun.body) == ("d", None, None)
    answers.end("n", begun, 202, {"id": "a"})
    answers.end("n", begun, 200, {"id": "b"})
    ended = answers.find("n")
    assert ended is not None
    assert (ended.status, ended.body) == (202, {"id": "a"})


def test_a_refused_request_is_forgotten_and_an_answered_one_is_not(answers: Answers) -> None:
    for name in ("refused", "answered"):
        begun = answers.begin(name, "d")
    answers.end("answered", begun, 202, {})
    for name in ("refused", "answered"):
        answers.forget(name)
    assert (answers.find("refused"), answers.find("answered") is None) == (None, False)


def test_an_answer_is_kept_where_an_equal_request_was_refused_in_between(answers: Answers) -> None:
    begun = answers.begin("n", "d")
    answers.forget("n")
    answers.end("n", begun, 202, {"id": "a"})
    found = answers.find("n")
    assert found is not None
    assert (found.request_digest, found.begun_at, found.status) == ("d", begun.begun_at, 202)


def test_an_answer_of_the_day_before_is_gone(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    answers.begin("old", "d")
    monkeypatch.setattr(api_answers, "KEPT", timedelta(0))
    assert answers.find("old") is None
    answers.begin("new", "d")
    monkeypatch.setattr(api_answers, "KEPT", timedelta(hours=24))
    assert (answers.find("old"), answers.find("new") is None) == (None, False)


def test_a_model_is_of_the_pipelines_of_its_evidence(empty_database: str) -> None:
    ledger = Ledger(empty_database)
    for number, pipeline in enumerate(("b", "a", "b", None)):
        evidence = {} if pipeline is None else {"pipeline": pipeline}
        entry = Entry(
            model="m",
            key=decision_key("m", str(number)),
            weights_digest=f"w{number}",
            version=str(number),
            action="recorded",
            outcome="rejected",
            reasons=[],
            evidence=evidence,
            decided_by="x",
        )
        ledger.record(entry)
    assert (ledger.pipelines_of("m"), ledger.pipelines_of("none")) == (["a", "b"], [])
