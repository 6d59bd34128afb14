"""Answers of the REST API with Airflow's FAB auth manager, as JSON: `python -m tests.unit.plugins.api.fab_answers`.

A process of its own: Airflow has one auth manager and one database for each.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import COOKIE_NAME_JWT_TOKEN
from airflow.models import DagRun  # noqa: TID251 - what asks
from airflow.providers.fab.auth_manager.models.db import FABDBManager
from airflow.providers.fab.www.app import create_app
from airflow.utils.db import initdb
from airflow.utils.session import create_session
from sqlalchemy import delete

from nightshift.settings import Settings
from tests.unit.plugins.airflow_dags import PIPELINES, write_dags
from tests.unit.plugins.api.test_rest_access import CHANGE, READS, WRITES
from tests.unit.plugins.api.test_rest_approvals import YES as ANSWER
from tests.unit.plugins.api.test_rest_approvals import ask, asked, request
from tests.unit.plugins.seeded_installation import Seeded, seeded_installation
from training.registry.ledger.decisions import answer_request
from training.registry.ledger.ledger import Ledger
from training.store import Store
from training.store.work_folder import StoreUri

TEAM_MODEL = "flight_delay"
ROLES = {"viewer": "Viewer", "user": "User", "op": "Op", "admin": "Admin", "team": "flight_team", "guest": "Public"}
TEAM_DAGS = ("DAG:flight_delay", "DAG:flight_delay.tune", "DAG:flight_delay.approval", "DAG:rollback")
TEAM = [
    *(("can_read", name) for name in (*TEAM_DAGS, "DAG Runs", "HITL Detail")),
    *(("can_edit", name) for name in (*TEAM_DAGS, "HITL Detail")),
    ("can_create", "DAG Runs"),
]
"""Rights of a team that has one pipeline: as docs/api.md lists them."""


def main() -> int:
    """Print [user, method, path, status, code] of each user and route."""
    initdb()
    with create_session() as session:
        FABDBManager(session).initdb()
    write_dags()
    with seeded_installation() as seeded:
        tokens = _tokens()
        # An administrator's browser on a page of another server.
        cookie = {"Cookie": f"{COOKIE_NAME_JWT_TOKEN}={tokens['admin']}", "Origin": "https://elsewhere.example"}
        headers = {**{name: {"Authorization": f"Bearer {token}"} for name, token in tokens.items()}, "anonymous": {}, "cookie": cookie}
        digest = _published()
        answers: list[list[Any]] = []
        for name, header in headers.items():
            for pipeline in PIPELINES:
                for method, path, body in _requests(pipeline, digest):
                    if path.endswith("/approval"):
                        _ask_again(pipeline)
                    address = path if path.startswith("/reports/") else f"/api/v1{path}"
                    answer = seeded.client.request(method, address, json=body, headers=header)
                    found = answer.json() if "json" in answer.headers["content-type"] else {}
                    code = found.get("code", "") if isinstance(found, dict) else ""
                    items = [each.get("pipeline", each.get("name")) for each in found.get("items", [])] if method == "GET" else []
                    answers.append([name, pipeline, method, path, answer.status_code, code, items])
        answers.append(["team", TEAM_MODEL, *_answered_and_recorded(seeded, headers["team"])])
    sys.stdout.write("\n" + json.dumps(answers) + "\n")
    return 0


def _published() -> str:
    """Publish one report as that of both pipelines; return its digest."""
    store = Store(Settings.from_environment().store_uri)
    (digest,) = {StoreUri(store.reports.put(pipeline, b"<!DOCTYPE html><title>report</title>")).digest for pipeline in PIPELINES}
    return digest


def _requests(pipeline: str, digest: str) -> list[tuple[str, str, Any]]:
    found: list[tuple[str, str, Any]] = [("GET", path, None) for path in (*READS, f"/reports/search_ranking/{digest}")]
    found += [("POST", path, body) for path, body, _ in WRITES]
    found.append(("PUT", "/models/search_ranking/versions/1/stage", CHANGE))
    found.append(("PUT", "/models/search_ranking/versions/3/approval", ANSWER))
    text = json.dumps(found).replace("search_ranking", pipeline)
    return [tuple(each) for each in json.loads(text)]


def _ask_again(pipeline: str) -> None:
    with create_session() as session:
        session.execute(delete(DagRun).where(DagRun.dag_id == f"{pipeline}.approval"))
    ask(pipeline)


def _answered_and_recorded(seeded: Seeded, header: dict[str, str]) -> list[Any]:
    """Return the answer to a repeated approval after the DAG has recorded it, by whom Airflow's own record says."""
    path = f"/models/{TEAM_MODEL}/versions/3/approval"
    _ask_again(TEAM_MODEL)
    seeded.client.put(f"/api/v1{path}", json=ANSWER, headers=header)
    person = asked(TEAM_MODEL).hitl_detail.responded_by_user
    answer_request(Ledger(), request(TEAM_MODEL), "approved", by=person["name"], words="approved")
    answer = seeded.client.put(f"/api/v1{path}", json=ANSWER, headers=header)
    return ["PUT", f"{path}?again", answer.status_code, str(answer.json().get("code", "")), [answer.json().get("answered_by")]]


def _tokens() -> dict[str, str]:
    with create_app(enable_plugins=False).app_context():
        manager: Any = get_auth_manager()
        security = manager.security_manager
        security.sync_roles()
        security.bulk_sync_roles([{"role": "flight_team", "perms": TEAM}])
        users = {
            name: security.add_user(name, name, name, f"{name}@example.com", security.find_role(role), password=name)
            for name, role in ROLES.items()
        }
        tokens = {name: manager.generate_jwt(user) for name, user in users.items()}
        head, _, signature = tokens["viewer"].rpartition(".")
        return {
            **tokens,
            "expired": manager.generate_jwt(users["admin"], expiration_time_in_seconds=-3600),
            "forged": f"{tokens['admin'].rpartition('.')[0]}.{signature}",
            "unsigned": f"{head}.",
        }


if __name__ == "__main__":
    sys.exit(main())
