"""What stands before every route: the token, then the origin, then a body that is bounded before it is parsed."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any
from urllib.parse import quote

import pytest
from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import COOKIE_NAME_JWT_TOKEN
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from fastapi.routing import APIRoute

from nightshift.api import application
from nightshift.api.request_body import MAX_DEPTH, MAX_VALUES
from tests.unit.plugins.api.test_rest_access import CHANGE, WRITES
from tests.unit.plugins.api.test_rest_approvals import YES
from tests.unit.plugins.api.test_rest_writes import number_of_runs
from tests.unit.plugins.seeded_installation import API, DONE, Seeded

ROUTES = [(method, route.path) for route in application.app.routes if isinstance(route, APIRoute) for method in sorted(route.methods)]
RUN = quote(f"search_ranking:{DONE}", safe="")
CHANGES: list[tuple[str, str, Any]] = [
    *(("POST", path, body) for path, body, _ in WRITES),
    ("PUT", "/models/search_ranking/versions/1/stage", CHANGE),
    ("PUT", "/models/search_ranking/versions/3/approval", YES),
]
START = "/pipelines/search_ranking/runs"


def answered(method: str, path: str, headers: dict[str, str], *received: dict[str, Any]) -> tuple[int, dict[str, str], int]:
    """Send a request to the application; return its status, its headers, and how often it asked for a part of the body."""
    sent: list[dict[str, Any]] = []
    asked = 0

    async def receive() -> dict[str, Any]:
        nonlocal asked
        asked += 1
        return received[asked - 1]

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        **{"type": "http", "http_version": "1.1", "method": method, "path": path, "raw_path": path.encode(), "query_string": b""},
        **{"root_path": "", "scheme": "http", "server": ("testserver", 80), "client": ("127.0.0.1", 1)},
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
    }
    asyncio.run(application.app(scope, receive, send))
    return sent[0]["status"], {name.decode(): value.decode() for name, value in sent[0]["headers"]}, asked


def cookie(user: str = "root", role: str = "admin") -> dict[str, str]:
    return {"Cookie": f"{COOKIE_NAME_JWT_TOKEN}={get_auth_manager().generate_jwt(SimpleAuthManagerUser(username=user, role=role))}"}


def tokens() -> dict[str, dict[str, str]]:
    """Return headers without a valid token, by what is wrong."""
    manager, root = get_auth_manager(), SimpleAuthManagerUser(username="root", role="admin")
    valid, expired = manager.generate_jwt(root), manager.generate_jwt(root, expiration_time_in_seconds=-3600)
    forged = f"{valid.rpartition('.')[0]}.{expired.rpartition('.')[2]}"
    return {
        "none": {},
        "expired": {"Authorization": f"Bearer {expired}"},
        "forged": {"Authorization": f"Bearer {forged}"},
        "expired cookie": {"Cookie": f"{COOKIE_NAME_JWT_TOKEN}={expired}"},
        "forged cookie": {"Cookie": f"{COOKIE_NAME_JWT_TOKEN}={forged}", "Origin": "http://testserver"},
    }


def test_the_changes_are_those_of_all_writing_routes() -> None:
    assert len(CHANGES) == len([method for method, _ in ROUTES if method != "GET"])


def test_a_request_without_a_valid_token_is_refused_on_every_route_before_its_body_is_asked_for(seeded: Seeded) -> None:
    for what, headers in tokens().items():
        for method, path in ROUTES:
            status, found, asked = answered(method, path, {**headers, "Content-Type": "application/json", "Content-Length": "250000"})
            assert (status, asked) == (401, 0), (what, method, path)
            assert found["x-content-type-options"] == "nosniff"


FOREIGN = [
    {},
    {"Origin": "https://elsewhere.example"},
    {"Origin": "null"},
    {"Origin": "http://["},
    {"Origin": "http://testserver:5000"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site", "Origin": "http://testserver"},
    {"Sec-Fetch-Site": "same-origin", "Origin": "https://elsewhere.example"},
]


def test_a_cookie_changes_something_only_from_a_page_of_this_server(seeded: Seeded) -> None:
    before = number_of_runs(seeded)
    for method, path, body in CHANGES:
        for headers in FOREIGN:
            refused = seeded.client.request(method, API + path, json=body, headers={**cookie(), **headers})
            assert (refused.status_code, refused.json()["code"]) == (403, "request.origin"), (method, path, headers)
    assert number_of_runs(seeded) == before
    for method, path, body in CHANGES:
        for headers in ({"Origin": "http://testserver"}, {"Sec-Fetch-Site": "same-origin"}):
            answer = seeded.client.request(method, API + path, json=body, headers={**cookie(), **headers})
            assert answer.status_code != 403, (method, path, headers)


def test_a_change_needs_json_also_without_a_body(seeded: Seeded) -> None:
    before, token = number_of_runs(seeded), seeded.headers("root", "admin")
    for method, path, body in CHANGES:
        for kind in (
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=x",
            "text/json",
            "application/jsonx",
            "",
        ):
            for content in (b"", json.dumps(body).encode()):
                headers = {**token, "Content-Type": kind} if kind else token
                refused = seeded.client.request(method, API + path, content=content, headers=headers)
                assert (refused.status_code, refused.json()["code"]) == (415, "request.media_type"), (method, path, kind)
    assert number_of_runs(seeded) == before
    headers = {**token, "Content-Type": "Application/JSON; charset=utf-8"}
    assert seeded.client.post(API + START, content=b"{}", headers=headers).status_code == 202


def test_a_token_in_a_header_is_enough_from_any_page(seeded: Seeded) -> None:
    answer = seeded.post(START, {}, headers={"Origin": "https://elsewhere.example", "Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 202


def test_the_address_that_the_configuration_gives_is_this_server(seeded: Seeded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example.com/team")
    headers = {**cookie(), "Origin": "https://airflow.example.com"}
    assert seeded.client.post(API + START, json={}, headers=headers).status_code == 202


TOO_MUCH: list[tuple[str | bytes, str]] = [
    ('{"train": {"a": [' + "[]," * MAX_VALUES + "[]]}}", "more than 10,000 values"),
    ('{"train": {"a": [' + "0," * MAX_VALUES + "0]}}", "more than 10,000 values"),
    ('{"train": {"a": ' + "[" * MAX_DEPTH + "]" * MAX_DEPTH + "}}", "deeper than 32 levels"),
    ("[" * 200_000, "more than 10,000 values"),
    ("[" * 5_000, "deeper than 32 levels"),
    ("]" * 200_000, "no JSON: Expecting value at character 1"),
    ('{"as_of": "' + '\\"' * 100_000, "no JSON: Unterminated string"),
    ('{"tune": {"a": ' + "1" * 5_000 + "}}", "too many digits"),
    ('{"tune": {"a": "\\udfff"}}', "surrogate"),
    ("{}".encode("utf-16"), "not UTF-8 at byte 1"),
]


def test_a_body_that_is_too_much_to_parse_is_refused_with_the_reason(seeded: Seeded) -> None:
    before = number_of_runs(seeded)
    headers = {**seeded.headers("bob", "user"), "Content-Type": "application/json"}
    for body, words in TOO_MUCH:
        answer = seeded.client.post(API + START, content=body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (422, "request.invalid")
        assert words in answer.json()["detail"]
    assert number_of_runs(seeded) == before


def test_brackets_and_commas_of_a_text_count_nothing(seeded: Seeded) -> None:
    text = '{[,"\\' * 20_000
    answer = seeded.post(START, {"train": {"settings": {"text": text}}})
    assert (answer.status_code, answer.json()["code"]) == (422, "conf.unknown_key")


def test_a_body_that_never_comes_is_one_line_in_the_log(seeded: Seeded, caplog: pytest.LogCaptureFixture) -> None:
    headers = {**seeded.headers("bob", "user"), "Content-Type": "application/json", "Content-Length": "1000"}
    with caplog.at_level(logging.DEBUG, logger="nightshift"):
        answered("POST", API + START, headers, {"type": "http.request", "body": b'{"a', "more_body": True}, {"type": "http.disconnect"})
    ours = [record for record in caplog.records if record.name.startswith("nightshift")]
    assert [record.getMessage() for record in ours] == [
        "POST /api/v1/pipelines/{pipeline}/runs: the client left before the end of its body"
    ]
    assert ours[0].exc_info is None


def test_the_description_is_computed_once(seeded: Seeded, monkeypatch: pytest.MonkeyPatch) -> None:
    first = seeded.get("/openapi.json")
    assert first.json() == application.openapi()
    monkeypatch.setattr(application, "openapi", lambda: pytest.fail("computed again"))
    assert seeded.get("/openapi.json").content == first.content


def test_no_answer_sends_a_browser_to_the_address_in_the_host_header(seeded: Seeded) -> None:
    for path in ("/models/", "/runs/", "/openapi.json/"):
        answer = seeded.get(path, headers={"Host": "elsewhere.example"}, follow_redirects=False)
        assert (answer.status_code, answer.json()["code"]) == (404, "route.unknown")
        assert "elsewhere.example" not in str(answer.headers)


def test_every_answer_is_taken_for_what_it_says_that_it_is(seeded: Seeded) -> None:
    paths = {"/models": 200, "/openapi.json": 200, f"/runs/{RUN}": 200, "/models/nothing": 404, "/runs?limit=0": 422, "/nowhere": 404}
    for path, status in paths.items():
        answer = seeded.get(path)
        assert (answer.status_code, answer.headers["x-content-type-options"]) == (status, "nosniff")
