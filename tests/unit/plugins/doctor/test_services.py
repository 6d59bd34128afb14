"""What `nightshift doctor` says of MLflow and Airflow, and how the command ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from nightshift.client import client_of
from nightshift.doctor import command as doctor
from nightshift.doctor import services
from nightshift.doctor.findings import Finding, Installation, bad, good
from nightshift.settings import Settings
from tests.commands import command
from tests.unit.plugins.client.conftest import server
from tests.unit.plugins.client.test_client import Server

__all__ = ["server"]
HEALTHY = {"status": "healthy"}


class Airflow:
    """Airflow's answers, which a test changes."""

    def __init__(self, app: FastAPI) -> None:
        self.answers: dict[str, Any] = {
            "/monitor/health": {"metadatabase": HEALTHY, "scheduler": HEALTHY},
            "/plugins": {"plugins": [{"name": "nightshift"}]},
            "/version": {"version": "3.3.2"},
            "/importErrors": {"import_errors": []},
            "/dags": {"dags": [{"dag_id": "rollback"}]},
            "/pools": {"pools": [{"name": "cpu", "slots": 4}, {"name": "train", "slots": 1}]},
        }

        @app.get("/api/v2/{path:path}")
        def answer(path: str) -> Response:
            return JSONResponse(self.answers[f"/{path}"])


@pytest.fixture
def airflow(server: Server) -> Airflow:
    return Airflow(server.mounted)


@pytest.fixture
def place(settings: Settings) -> Installation:
    return Installation(settings=settings)


def wrong(found: Iterator[Finding]) -> list[Finding]:
    return [each for each in found if not each.is_ok]


def test_nothing_is_wrong_with_a_sound_airflow(airflow: Airflow, place: Installation) -> None:
    found = list(services.airflow(place))
    assert wrong(iter(found)) == []
    assert {each.check for each in found} == {"airflow", "clock", "plugin", "dags", "pools"}
    assert any("shows this user 2 pipelines" in each.message for each in found)


@pytest.mark.parametrize(
    ("path", "answer", "words", "hint"),
    [
        ("/monitor/health", {"scheduler": {"status": None}}, "scheduler is not running", "make start"),
        ("/monitor/health", {"triggerer": {"status": "unhealthy"}}, "triggerer is unhealthy", "make start"),
        ("/plugins", {"plugins": []}, "has not loaded the plugin", "plugins folder"),
        ("/version", {"version": "3.1.0"}, "is Airflow 3.1.0", "constraints.txt"),
        (
            "/importErrors",
            {"import_errors": [{"filename": "orders.py", "stack_trace": "Traceback\n  x\nSpecError: no schedule\n"}]},
            "orders.py does not load: SpecError: no schedule",
            "nightshift check",
        ),
        ("/dags", {"dags": []}, "no DAG 'rollback'", "copy dags/rollback.py"),
    ],
)
def test_what_airflow_lacks_is_found_with_its_repair(
    airflow: Airflow, place: Installation, path: str, answer: Any, words: str, hint: str
) -> None:
    airflow.answers[path] = answer
    (found,) = wrong(services.airflow(place))
    assert words in found.message
    assert hint in found.hint


@pytest.mark.parametrize(("room", "is_ok"), [(2, True), (10, True), (11, False), (64, False)])
def test_pools_that_use_less_than_half_of_the_machine_are_found(airflow: Airflow, place: Installation, room: int, is_ok: bool) -> None:
    del airflow
    with client_of(None, place.environ) as client:
        found = services.pools(client, {}, room)
    assert (found.check, found.is_ok, "NIGHTSHIFT_SLOTS" in found.hint) == ("pools", is_ok, not is_ok)


def test_slots_that_a_small_memory_allows_are_enough(airflow: Airflow, place: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    del airflow
    monkeypatch.setattr(services, "num_cores", lambda: 64)
    monkeypatch.setattr(services, "memory_limit_bytes", lambda: 8 * 2**30)
    assert [each.is_ok for each in services.airflow(place) if each.check == "pools"] == [True]


def test_a_clock_that_differs_is_found() -> None:
    found = services.clock_of("https://airflow", httpx.Response(200, headers={"date": "Mon, 02 Feb 2026 03:00:00 GMT"}))
    assert (found.check, found.is_ok, "NTP" in found.hint) == ("clock", False, True)


def test_an_airflow_that_is_not_there_is_a_finding(place: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightshift.client.client.MAX_PAUSE_SECONDS", 0.0)
    environ = {"NIGHTSHIFT_SERVER": "http://127.0.0.1:9", "NIGHTSHIFT_TOKEN": "t"}
    (found,) = doctor.findings_of("airflow", replace(place, environ=environ))
    assert (found.check, "[server.unreachable]" in found.message, bool(found.hint)) == ("airflow", True, True)


@pytest.fixture
def tracking() -> Iterator[Server]:
    with Server() as made:
        yield made


def mlflow_answers(
    tracking: Server, *, health: int = 200, search: int = 200, version: str = "3.17.2", deleted: tuple[str, ...] = ()
) -> list[str | None]:
    accounts: list[str | None] = []

    @tracking.mounted.get("/health")
    def healthy() -> Response:
        return PlainTextResponse("OK", status_code=health)

    @tracking.mounted.get("/version")
    def which() -> Response:
        return PlainTextResponse(version)

    @tracking.mounted.get("/api/2.0/mlflow/experiments/search")
    def experiments(request: Request) -> Response:
        accounts.append(request.headers.get("authorization"))
        assert request.query_params["view_type"] == "DELETED_ONLY"
        found = [{"name": name, "experiment_id": str(number)} for number, name in enumerate(deleted, 7)]
        return JSONResponse({"experiments": found} if found else {}, status_code=search)

    return accounts


def at(tracking: Server, place: Installation, **variables: str) -> Installation:
    return replace(
        place, settings=replace(place.settings, mlflow_uri=tracking.url), environ={"MLFLOW_TRACKING_URI": tracking.url, **variables}
    )


def test_mlflow_is_asked_with_the_account_of_the_environment(tracking: Server, place: Installation) -> None:
    accounts = mlflow_answers(tracking)
    (found,) = services.mlflow(at(tracking, place, MLFLOW_TRACKING_USERNAME="u", MLFLOW_TRACKING_PASSWORD="p"))
    assert found.is_ok
    assert accounts == ["Basic dTpw"]


def test_mlflow_of_a_laptop_is_asked_with_its_own_account(tracking: Server, place: Installation) -> None:
    accounts = mlflow_answers(tracking)
    place.settings.home.mkdir(parents=True, exist_ok=True)
    (place.settings.home / "credentials.json").write_text(json.dumps({"mlflow_password": "p"}))
    list(services.mlflow(replace(at(tracking, place), environ={})))
    assert accounts == ["Basic YWRtaW46cA=="]


@pytest.mark.parametrize(
    ("answers", "words", "hint"),
    [
        ({"health": 404}, "/health answers 404", "MLFLOW_TRACKING_URI"),
        ({"search": 401}, "refuses this user (401)", "MLFLOW_TRACKING_PASSWORD"),
        ({"search": 500}, "answers 500", "log"),
        ({"version": "2.9.0"}, "is MLflow 2.9.0", "constraints.txt"),
    ],
)
def test_what_is_wrong_with_mlflow_is_found(tracking: Server, place: Installation, answers: dict[str, Any], words: str, hint: str) -> None:
    mlflow_answers(tracking, **answers)
    (found,) = services.mlflow(at(tracking, place))
    assert (found.is_ok, words in found.message, hint in found.hint) == (False, True, True)


def test_a_pipeline_whose_experiment_was_deleted_is_named_with_the_command_that_restores_it(tracking: Server, place: Installation) -> None:
    mlflow_answers(tracking, deleted=("of a person", "flight_delay"))
    _, found = services.mlflow(at(tracking, place))
    assert (found.is_ok, found.message) == (False, "the experiment flight_delay was deleted: trainings are not tracked")
    assert found.hint == "mlflow experiments restore --experiment-id 8"


def test_an_mlflow_that_is_not_there_is_a_finding(place: Installation) -> None:
    (found,) = services.mlflow(replace(place, settings=replace(place.settings, mlflow_uri="http://127.0.0.1:9")))
    assert (found.is_ok, "does not answer" in found.message) == (False, True)


@pytest.mark.usefixtures("installation")
def test_command_fails_for_one_finding_and_looks_at_the_rest_after_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(_place: Installation) -> Iterator[Finding]:
        yield good("first", "fine")
        raise ZeroDivisionError

    monkeypatch.setattr(doctor, "CHECKS", {"first": breaks, "second": lambda _place: iter([bad("second", "full\x1b[2J", hint="empty it")])})
    assert command("doctor")([]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "ok     first      fine",
        "WRONG  first      ZeroDivisionError: ",
        "                  -> this is unexpected: report it",
        "WRONG  second     full\\u001b[2J",
        "                  -> empty it",
    ]
    assert command("doctor")(["second", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == [{"check": "second", "is_ok": False, "message": "full\x1b[2J", "hint": "empty it"}]
    monkeypatch.setattr(doctor, "CHECKS", {"first": lambda _place: iter([good("first", "fine")])})
    assert command("doctor")([]) == 0
    with pytest.raises(SystemExit, match="2"):
        command("doctor")(["third"])
