"""Each role of Airflow's FAB auth manager, which a cluster has, on each route: nothing is open, nothing too narrow.

A process has one auth manager, and that of the other tests is another: this one needs a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.unit.plugins.api.test_rest_access import READS, WRITES

ROOT = Path(__file__).resolve().parents[5]
MANAGER = "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager"
OWN, OTHERS = "flight_delay", "search_ranking"
WITHOUT_TOKEN = {"anonymous", "expired", "forged", "unsigned"}
LISTS = {"/pipelines", "/failed-helpers", "/runs", "/models", "/datasets"}
DONE = {200, 202, 409}
"""409: the user before has done it."""


@dataclass(frozen=True)
class Answer:
    user: str
    pipeline: str
    method: str
    path: str
    status: int
    code: str
    items: frozenset[str]

    @property
    def is_of_a_record(self) -> bool:
        return self.path not in LISTS | {"/openapi.json"}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[Answer]:
    home = tmp_path_factory.mktemp("fab")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "NIGHTSHIFT_"))}
    environment = {
        **inherited,
        "AIRFLOW_HOME": str(home / "airflow"),
        "AIRFLOW__CORE__AUTH_MANAGER": MANAGER,
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
        "NIGHTSHIFT_HOME": str(home),
        "NIGHTSHIFT_API_RATE": "0",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'plugins'}",
    }
    command = [sys.executable, "-m", "tests.unit.plugins.api.fab_answers"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return [Answer(*each[:6], frozenset(map(str, each[6]))) for each in json.loads(done.stdout.splitlines()[-1])]


def wrong(answers: list[Answer], users: set[str], statuses: set[int]) -> list[Answer]:
    found = [each for each in answers if each.user in users]
    assert {each.user for each in found} == users
    return [each for each in found if each.status not in statuses]


def test_each_user_has_an_answer_of_each_route(answers: list[Answer]) -> None:
    users = {each.user for each in answers}
    assert users == {"viewer", "user", "op", "admin", "team", "guest", "cookie", *WITHOUT_TOKEN}
    # And the report, the stage of a version, its approval.
    assert len(answers) == len(users) * 2 * (len(READS) + len(WRITES) + 3) + 1


def test_nothing_is_open_to_who_has_no_valid_token(answers: list[Answer]) -> None:
    assert wrong(answers, WITHOUT_TOKEN, {401}) == []


def test_cookie_of_an_administrator_reads_and_writes_nothing_from_a_page_of_another_server(answers: list[Answer]) -> None:
    assert wrong([each for each in answers if each.method == "GET"], {"cookie"}, {200}) == []
    writes = [each for each in answers if each.method != "GET"]
    assert wrong(writes, {"cookie"}, {403}) == []
    assert {each.code for each in writes if each.user == "cookie"} == {"request.origin"}


def test_viewer_reads_all_and_writes_nothing(answers: list[Answer]) -> None:
    reads = [each for each in answers if each.method == "GET"]
    assert wrong(reads, {"viewer"}, {200}) == []
    writes = [each for each in answers if each.method != "GET"]
    assert wrong(writes, {"viewer"}, {403}) == []


def test_user_op_and_admin_read_and_write_all(answers: list[Answer]) -> None:
    assert wrong(answers, {"user", "op", "admin"}, DONE) == []


def test_team_with_rights_of_one_pipeline_has_all_of_it_and_nothing_of_others(answers: list[Answer]) -> None:
    records = [each for each in answers if each.is_of_a_record]
    assert wrong([each for each in records if each.pipeline == OWN], {"team"}, DONE) == []
    assert wrong([each for each in records if each.pipeline == OTHERS], {"team"}, {404}) == []
    # No helper DAG has failed.
    lists = [each for each in answers if each.user == "team" and each.path in LISTS - {"/failed-helpers"}]
    assert {each.items for each in lists} == {frozenset({OWN})}


def test_token_without_rights_sees_nothing(answers: list[Answer]) -> None:
    assert wrong([each for each in answers if each.is_of_a_record], {"guest"}, {404}) == []
    lists = [each for each in answers if each.user == "guest" and each.path in LISTS]
    assert {(each.status, each.items) for each in lists} == {(200, frozenset())}


def test_an_approval_that_is_repeated_after_the_dag_recorded_it_is_the_same_answer(answers: list[Answer]) -> None:
    (again,) = (each for each in answers if each.path.endswith("/approval?again"))
    assert (again.status, again.code, again.items) == (202, "", frozenset({"team"}))
