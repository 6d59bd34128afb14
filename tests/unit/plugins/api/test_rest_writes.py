"""Runs that requests start, and data that they deprecate: once each, however often the request is sent."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from airflow.models import DagRun  # noqa: TID251 - where Airflow looks for a run
from sqlalchemy import delete, text
from sqlalchemy.exc import OperationalError

from nightshift.api.request_body import MAX_BODY_BYTES
from nightshift.queries import runs
from nightshift.settings import Settings
from tests.unit.plugins.seeded_installation import API, DONE, NEW, OLD, Seeded
from training.database import connect
from training.database.datasets import deprecate
from training.database.pipeline_runs import note_state
from training.errors import Problem, SpecError, UnavailableError

START = "/pipelines/search_ranking/runs"
KEY = {"Idempotency-Key": "one"}


def number_of_runs(seeded: Seeded) -> int:
    return len(seeded.get("/runs", params={"pipeline": "search_ranking", "limit": 200}).json()["items"])


def test_a_run_is_queued_with_what_the_request_gives_and_can_be_looked_at(seeded: Seeded) -> None:
    body = {"as_of": "2026-02-01", "train": {"learning_rate": 0.02}, "snapshot": OLD}
    answer = seeded.post(START, body)
    assert answer.status_code == 202, answer.text
    run = answer.json()
    assert (run["state"], run["triggered_by"], run["parameters"]) == ("queued", "bob", body)
    assert answer.headers["location"] == f"/api/v1/runs/{quote(run['id'], safe='')}"
    assert seeded.get(f"/runs/{quote(run['id'], safe='')}").json()["parameters"] == body


def test_run_that_may_not_promote_is_queued_as_such(seeded: Seeded) -> None:
    for body, parameters in (({"promote": False}, {"promote": False}), ({"promote": True, "force": False}, {})):
        answer = seeded.post(START, body)
        assert (answer.status_code, answer.json()["parameters"]) == (202, parameters), answer.text


def test_the_same_request_twice_is_one_run_with_one_answer(seeded: Seeded) -> None:
    before = number_of_runs(seeded)
    first, again = (seeded.post(START, {"as_of": "2026-02-01"}, headers=KEY) for _ in range(2))
    assert first.status_code == again.status_code == 202
    assert (first.content, first.headers["location"]) == (again.content, again.headers["location"])
    assert number_of_runs(seeded) == before + 1
    other = seeded.post(START, {"as_of": "2026-02-02"}, headers=KEY)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency.mismatch")
    assert number_of_runs(seeded) == before + 1
    # Another user's key is another key, and no key is a new run each time.
    for user, headers in (("olga", KEY), ("bob", {}), ("bob", {})):
        assert seeded.post(START, {"as_of": "2026-02-01"}, user=user, headers=headers).status_code == 202
    assert number_of_runs(seeded) == before + 4


def test_a_run_that_a_request_started_is_queued_for_sql_clients(seeded: Seeded) -> None:
    run_id = seeded.post(START, {"train": {"learning_rate": 0.5}}).json()["id"]
    query = text("SELECT status, started_at, ended_at FROM bi_experiment_run WHERE run_uuid = :id")
    with connect(Settings.from_environment().database_url).connect() as connection:
        assert tuple(connection.execute(query, {"id": run_id}).one()) == ("queued", None, None)


def test_an_order_that_comes_after_its_run_has_ended_leaves_the_noted_end(seeded: Seeded) -> None:
    engine = connect(Settings.from_environment().database_url)
    runs.start_run("search_ranking", "ended", {}, by="bob")
    note_state(engine, "search_ranking", "ended", "success", noted="queued")
    runs.start_run("search_ranking", "ended", {}, by="bob")
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT state FROM bi_runs WHERE run_id = 'search_ranking:ended'")) == "success"


@pytest.mark.parametrize(
    "error",
    [
        UnavailableError("database.unavailable", "no answer"),
        SpecError("NIGHTSHIFT_DATABASE", [Problem(code="settings.database", message="no URL")]),
        OperationalError("INSERT", {}, Exception("no such column")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_run_is_started_also_if_it_cannot_be_noted_for_sql_clients(
    seeded: Seeded, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def away(*_arguments: Any) -> None:
        raise error

    monkeypatch.setattr(runs, "record_queued", away)
    before = number_of_runs(seeded)
    assert seeded.post(START, {}).status_code == 202
    assert number_of_runs(seeded) == before + 1


def test_a_request_whose_process_died_before_the_answer_is_one_run(seeded: Seeded, monkeypatch: pytest.MonkeyPatch) -> None:
    before, start = number_of_runs(seeded), runs.start_run

    def dies(*arguments: Any, **options: Any) -> Any:
        start(*arguments, **options)
        raise SystemError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(runs, "start_run", dies)
        broken = seeded.post(START, {}, headers=KEY)
        assert (broken.status_code, broken.json()["code"]) == (500, "internal.error")
        assert "killed" not in broken.text
    assert seeded.post(START, {}, headers=KEY).status_code == 202
    assert number_of_runs(seeded) == before + 1


def test_a_repeated_request_is_its_run_also_where_its_snapshot_is_refused_by_now(seeded: Seeded) -> None:
    first = seeded.post(START, {"snapshot": OLD}, headers=KEY)
    deprecate(connect(), "search_ranking", OLD, by="ann", reason="wrong labels")
    again = seeded.post(START, {"snapshot": OLD}, headers=KEY)
    assert (first.status_code, again.status_code) == (202, 202), again.text
    assert first.json()["id"] == again.json()["id"]


def test_a_key_is_of_a_path_and_only_what_a_request_gives_must_be_what_its_run_has(seeded: Seeded) -> None:
    settings = {"train": {"learning_rate": 0.5, "epochs": 2}, "force": True}
    first = seeded.post(START, settings, headers=KEY).json()["id"]
    for given in ({}, {"force": True}, {"train": {"epochs": 2}}, settings):
        assert seeded.post(START, given, headers=KEY).json()["id"] == first
    # A null is a value, and not that of the YAML.
    for given in ({"as_of": "2026-02-01"}, {"train": {"epochs": 3}}, {"train": {"batch_size": 8}}, {"train": {"warmup_share": None}}):
        other = seeded.post(START, given, headers=KEY)
        assert (other.status_code, other.json()["code"]) == (422, "idempotency.mismatch")
    assert seeded.post("/training-runs", {"pipeline": "search_ranking", **settings}, headers=KEY).json()["id"] != first


def test_a_key_starts_a_run_again_once_its_run_is_deleted(seeded: Seeded) -> None:
    first = seeded.post(START, {"train": {"epochs": 2}}, headers=KEY).json()
    with runs.airflow_session() as session:
        session.execute(delete(DagRun).where(DagRun.run_id == first["run_id"]))
    later = seeded.post(START, {"train": {"epochs": 3}}, headers=KEY)
    assert (later.status_code, later.json()["parameters"]) == (202, {"train": {"epochs": 3}}), later.text


ORDERS = pytest.mark.parametrize(
    ("path", "body"),
    [
        (START, {"train": {"epochs": 2}}),
        ("/training-runs", {"pipeline": "search_ranking"}),
        ("/models/register", {"pipeline": "search_ranking", "artifact_uri": "s3://bucket/model.ubj", "format": "xgboost_json"}),
        ("/hpo/studies", {"pipeline": "search_ranking", "trials": 3}),
        (f"/training-runs/{quote(f'search_ranking:{DONE}', safe='')}/checkpoints/newest/restore", {}),
    ],
)


@ORDERS
def test_an_order_that_is_sent_twice_is_one_run_and_without_a_key_two(seeded: Seeded, path: str, body: dict[str, Any]) -> None:
    answers = [seeded.post(path, body, headers=headers) for headers in (KEY, KEY, {}, {})]
    assert [answer.status_code for answer in answers] == [202] * 4, [answer.text for answer in answers]
    first, again, other, another = (answer.json()["id"] for answer in answers)
    assert first == again
    assert len({first, other, another}) == 3
    assert answers[0].headers["location"] == answers[1].headers["location"]


@ORDERS
def test_the_same_request_at_the_same_moment_in_two_processes_is_one_run(
    seeded: Seeded, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    first = seeded.post(path, body, headers=KEY)
    other_process_is_ahead(monkeypatch)
    second = seeded.post(path, body, headers=KEY)
    assert (first.status_code, second.status_code) == (202, 202), second.text
    assert first.json()["id"] == second.json()["id"]


def other_process_is_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next request, and Airflow, look for its run before another process makes it."""
    look, looks = runs.is_ordered, iter([False])
    monkeypatch.setattr(runs, "is_ordered", lambda *arguments: next(looks, None) is not False and look(*arguments))
    monkeypatch.setattr(DagRun, "find_duplicate", lambda *arguments, **options: None)


def test_another_request_of_the_same_key_at_the_same_moment_is_refused(seeded: Seeded, monkeypatch: pytest.MonkeyPatch) -> None:
    before = number_of_runs(seeded)
    assert seeded.post(START, {"train": {"epochs": 2}}, headers=KEY).status_code == 202
    other_process_is_ahead(monkeypatch)
    other = seeded.post(START, {"train": {"epochs": 3}}, headers=KEY)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency.mismatch")
    assert number_of_runs(seeded) == before + 1


def test_a_refused_request_may_be_repeated_once_its_reason_is_gone(seeded: Seeded) -> None:
    missing = {"snapshot": "e" * 16}
    for _ in range(2):
        assert seeded.post(START, missing, headers=KEY).status_code == 404
    assert seeded.post(START, {}, headers=KEY).status_code == 202


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"as_of": "yesterday"}, "as_of.invalid"),
        ({"as_of": "2098-01-01"}, "as_of.future"),
        ({"as_of": "2999-01-01"}, "as_of.invalid"),
        ({"train": {"learning_rate": "fast"}}, "conf.invalid"),
        ({"train": {"learning_speed": 1}}, "conf.unknown_key"),
        ({"learning_rate": 0.1}, "request.invalid"),
        ({"force": "perhaps"}, "request.invalid"),
        ({"snapshot": "../etc"}, "request.invalid"),
        ([], "request.invalid"),
    ],
)
def test_a_wrong_parameter_is_invalid_and_starts_nothing(seeded: Seeded, body: Any, code: str) -> None:
    before = number_of_runs(seeded)
    answer = seeded.post(START, body)
    assert (answer.status_code, answer.json()["code"]) == (422, code), answer.text
    assert answer.json()["errors"]
    # Without the schema that Airflow quotes.
    assert len(answer.json()["detail"]) < 500
    assert number_of_runs(seeded) == before


@pytest.mark.parametrize(
    ("body", "field", "hint"),
    [
        ({"train": {"epoch": 5}}, "train.epoch", "did you mean epochs?"),
        ({"train": {"placement": {"gpu": 1}}}, "train.placement.gpu", "did you mean gpus?"),
        ({"train": {"settings": {"hiden": [8]}}}, "train.settings.hiden", "did you mean hidden?"),
        ({"evaluate": {"minimum": {"mrr": 0.1}, "primary": "mrr"}}, "evaluate.primary", "known: checks, confidence, "),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest_one(seeded: Seeded, body: Any, field: str, hint: str) -> None:
    answer = seeded.post(START, body).json()
    assert (answer["status"], answer["code"]) == (422, "conf.unknown_key")
    assert (answer["detail"], [each["field"] for each in answer["errors"]]) == (f"unknown key {field.split('.')[-1]!r}", [field])
    assert answer["hint"].startswith(hint)
    assert "\n" not in answer["hint"]


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"train": {"placement": {"nodes": "two"}}}, "train.placement.nodes", "'two' is not of type 'null', 'integer'"),
        ({"train": {"placement": {"memory": "16XB"}}}, "train.placement.memory", "'16XB' is not in the form of 512MiB"),
        ({"train": {"from_checkpoint": "zz"}}, "train.from_checkpoint", "'zz' is not in the form of this key"),
        ({"data": {"source": {"window": "30x"}}}, "data.source.window", "'30x' is not in the form of 30d"),
        ({"evaluate": {"confidence": 2}}, "evaluate.confidence", "2 is greater than the maximum of 0.9999"),
    ],
)
def test_a_wrong_value_is_answered_with_its_key_before_there_is_a_run(seeded: Seeded, body: Any, field: str, words: str) -> None:
    before = number_of_runs(seeded)
    answer = seeded.post(START, body).json()
    assert (answer["status"], answer["code"], answer["detail"]) == (422, "conf.invalid", words)
    assert [each["field"] for each in answer["errors"]] == [field]
    assert number_of_runs(seeded) == before


def test_a_deprecated_snapshot_starts_no_run(seeded: Seeded) -> None:
    deprecate(connect(), "search_ranking", OLD, by="ann", reason="wrong labels")
    answer = seeded.post(START, {"snapshot": OLD})
    assert (answer.status_code, answer.json()["code"]) == (409, "snapshot.deprecated")
    assert "wrong labels" in answer.json()["detail"]


def test_a_body_that_is_too_large_is_not_read(seeded: Seeded) -> None:
    answer = seeded.post(START, {"train": {"x": "y" * MAX_BODY_BYTES}})
    assert (answer.status_code, answer.json()["code"]) == (413, "request.too_large")


def test_a_version_is_deprecated_once_and_the_same_again_has_the_same_answer(seeded: Seeded) -> None:
    path = f"/datasets/search_ranking/versions/{NEW}/deprecate"
    first, again = (seeded.post(path, {"reason": "wrong labels"}) for _ in range(2))
    assert (first.status_code, first.json()["health"], first.json()["deprecated_by"]) == (200, "deprecated", "bob")
    assert first.content == again.content
    for user, reason in (("bob", "no labels"), ("olga", "wrong labels")):
        other = seeded.post(path, {"reason": reason}, user=user)
        assert (other.status_code, other.json()["code"]) == (409, "snapshot.deprecated")
    blank = seeded.post(f"/datasets/search_ranking/versions/{OLD}/deprecate", {"reason": "  "})
    assert (blank.status_code, blank.json()["code"]) == (422, "snapshot.reason")


NESTED = b'{"train": ' + b'{"a": ' * 900 + b"1" + b"}" * 901


@pytest.mark.parametrize(
    "body", [b"{", b"\xff\xfe", b"", b'{"as_of": NaN}', NESTED, b'{"train": {"\\ud800": 1}}', b'{"train": {"learning_rate": 1e400}}']
)
def test_a_body_that_is_no_json_is_invalid(seeded: Seeded, body: bytes) -> None:
    headers = {**seeded.headers("bob", "user"), "Content-Type": "application/json"}
    answer = seeded.client.post(f"/api/v1{START}", content=body, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (422, "request.invalid")
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("value", ['"a\\u0000b"', '{"\\u0000": 1}', '[[{"a": "\\u0000"}]]'])
def test_a_text_with_a_character_that_no_database_holds_is_refused(seeded: Seeded, value: str) -> None:
    before = number_of_runs(seeded)
    headers = {**seeded.headers("bob", "user"), "Content-Type": "application/json"}
    answer = seeded.client.post(API + START, content='{"tune": {"a": ' + value + "}}", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (422, "request.invalid"), answer.text
    assert "NUL" in answer.json()["detail"]
    assert number_of_runs(seeded) == before


@pytest.mark.parametrize("body", ['{"as_of": "2026-02-01", "as_of": "2026-02-02"}', '{"train": {"epochs": 1, "epochs": 1}}'])
def test_a_body_with_a_key_twice_is_refused_by_its_name(seeded: Seeded, body: str) -> None:
    before = number_of_runs(seeded)
    headers = {**seeded.headers("bob", "user"), "Content-Type": "application/json"}
    answer = seeded.client.post(API + START, content=body, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (422, "request.invalid"), answer.text
    assert answer.json()["detail"] == f"the key {'as_of' if 'as_of' in body else 'epochs'!r} is there twice"
    assert number_of_runs(seeded) == before
