"""Who may see and do what through the REST API: each role on each route."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from fastapi.routing import APIRoute
from sqlalchemy.exc import OperationalError

from nightshift.api.access import access
from nightshift.api.application import api, openapi
from tests.unit.plugins.seeded_installation import DONE, OLD, STUDY_RUN, Seeded

RUN = quote(f"search_ranking:{DONE}", safe="")
STUDY = quote(f"search_ranking:{STUDY_RUN}", safe="")
READS = [
    "/openapi.json",
    "/pipelines",
    "/pipelines/search_ranking",
    "/failed-helpers",
    "/runs",
    f"/runs/{RUN}",
    f"/experiments/search_ranking/runs/{quote(DONE, safe='')}",
    f"/hpo/studies/{STUDY}",
    f"/hpo/studies/{STUDY}/trials/0/metrics",
    f"/training-runs/{RUN}/metrics",
    f"/training-runs/{RUN}/refit/metrics",
    f"/training-runs/{RUN}/checkpoints",
    "/models",
    "/models/search_ranking",
    "/models/search_ranking/versions/1",
    "/models/search_ranking/decisions",
    f"/compare?a=search_ranking@1&b={RUN}",
    "/datasets",
    "/datasets/search_ranking/versions",
    f"/datasets/search_ranking/versions/{OLD}",
]
WRITES: list[tuple[str, dict[str, Any], int]] = [
    ("/pipelines/search_ranking/runs", {}, 202),
    ("/training-runs", {"pipeline": "search_ranking"}, 202),
    ("/hpo/studies", {"pipeline": "search_ranking"}, 202),
    ("/models/register", {"pipeline": "search_ranking", "artifact_uri": "s3://models/m.ubj", "format": "xgboost_json"}, 202),
    (f"/training-runs/{RUN}/checkpoints/epoch_3/restore", {}, 202),
    (f"/datasets/search_ranking/versions/{OLD}/deprecate", {"reason": "wrong"}, 200),
]
CHANGE: dict[str, Any] = {"stage": "champion", "reason": "complaints"}


def test_every_route_asks_for_the_rights_of_its_user() -> None:
    routes = [route for route in api.routes if isinstance(route, APIRoute)]
    assert len(routes) == len(READS) + len(WRITES) + 2
    for route in routes:
        assert access in [dependency.call for dependency in route.dependant.dependencies], route.path


def test_every_operation_documents_its_errors_as_problems() -> None:
    document = openapi()
    assert document["openapi"].startswith("3.1")
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert {"401", "503"} <= set(operation["responses"]), (method, path)
            for status, response in operation["responses"].items():
                expected = "application/json" if status.startswith("2") else "application/problem+json"
                assert set(response["content"]) - {"text/event-stream"} == {expected}, (method, path, status)


@pytest.mark.parametrize("path", READS)
def test_a_viewer_reads_and_who_has_no_token_does_not(seeded: Seeded, path: str) -> None:
    assert seeded.get(path).status_code == 200
    for headers in ({}, {"Authorization": "Bearer forged"}, {"Authorization": "Basic YWRhOmFkYQ=="}):
        answer = seeded.get(path, role=None, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (401, "access.unauthenticated")
        assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(("path", "body", "status"), WRITES)
def test_a_user_writes_a_viewer_may_not_and_who_has_no_token_gets_nothing(
    seeded: Seeded, path: str, body: dict[str, Any], status: int
) -> None:
    assert seeded.post(path, body, role=None).status_code == 401
    refused = seeded.post(path, body, user="ada", role="viewer")
    assert (refused.status_code, refused.json()["code"]) == (403, "access.denied")
    for user, role in (("bob", "user"), ("olga", "op"), ("root", "admin")):
        done = seeded.post(path, body, user=user, role=role)
        assert done.status_code == status or (done.status_code, done.json()["code"]) == (409, "snapshot.deprecated"), done.text


@pytest.fixture
def own_pipelines_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """An auth manager with rights by DAG: its users have those of flight_delay alone."""
    general = SimpleAuthManager.is_authorized_dag

    def by_dag(self: SimpleAuthManager, *, details: Any = None, **options: Any) -> bool:
        return details is not None and details.id.removesuffix(".tune") == "flight_delay" and general(self, details=details, **options)

    monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", by_dag)
    monkeypatch.setattr(SimpleAuthManager, "get_authorized_dag_ids", lambda self, **options: {"flight_delay"})


def as_seen(answer: Any) -> tuple[Any, ...]:
    """Return all that an answer says, but for the name that its request had."""
    headers = {name: value for name, value in answer.headers.items() if name != "content-length"}
    return answer.status_code, headers, answer.text.replace("search_ranking", "nothing_there")


@pytest.mark.usefixtures("own_pipelines_only")
@pytest.mark.parametrize("path", [path for path in READS if "search_ranking" in path])
def test_a_record_of_another_teams_pipeline_looks_like_none(seeded: Seeded, path: str) -> None:
    hidden = seeded.get(path)
    unknown = seeded.get(path.replace("search_ranking", "nothing_there"))
    assert hidden.status_code == unknown.status_code == 404
    assert as_seen(hidden) == as_seen(unknown)
    assert seeded.get(path.replace("search_ranking", "flight_delay")).status_code == 200


@pytest.mark.usefixtures("own_pipelines_only")
@pytest.mark.parametrize(("path", "body", "status"), WRITES)
def test_nobody_writes_to_another_teams_pipeline(seeded: Seeded, path: str, body: dict[str, Any], status: int) -> None:
    hidden = seeded.post(path, body, user="root", role="admin")
    other = {name: "nothing_there" if name == "pipeline" else value for name, value in body.items()}
    unknown = seeded.post(path.replace("search_ranking", "nothing_there"), other, user="root", role="admin")
    assert hidden.status_code == 404
    assert as_seen(hidden) == as_seen(unknown)
    own = {**body, "pipeline": "flight_delay"} if "pipeline" in body else body
    assert seeded.post(path.replace("search_ranking", "flight_delay"), own).status_code == status


@pytest.mark.usefixtures("own_pipelines_only")
@pytest.mark.parametrize(("route", "body"), [("stage", CHANGE), ("approval", {"answer": "approve", "note": "seen"})])
def test_a_version_of_another_teams_model_looks_like_none_to_who_would_change_it(seeded: Seeded, route: str, body: dict[str, Any]) -> None:
    hidden, unknown = (
        seeded.put(f"/models/{name}/versions/1/{route}", body, user="root", role="admin") for name in ("search_ranking", "nothing_there")
    )
    assert hidden.status_code == 404
    assert as_seen(hidden) == as_seen(unknown)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        *((path, body) for path, body, _ in WRITES),
        ("/pipelines/search_ranking/runs", {"as_of": "2099-01-01"}),
        ("/pipelines/search_ranking/runs", {"snapshot": OLD}),
        ("/training-runs", {"pipeline": "search_ranking", "snapshot": OLD}),
        ("/hpo/studies", {"pipeline": "search_ranking", "snapshot": OLD}),
    ],
)
def test_the_one_pipeline_that_a_user_may_not_read_looks_like_none(
    seeded: Seeded, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    general = SimpleAuthManager.is_authorized_dag

    def but_one(self: SimpleAuthManager, *, details: Any = None, **options: Any) -> bool:
        is_hidden = details is not None and details.id.removesuffix(".tune") == "search_ranking"
        return not is_hidden and general(self, details=details, **options)

    monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", but_one)
    hidden = seeded.post(path, body, user="root", role="admin")
    other = {name: "nothing_there" if name == "pipeline" else value for name, value in body.items()}
    unknown = seeded.post(path.replace("search_ranking", "nothing_there"), other, user="root", role="admin")
    assert hidden.status_code == 404
    assert as_seen(hidden) == as_seen(unknown)


@pytest.mark.usefixtures("own_pipelines_only")
@pytest.mark.parametrize(("path", "name"), [("/pipelines", "name"), ("/runs", "pipeline"), ("/models", "name"), ("/datasets", "pipeline")])
def test_lists_have_only_what_may_be_read(seeded: Seeded, path: str, name: str) -> None:
    assert {each[name] for each in seeded.get(path).json()["items"]} == {"flight_delay"}


def test_a_user_changes_stages_and_a_viewer_or_another_team_does_not(seeded: Seeded, monkeypatch: pytest.MonkeyPatch) -> None:
    path = "/models/search_ranking/versions/1/stage"
    assert seeded.put(path, CHANGE, role=None).status_code == 401
    refused = seeded.put(path, CHANGE, user="ada", role="viewer")
    assert (refused.status_code, refused.json()["code"]) == (403, "access.denied")
    assert seeded.put(path, CHANGE).status_code == 200
    general = SimpleAuthManager.is_authorized_dag

    def without_rollback(self: SimpleAuthManager, *, details: Any = None, **options: Any) -> bool:
        return details.id != "rollback" and general(self, details=details, **options)

    monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", without_rollback)
    assert seeded.put(path, CHANGE).json()["code"] == "access.denied"
    monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", lambda self, **options: False)
    hidden, unknown = (
        seeded.put(f"/models/{name}/versions/1/stage", CHANGE, user="root", role="admin") for name in ("search_ranking", "none")
    )
    assert (hidden.status_code, hidden.text.replace("search_ranking", "none")) == (404, unknown.text)


def test_runs_of_a_dag_whose_runs_may_not_be_read_are_not_listed(seeded: Seeded, monkeypatch: pytest.MonkeyPatch) -> None:
    general = SimpleAuthManager.is_authorized_dag

    def without_runs(self: SimpleAuthManager, *, details: Any = None, access_entity: Any = None, **options: Any) -> bool:
        is_hidden = access_entity is not None and details.id == "search_ranking"
        return not is_hidden and general(self, details=details, access_entity=access_entity, **options)

    monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", without_runs)
    assert {run["pipeline"] for run in seeded.get("/runs").json()["items"]} == {"flight_delay"}


def test_rights_that_cannot_be_looked_up_are_503(seeded: Seeded, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_arguments: Any, **_options: Any) -> bool:
        raise OperationalError("SELECT 1", {}, Exception("connection to db:5432 refused, password=hunter2"))

    monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", away)
    answer = seeded.get("/models")
    assert (answer.status_code, answer.json()["code"]) == (503, "airflow.database")
    assert "hunter2" not in answer.text
