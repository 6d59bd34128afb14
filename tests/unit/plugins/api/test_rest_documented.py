"""Every documented answer of every route is reached, and has the form that the description gives it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.models import DagRun  # noqa: TID251 - removed after each test
from airflow.utils.session import create_session
from jsonschema import Draft202012Validator
from sqlalchemy import delete
from sqlalchemy.exc import OperationalError

from nightshift.api import rate_limit
from nightshift.api.application import openapi
from nightshift.api.request_body import MAX_BODY_BYTES
from nightshift.settings import Settings
from tests.unit.plugins.api.test_rest_approvals import ask
from tests.unit.plugins.seeded_installation import DONE, NEW, OLD, STUDY_RUN, Seeded, seed_model
from training.database import connect
from training.database.datasets import deprecate
from training.engine.checkpoint.catalog import named
from training.registry.ledger.ledger import Ledger
from training.registry.ledger.version_weights import MLflowRegistration
from training.store import Store

RUN = quote(f"search_ranking:{DONE}", safe="")
STUDY = quote(f"search_ranking:{STUDY_RUN}", safe="")
BOB, ADA, NOBODY = ("bob", "user"), ("ada", "viewer"), ("eve", None)
LONG = {"train": {"x": "y" * MAX_BODY_BYTES}}
OUTSIDE = {"pipeline": "search_ranking", "artifact_uri": "s3://models/m.ubj", "format": "xgboost_json"}
STAGE = {"stage": "champion", "reason": "complaints"}
ANSWER = {"answer": "approve", "note": "seen with Eve"}
Before = Callable[[], object]
Case = tuple[str, Any, tuple[str, str | None], Before | None]
"""Path, body, user, and what happens before."""


def case(path: str, body: Any = None, user: tuple[str, str | None] = BOB, before: Before | None = None) -> Case:
    return path, body, user, before


def deprecated() -> None:
    deprecate(connect(), "search_ranking", OLD, by="ann", reason="wrong labels")


def damaged_checkpoint() -> None:
    store = Store(Settings.from_environment().store_uri)
    (block,) = store.manifests.get(named(store, "search_ranking", DONE, "3").uri).files.values()
    (Path(store.root_uri.removeprefix("file://")) / store.objects.key(block.digest)).unlink()


def replaced_champion() -> None:
    seed_model("search_ranking", ("4", "accepted"))


def answered() -> None:
    ledger = Ledger()
    (request,) = ledger.open_requests("search_ranking")
    seed_model("search_ranking", ("4", "accepted"))
    assert ledger.ending_of("search_ranking", request.key) is not None


def numbered_again() -> None:
    """MLflow's registered model was deleted, and version 2 registered again as number 1."""
    Ledger().note_registration("search_ranking", "2" * 64, MLflowRegistration(number="1", logged_model="m-2", artifact_digest="f" * 64))


READS: dict[str, dict[str, str]] = {
    "/pipelines": {"200": "/pipelines", "422": "/pipelines?limit=0"},
    "/pipelines/{pipeline}": {"200": "/pipelines/search_ranking", "404": "/pipelines/nothing", "422": "/pipelines/%00"},
    "/failed-helpers": {"200": "/failed-helpers", "422": "/failed-helpers?limit=0"},
    "/runs": {"200": "/runs", "404": "/runs?pipeline=nothing", "422": "/runs?state=done"},
    "/runs/{id}": {"200": f"/runs/{RUN}", "404": "/runs/nothing:r", "422": "/runs/%00:r"},
    "/experiments/{experiment}/runs/{run_id}": {
        "200": f"/experiments/search_ranking/runs/{quote(DONE, safe='')}",
        "404": "/experiments/search_ranking/runs/r9",
        "422": "/experiments/search_ranking/runs/%20",
    },
    "/training-runs/{id}/metrics": {
        "200": f"/training-runs/{RUN}/metrics",
        "404": "/training-runs/search_ranking:r9/metrics",
        "422": f"/training-runs/{RUN}/metrics?after=x",
    },
    "/training-runs/{id}/refit/metrics": {
        "200": f"/training-runs/{RUN}/refit/metrics",
        "404": "/training-runs/search_ranking:r9/refit/metrics",
        "422": f"/training-runs/{RUN}/refit/metrics?after=x",
    },
    "/training-runs/{id}/checkpoints": {
        "200": f"/training-runs/{RUN}/checkpoints",
        "404": "/training-runs/search_ranking:r9/checkpoints",
        "422": f"/training-runs/{RUN}/checkpoints?limit=0",
    },
    "/hpo/studies/{id}": {"200": f"/hpo/studies/{STUDY}", "404": "/hpo/studies/search_ranking:r9", "422": "/hpo/studies/%00:r"},
    "/hpo/studies/{id}/trials/{number}/metrics": {
        "200": f"/hpo/studies/{STUDY}/trials/0/metrics",
        "404": f"/hpo/studies/{STUDY}/trials/3/metrics",
        "422": f"/hpo/studies/{STUDY}/trials/-1/metrics",
    },
    "/models": {"200": "/models", "422": "/models?cursor=%21"},
    "/models/{model}": {"200": "/models/search_ranking", "404": "/models/nothing", "422": "/models/-"},
    "/models/{model}/versions/{version}": {
        "200": "/models/search_ranking/versions/1.1.0",
        "404": "/models/search_ranking/versions/9",
        "409": "/models/search_ranking/versions/1",
        "422": "/models/search_ranking/versions/1_0",
    },
    "/models/{model}/decisions": {
        "200": "/models/search_ranking/decisions",
        "404": "/models/nothing/decisions",
        "422": "/models/search_ranking/decisions?limit=x",
    },
    "/models/{model}/decisions/{key}": {
        "200": "/models/search_ranking/decisions/{key}",
        "404": f"/models/search_ranking/decisions/{'0' * 64}",
        "422": "/models/search_ranking/decisions/1",
    },
    "/compare": {
        "200": f"/compare?a=search_ranking@1.1.0&b={RUN}",
        "404": "/compare?a=search_ranking@1.1.0&b=search_ranking@9",
        "409": "/compare?a=search_ranking@1&b=search_ranking@1.2.0",
        "422": "/compare?a=search_ranking@1",
    },
    "/datasets": {"200": "/datasets", "422": "/datasets?limit=201"},
    "/datasets/{pipeline}/versions": {
        "200": "/datasets/search_ranking/versions",
        "404": "/datasets/nothing/versions",
        "422": "/datasets/search_ranking/versions?limit=0",
    },
    "/datasets/{pipeline}/versions/{version}": {
        "200": f"/datasets/search_ranking/versions/{OLD}",
        "404": f"/datasets/search_ranking/versions/{'e' * 16}",
        "422": "/datasets/search_ranking/versions/zz",
    },
}
START, RESTORE = "/pipelines/search_ranking/runs", f"/training-runs/{RUN}/checkpoints/{{}}/restore"
DEPRECATE = f"/datasets/search_ranking/versions/{NEW}/deprecate"
VERSION = "/models/search_ranking/versions/{}"
WRITES: dict[str, dict[str, Case]] = {
    "POST /pipelines/{pipeline}/runs": {
        "202": case(START, {}),
        "403": case(START, {}, ADA),
        "404": case("/pipelines/nothing/runs", {}),
        "409": case(START, {"snapshot": OLD}, before=deprecated),
        "413": case(START, LONG),
        "422": case(START, {"as_of": "yesterday"}),
    },
    "POST /training-runs": {
        "202": case("/training-runs", {"pipeline": "search_ranking"}),
        "403": case("/training-runs", {"pipeline": "search_ranking"}, ADA),
        "404": case("/training-runs", {"pipeline": "nothing"}),
        "409": case("/training-runs", {"pipeline": "search_ranking", "snapshot": OLD}, before=deprecated),
        "413": case("/training-runs", LONG),
        "422": case("/training-runs", {}),
    },
    "POST /training-runs/{id}/checkpoints/{name}/restore": {
        "202": case(RESTORE.format("epoch_3"), {}),
        "403": case(RESTORE.format("epoch_3"), {}, ADA),
        "404": case(RESTORE.format("epoch_9"), {}),
        "409": case(RESTORE.format("epoch_3"), {}, before=damaged_checkpoint),
        "410": case(RESTORE.format("epoch_1"), {}),
        "413": case(RESTORE.format("epoch_3"), LONG),
        "422": case(RESTORE.format("1_0"), {}),
    },
    "POST /hpo/studies": {
        "202": case("/hpo/studies", {"pipeline": "search_ranking"}),
        "403": case("/hpo/studies", {"pipeline": "search_ranking"}, ADA),
        "404": case("/hpo/studies", {"pipeline": "nothing"}),
        "409": case("/hpo/studies", {"pipeline": "search_ranking", "snapshot": OLD}, before=deprecated),
        "413": case("/hpo/studies", LONG),
        "422": case("/hpo/studies", {"pipeline": "search_ranking", "space": {}}),
    },
    "POST /models/register": {
        "202": case("/models/register", OUTSIDE),
        "403": case("/models/register", OUTSIDE, ADA),
        "404": case("/models/register", {**OUTSIDE, "pipeline": "nothing"}),
        "409": case("/models/register", {**OUTSIDE, "stage": "champion"}),
        "413": case("/models/register", LONG),
        "422": case("/models/register", {**OUTSIDE, "artifact_uri": "/etc/passwd"}),
    },
    "PUT /models/{model}/versions/{version}/stage": {
        "200": case(VERSION.format("1/stage"), STAGE),
        "202": case(VERSION.format("1/stage"), STAGE, before=replaced_champion),
        "403": case(VERSION.format("1/stage"), STAGE, ADA),
        "404": case(VERSION.format("9/stage"), STAGE),
        "409": case(VERSION.format("2/stage"), STAGE),
        "413": case(VERSION.format("1/stage"), LONG),
        "422": case(VERSION.format("1/stage"), {"stage": "retired", "reason": "x"}),
    },
    "PUT /models/{model}/versions/{version}/approval": {
        "202": case(VERSION.format("3/approval"), ANSWER, before=ask),
        "403": case(VERSION.format("3/approval"), ANSWER, ADA),
        "404": case(VERSION.format("9/approval"), ANSWER),
        "409": case(VERSION.format("3/approval"), ANSWER, before=answered),
        "413": case(VERSION.format("3/approval"), LONG),
        "422": case(VERSION.format("3/approval"), {"answer": "perhaps"}),
    },
    "POST /datasets/{pipeline}/versions/{version}/deprecate": {
        "200": case(DEPRECATE, {"reason": "wrong labels"}),
        "403": case(DEPRECATE, {"reason": "wrong labels"}, ADA),
        "404": case(DEPRECATE.replace(NEW, "e" * 16), {"reason": "wrong labels"}),
        "409": case(DEPRECATE.replace(NEW, OLD), {"reason": "other"}, before=deprecated),
        "413": case(DEPRECATE, LONG),
        "422": case(DEPRECATE, {"reason": ""}),
    },
}


def operations() -> Iterator[tuple[str, dict[str, Case]]]:
    """Yield each operation with its cases by status, 401, 415, 429 and 503 too; those that change the installation come last."""
    reads = {
        f"GET {path}": {status: case(found, user=ADA, before=numbered_again if status == "409" else None) for status, found in each.items()}
        for path, each in READS.items()
    }
    for operation, by_status in {**reads, **WRITES}.items():
        path, body, user, _ = by_status["200" if "200" in by_status else "202"]
        found = {**by_status, "401": case(path, body, NOBODY), "429": case(path, body, user), "503": case(path, body, user)}
        if not operation.startswith("GET"):
            found["415"] = case(path, body, user)
        yield operation, dict(sorted(found.items(), key=lambda each: (each[0] == "503", each[1][3] is not None)))


def test_every_documented_answer_has_a_case() -> None:
    documented = {
        (f"{method.upper()} {path.removeprefix('/api/v1')}", status)
        for path, methods in openapi()["paths"].items()
        for method, operation in methods.items()
        for status in operation["responses"]
    }
    assert {(operation, status) for operation, by_status in operations() for status in by_status} == documented


@pytest.fixture
def without_runs_after() -> Iterator[None]:
    yield
    with create_session() as session:
        session.execute(delete(DagRun))


@pytest.mark.usefixtures("without_runs_after")
@pytest.mark.parametrize(("operation", "by_status"), [pytest.param(*each, id=each[0]) for each in operations()])
def test_every_documented_answer_is_reached_and_has_its_form(
    seeded: Seeded, monkeypatch: pytest.MonkeyPatch, operation: str, by_status: dict[str, Case]
) -> None:
    method, path = operation.split()
    document = openapi()
    responses = document["paths"][f"/api/v1{path}"][method.lower()]["responses"]
    key = Ledger().outline("search_ranking")[0].key
    for status, (address, body, (user, role), before) in by_status.items():
        headers = seeded.headers(user, role)
        if before is not None:
            before()
        monkeypatch.setattr(rate_limit.RATES, "take", lambda *_arguments, may_send=status != "429": may_send)
        if status == "503":
            monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", without_database)
            monkeypatch.setattr(SimpleAuthManager, "get_authorized_dag_ids", without_database)
        if status == "415":
            headers["Content-Type"] = "text/plain"
        answer = seeded.client.request(method, f"/api/v1{address.replace('{key}', key)}", json=body, headers=headers)
        assert str(answer.status_code) == status, answer.text
        media_type, content = next(iter(responses[status]["content"].items()))
        assert answer.headers["content-type"] == media_type
        schema = {**content["schema"], "components": document["components"]}
        checker = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
        assert list(checker.iter_errors(answer.json())) == [], status


def without_database(*_arguments: Any, **_options: Any) -> bool:
    raise OperationalError("SELECT 1", {}, Exception("refused"))
