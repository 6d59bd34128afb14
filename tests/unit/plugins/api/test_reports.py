"""The one page that the plugin serves."""

import gzip
from collections.abc import Callable

import pytest
from airflow.api_fastapi.app import create_auth_manager, get_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from nightshift.api.application import app
from nightshift.api.reports import router
from training.errors import UnavailableError
from training.store import Store
from training.store.bucket import Bucket
from training.store.work_folder import StoreUri


def published(store: Store, page: bytes, pipeline: str = "search_ranking") -> str:
    """Store a page as a stage's report of a pipeline; return its digest."""
    return StoreUri(store.reports.put(pipeline, page)).digest


PAGE = b"\n<!DOCTYPE html><title>report</title>"


@pytest.fixture
def client(airflow_database: None, store: Store) -> TestClient:
    create_auth_manager()
    return TestClient(app)


@pytest.fixture
def ada(client: TestClient) -> dict[str, str]:
    """The header of someone who is logged in and may look."""
    token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username="ada", role="viewer"))
    return {"Authorization": f"Bearer {token}"}


def test_who_is_logged_in_sees_a_report_that_can_reach_nothing(client: TestClient, ada: dict[str, str], store: Store) -> None:
    answer = client.get(f"/reports/search_ranking/{published(store, PAGE)}", headers=ada)
    assert (answer.status_code, answer.content) == (200, PAGE)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("sandbox allow-scripts; default-src 'none';")
    assert "http" not in policy
    assert "allow-same-origin" not in policy


def test_the_cookie_of_airflows_page_is_enough(client: TestClient, ada: dict[str, str], store: Store) -> None:
    client.cookies.set("_token", ada["Authorization"].removeprefix("Bearer "))
    assert client.get(f"/reports/search_ranking/{published(store, PAGE)}").status_code == 200


def test_every_route_asks_for_a_login(client: TestClient, store: Store) -> None:
    digest = published(store, PAGE)
    routes = [route for route in router.routes if isinstance(route, APIRoute)]
    assert [route.path for route in routes] == ["/reports/{dag_id}/{digest}"]
    assert client.get(f"/reports/search_ranking/{digest}").status_code == 401
    assert client.get(f"/reports/search_ranking/{'0' * 64}").status_code == 401
    assert client.get(f"/reports/search_ranking/{digest}", headers={"Authorization": "Bearer forged"}).status_code == 401
    for path in ("/docs", "/redoc", "/openapi.json"):
        assert client.get(path).status_code == 404


@pytest.mark.parametrize("name", ["..%2f..%2fetc%2fpasswd", "0" * 63, "Z" * 64, "0" * 64 + "%0a"])
def test_only_a_digest_is_a_name(name: str, client: TestClient, ada: dict[str, str]) -> None:
    assert client.get(f"/reports/search_ranking/{name}", headers=ada).status_code in (404, 422)


def test_what_is_no_page_is_not_there(client: TestClient, ada: dict[str, str], store: Store) -> None:
    missing = client.get(f"/reports/search_ranking/{'0' * 64}", headers=ada)
    weights = client.get(f"/reports/search_ranking/{store.objects.put_bytes(b'PAR1 rows')}", headers=ada)
    assert (missing.status_code, weights.status_code) == (404, 404)
    assert missing.json() == weights.json()
    assert missing.json()["code"] == "report.unknown"


def test_an_altered_report_is_not_shown(client: TestClient, ada: dict[str, str], store: Store) -> None:
    digest = published(store, PAGE)
    store.bucket.put(f"reports/search_ranking/{digest}", gzip.compress(PAGE + b"<script>forged</script>"))
    assert client.get(f"/reports/search_ranking/{digest}", headers=ada).status_code == 404


def test_a_store_that_does_not_answer_is_said_to_be_away(client: TestClient, ada: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_arguments: object, **_options: object) -> bytes | None:
        raise UnavailableError("storage.unavailable", "connection refused at 10.0.0.1")

    read: Callable[..., bytes | None] = away
    monkeypatch.setattr(Bucket, "find", read)
    answer = client.get(f"/reports/search_ranking/{'0' * 64}", headers=ada)
    assert (answer.status_code, answer.json()["detail"]) == (503, "the store does not answer")
    assert "10.0.0.1" not in answer.text


def test_a_report_under_another_dag_is_not_there(client: TestClient, ada: dict[str, str], store: Store) -> None:
    digest = published(store, PAGE, "flight_delay")
    other = client.get(f"/reports/search_ranking/{digest}", headers=ada)
    unknown = client.get(f"/reports/search_ranking/{'0' * 64}", headers=ada)
    assert (other.status_code, other.json(), dict(other.headers)) == (unknown.status_code, unknown.json(), dict(unknown.headers))
    assert other.status_code == 404
    assert client.get(f"/reports/flight_delay/{digest}", headers=ada).status_code == 200


@pytest.mark.parametrize("suffix", [".canary", ".approval", ".tune"])
def test_the_dags_beside_a_pipeline_show_its_reports(client: TestClient, ada: dict[str, str], store: Store, suffix: str) -> None:
    digest = published(store, PAGE)
    assert client.get(f"/reports/search_ranking{suffix}/{digest}", headers=ada).status_code == 200
    assert client.get(f"/reports/flight_delay{suffix}/{digest}", headers=ada).status_code == 404


def test_a_page_of_the_store_that_no_pipeline_published_is_not_there(client: TestClient, ada: dict[str, str], store: Store) -> None:
    assert client.get(f"/reports/search_ranking/{store.objects.put_bytes(PAGE)}", headers=ada).status_code == 404


@pytest.mark.parametrize("dag_id", ["search_ranking", "no_such_dag", "search_ranking.canary"])
def test_a_request_for_a_report_writes_nothing_to_the_store(dag_id: str, client: TestClient, ada: dict[str, str], store: Store) -> None:
    digest = store.objects.put_bytes(PAGE)
    store.run_ref("search_ranking", "night-2026-02-01", "reports/evaluation").move(store.objects.uri(digest), expected=0)
    before = store.bucket.list("")
    for name in (digest, "0" * 64):
        client.get(f"/reports/{dag_id}/{name}", headers=ada)
    assert store.bucket.list("") == before
