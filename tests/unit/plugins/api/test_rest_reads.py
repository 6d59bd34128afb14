"""What the REST API says of runs, models and data, and how its lists, tags and errors behave."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from airflow.models import DagModel, DagRun  # noqa: TID251 - the schedule as the dag-processor writes it, a conf
from airflow.timetables.simple import NullTimetable
from airflow.utils.session import create_session
from sqlalchemy import select, update

from nightshift.settings import Settings
from tests.unit.plugins.seeded_installation import DONE, NEW, OLD, PIPELINES, Seeded
from training.data.snapshot.index import register_snapshot
from training.database import connect
from training.registry.ledger.ledger import Ledger
from training.registry.ledger.version_weights import MLflowRegistration
from training.sanitizing import for_markdown
from training.store import Store


def test_pipelines_are_the_dags_of_specs_and_not_their_helpers(seeded: Seeded) -> None:
    answer = seeded.get("/pipelines")
    assert answer.status_code == 200, answer.text
    assert [each["name"] for each in answer.json()["items"]] == sorted(PIPELINES)
    assert seeded.get("/pipelines/search_ranking").json()["schedule"]
    helper = seeded.get("/pipelines/search_ranking.canary")
    assert (helper.status_code, helper.json()["code"]) == (404, "pipeline.unknown")


def test_schedule_of_a_pipeline_that_has_none_is_null(seeded: Seeded) -> None:
    row = DagModel.dag_id == "search_ranking"
    with create_session() as session:
        before = session.scalar(select(DagModel.timetable_summary).where(row))
        session.execute(update(DagModel).where(row).values(timetable_summary=NullTimetable().summary))
    try:
        assert seeded.get("/pipelines/search_ranking").json()["schedule"] is None
    finally:
        with create_session() as session:
            session.execute(update(DagModel).where(row).values(timetable_summary=before))


def test_note_of_a_run_is_the_text_and_not_the_markdown_that_airflow_shows(seeded: Seeded) -> None:
    row = select(DagRun).where(DagRun.dag_id == "search_ranking", DagRun.run_id == DONE)
    with create_session() as session:
        session.scalars(row).one().note = for_markdown("gain 0.003 < 0.005 | rejected")
    try:
        run = seeded.get(f"/runs/{quote(f'search_ranking:{DONE}', safe='')}").json()
        assert run["note"] == "gain 0.003 < 0.005 | rejected"
    finally:
        with create_session() as session:
            session.scalars(row).one().note = None


def test_a_run_has_its_stages_in_order_with_results_and_overrides(seeded: Seeded) -> None:
    answer = seeded.get(f"/runs/{quote(f'search_ranking:{DONE}', safe='')}")
    assert answer.status_code == 200, answer.text
    run = answer.json()
    assert (run["pipeline"], run["state"], run["as_of"]) == ("search_ranking", "success", "2026-02-01T02:00:00Z")
    assert run["parameters"] == {"train": {"learning_rate": 0.01}}
    names = [stage["name"] for stage in run["stages"]]
    assert names == ["resolve", "wait", "ingest", "validate", "prepare", "train", "evaluate", "promote"]
    train = run["stages"][names.index("train")]
    assert (train["attempts"], train["scalars"], train["timings"]) == (2, {"rows": 1000, "validation_loss": 0.5}, {"total": 12.5})
    assert train["artifact"] == {"uri": "file:///store/search_ranking", "digest": "d" * 64}
    # Somebody wrote to XCom what no stage made.
    assert run["stages"][names.index("prepare")]["artifact"] is None
    assert seeded.get(f"/experiments/search_ranking/runs/{quote(DONE, safe='')}").json() == run


@pytest.mark.parametrize("shape", [dict, list])
def test_a_run_whose_conf_is_nested_too_deep_for_json_is_shown_with_the_rest(seeded: Seeded, shape: type) -> None:
    conf: Any = "inner"
    for _ in range(600):
        conf = {"a": conf} if shape is dict else [conf]
    with create_session() as session:
        session.execute(
            update(DagRun).where(DagRun.run_id == DONE, DagRun.dag_id == "search_ranking").values(conf={"force": True, "deep": conf})
        )
    answer = seeded.get(f"/runs/search_ranking:{quote(DONE, safe='')}")
    assert answer.status_code == 200, answer.text
    assert answer.json()["parameters"]["force"]
    assert "…" in json.dumps(answer.json()["parameters"], ensure_ascii=False)


def test_runs_are_listed_once_each_in_pages_from_the_newest(seeded: Seeded) -> None:
    found, cursor = [], None
    for _ in range(4):
        page = seeded.get("/runs", params={"limit": 2} | ({} if cursor is None else {"cursor": cursor})).json()
        found += [run["id"] for run in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert len(found) == len(set(found)) == 6
    assert found[-1] == f"search_ranking:{DONE}"
    failed = seeded.get("/runs", params={"pipeline": "flight_delay", "state": "failed"}).json()["items"]
    assert [(run["pipeline"], run["state"]) for run in failed] == [("flight_delay", "failed")] * 2


def test_models_show_standing_decisions_and_evidence(seeded: Seeded) -> None:
    assert [each["name"] for each in seeded.get("/models").json()["items"]] == sorted(PIPELINES)
    model = seeded.get("/models/search_ranking").json()
    assert (model["champion"]["version"], model["canary"], model["awaiting_approval"]) == ("1", None, ["1.3.0"])
    decisions = seeded.get("/models/search_ranking/decisions").json()["items"]
    assert [(each["version"], each["outcome"]) for each in decisions] == [("3", "needs_approval"), ("2", "rejected"), ("1", "accepted")]
    assert "evidence" not in decisions[0]
    one = seeded.get(f"/models/search_ranking/decisions/{decisions[1]['key']}").json()
    assert (one["evidence"]["pipeline"], one["reasons"][0]["gate"]) == ("search_ranking", "gain")
    version = seeded.get("/models/search_ranking/versions/1.1.0").json()
    assert (version["version"], version["alias"], len(version["decisions"])) == ("1", "champion", 1)
    for name in ("1", "1" * 12, "1" * 64):
        assert seeded.get(f"/models/search_ranking/versions/{name}").json() == version


def test_a_number_that_mlflow_gave_twice_is_a_conflict_that_names_both_versions(seeded: Seeded) -> None:
    # The registered model was deleted, and version 2 registered again as number 1.
    place = MLflowRegistration(number="1", logged_model="m-2", artifact_digest="f" * 64)
    Ledger().note_registration("search_ranking", "2" * 64, place)
    found = seeded.get("/models/search_ranking/versions/1")
    assert (found.status_code, found.json()["code"]) == (409, "version.ambiguous")
    assert "1.1.0 (weights 111111111111), 1.2.0 (weights 222222222222)" in found.json()["detail"]
    assert seeded.get("/models/search_ranking/versions/1.2.0").json()["version"] == "1"


def test_datasets_show_the_newest_version_and_all_versions(seeded: Seeded) -> None:
    assert [(each["pipeline"], each["version"]) for each in seeded.get("/datasets").json()["items"]] == [
        (name, NEW) for name in sorted(PIPELINES)
    ]
    versions = seeded.get("/datasets/search_ranking/versions").json()["items"]
    assert [(each["version"], each["health"]) for each in versions] == [(NEW, "available"), (OLD, "available")]
    assert seeded.get(f"/datasets/search_ranking/versions/{OLD}").json() == {**versions[1], "tables": None}


def test_a_dataset_shows_its_columns_and_its_split(seeded: Seeded) -> None:
    engine, store = connect(), Store(Settings.from_environment().store_uri)
    tables = {"clicks": {"rows": 1, "schema_hash": "a" * 64, "schema": {"id": "int64"}, "parts": {}}}
    uri, made = store.manifests.put_files("snapshot", {}, {"main": "clicks", "split": {"by": "time"}, "tables": tables})
    version = register_snapshot(engine, name="search_ranking", uri=uri, manifest=made, created_by="r")
    found = seeded.get(f"/datasets/search_ranking/versions/{version}").json()
    assert (found["split"], found["tables"]) == ({"by": "time"}, {"clicks": {"id": "int64"}})
    assert len(found["split_hash"]) == 64


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/pipelines/nothing", "pipeline.unknown"),
        ("/runs/nothing:r1", "run.unknown"),
        ("/runs/search_ranking:r1", "run.unknown"),
        ("/experiments/search_ranking/runs/r1", "run.unknown"),
        ("/runs?pipeline=nothing", "pipeline.unknown"),
        ("/models/nothing", "model.unknown"),
        ("/models/nothing/decisions", "model.unknown"),
        ("/models/search_ranking/versions/99", "version.unknown"),
        (f"/models/search_ranking/decisions/{'0' * 64}", "decision.unknown"),
        ("/datasets/nothing/versions", "dataset.unknown"),
        (f"/datasets/search_ranking/versions/{'e' * 16}", "snapshot.unknown"),
        ("/nothing", "route.unknown"),
    ],
)
def test_what_is_not_there_is_a_problem_with_its_code(seeded: Seeded, path: str, code: str) -> None:
    answer = seeded.get(path)
    assert (answer.status_code, answer.json()["code"], answer.headers["content-type"]) == (404, code, "application/problem+json")


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/runs/%00:r",
            "/runs/..%2f..%2fetc",
            "/runs/search_ranking",
            f"/models/{'a' * 1000}",
            "/models/a/versions/1_0",
            "/models/a/versions/-1",
        ),
        *("/runs?limit=0", "/runs?limit=201", "/runs?state=done", "/runs?cursor=%21", "/runs?cursor=YWJj", "/models?cursor=YWJj"),
        *(f"/models/a/versions/{'9' * 11}", "/datasets/a/versions/zz", "/models/a/decisions/1"),
    ],
)
def test_an_odd_name_number_or_cursor_is_invalid(seeded: Seeded, path: str) -> None:
    answer = seeded.get(path)
    assert answer.status_code in (404, 422), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] in ("request.invalid", "cursor.invalid", "route.unknown")


@pytest.mark.parametrize(
    ("path", "given", "example"),
    [
        ("/runs/search_ranking", "'search_ranking'", "search_ranking:scheduled__2026-02-01T02:00:00+00:00"),
        ("/compare?a=search_ranking@x&b=search_ranking@2", "'search_ranking@x'", "search_ranking@1.2.0"),
    ],
)
def test_a_name_of_another_form_is_answered_with_an_example(seeded: Seeded, path: str, given: str, example: str) -> None:
    (error,) = seeded.get(path).json()["errors"]
    assert error["message"] == f"{given} does not have the form of {example}"


def test_an_answer_that_the_client_has_is_not_sent_again(seeded: Seeded) -> None:
    first = seeded.get("/models/search_ranking")
    again = seeded.get("/models/search_ranking", headers={"If-None-Match": f'W/"other", {first.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    assert seeded.get("/models/search_ranking", headers={"If-None-Match": '"other"'}).status_code == 200


def test_a_database_that_does_not_answer_is_503_without_its_password(seeded: Seeded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_DATABASE", "postgresql+psycopg2://nightshift:secret@127.0.0.1:1/nightshift?connect_timeout=1")
    monkeypatch.setenv("NIGHTSHIFT_DATABASE_WAIT_SECONDS", "0")
    answer = seeded.get("/models")
    assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (503, "database.unavailable", "5")
    assert "secret" not in answer.text


def test_a_method_that_a_path_does_not_have_is_405_with_those_it_has(seeded: Seeded) -> None:
    answer = seeded.client.request("DELETE", "/api/v1/models", headers=seeded.headers("root", "admin"))
    assert (answer.status_code, answer.json()["code"], answer.headers["allow"]) == (405, "route.method", "GET")
