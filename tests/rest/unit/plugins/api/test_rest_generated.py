"""Generated requests, from stated seeds, most of them by users with rights and about what there is: never a 5xx, always as documented.

It starts no process. It is slow by the number of requests, and fewer would leave many parameters untried.
"""

from __future__ import annotations

import logging
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from sqlalchemy import func, select

from nightshift.api.application import openapi
from nightshift.queries.studies import tune_dag_id
from tests.unit.plugins.seeded_installation import DONE, NEW, OLD, STUDY_RUN, Seeded
from training.registry.ledger.ledger import Ledger

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed: make install of the development requirements")

from airflow.models import DagRun  # noqa: E402, TID251 - what a refused request must not make
from airflow.utils.session import create_session  # noqa: E402
from schemathesis import GenerationMode  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

SEEDS = {GenerationMode.POSITIVE: 20261124, GenerationMode.NEGATIVE: 20261125}
CASES = 400
LONG_CASES = 10_000
KNOWN_SHARE = 0.8
MIN_SHARE = 0.6
"""Of the requests: with a valid token, and about ids that exist."""
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
USERS = [("bob", "user")] * 10 + [("root", "admin")] * 4 + [("ada", "viewer")] * 4 + [("eve", None), ("eve", "forged")]
PIPELINES = ["search_ranking", "flight_delay"]
BODIES: dict[str, list[dict[str, Any]]] = {
    "POST /api/v1/pipelines/{pipeline}/runs": [{}, {"as_of": "2026-02-01", "train": {"learning_rate": 0.01}}, {"snapshot": OLD}],
    "POST /api/v1/training-runs": [{"pipeline": name, "force": True} for name in PIPELINES],
    "POST /api/v1/hpo/studies": [{"pipeline": name, "trials": 2} for name in PIPELINES],
    "POST /api/v1/models/register": [{"pipeline": name, "artifact_uri": "s3://models/m.onnx", "format": "onnx"} for name in PIPELINES],
    "POST /api/v1/training-runs/{id}/checkpoints/{name}/restore": [{}, {"train": {"learning_rate": 0.5}}],
}


COMPARED = [f"search_ranking:{DONE}", "search_ranking@1", "search_ranking@1.2.0", "flight_delay@3"]
"""Values of the query of /compare that exist."""


def known_ids(label: str) -> dict[str, list[str]]:
    """Return the values of an operation's path that exist in the seeded installation."""
    names = {
        "pipeline": PIPELINES,
        "experiment": PIPELINES,
        "model": PIPELINES,
        "id": [f"{name}:{STUDY_RUN if '/studies/' in label else DONE}" for name in PIPELINES],
        "run_id": [DONE],
        "number": ["0", "1", "2"],
        "key": [entry.key for entry in Ledger().outline("search_ranking")],
        "name": ["3", "epoch_3", "step_500", "newest", "1"],
        "version": [OLD, NEW] if "/datasets/" in label else ["1", "2", "3", "1.1.0"],
    }
    return {name: values for name, values in names.items() if f"{{{name}}}" in label}


class Generated:
    """Sends generated requests and counts what they were."""

    def __init__(self, seeded: Seeded) -> None:
        self._seeded = seeded
        self._headers = {user: self._header(*user) for user in set(USERS)}
        self.counts: Counter[str] = Counter()
        self.statuses: Counter[int] = Counter()
        self.started: set[tuple[bool, str]] = set()

    def _header(self, user: str, role: str | None) -> dict[str, str]:
        return {"Authorization": "Bearer forged"} if role == "forged" else self._seeded.headers(user, role)

    def run(self, operation: Any, mode: GenerationMode, cases: int) -> None:
        """Send so many requests of one operation."""
        known, bodies = known_ids(operation.label), BODIES.get(operation.label)

        @seed(SEEDS[mode])
        @settings(max_examples=cases, deadline=None, database=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
        @given(case=operation.as_strategy(generation_mode=mode))
        def one(case: Any) -> None:
            # By the case's own digest: what hypothesis draws is far from uniform.
            chance = Random(repr((case.path_parameters, case.query, case.headers, case.body)))  # noqa: S311 - nothing secret
            is_known = chance.random() < KNOWN_SHARE
            if is_known:
                case.path_parameters = {name: chance.choice(values) for name, values in known.items()}
                if operation.label.endswith("/compare"):
                    case.query = {name: chance.choice(COMPARED) for name in ("a", "b")}
            if bodies is not None and mode is GenerationMode.POSITIVE and chance.random() < 0.5:
                case.body = chance.choice(bodies)
            self._send(case, chance.choice(USERS), is_known=is_known)

        one()

    def _send(self, case: Any, user: tuple[str, str | None], *, is_known: bool) -> None:
        request = case.as_transport_kwargs(base_url="http://testserver", headers=self._headers[user])
        content = {"json": request["json"]} if "json" in request else {"content": request["data"]} if request.get("data") else {}
        # A case may have a header of its own for the token: the user's is the only one.
        headers = {name: value for name, value in request["headers"].items() if name.lower() != "authorization"} | self._headers[user]
        answer = self._seeded.client.request(request["method"], request["url"], headers=headers, params=request.get("params"), **content)
        self.counts["all"] += 1
        self.counts["authenticated and known"] += is_known and answer.status_code != 401
        self.statuses[answer.status_code] += 1
        if answer.status_code == 202 and "run_id" in answer.json():
            # A run of the pipeline and a study may have one id.
            self.started.add(("space" in answer.json(), answer.json()["id"]))
        # The one 503 of an installation whose parts all answer: the request may be repeated until the question is asked.
        assert answer.status_code < 500 or answer.json()["code"] == "approval.not_asked", answer.text
        case.validate_response(answer, checks=CHECKS)


def number_of_runs() -> int:
    dags = [*PIPELINES, *map(tune_dag_id, PIPELINES)]
    with create_session() as session:
        return session.scalar(select(func.count()).select_from(DagRun).where(DagRun.dag_id.in_(dags))) or 0


def send(seeded: Seeded, cases: int) -> None:
    document = openapi()
    # The application alone is at the root of its server.
    document.pop("servers")
    operations = [result.ok() for result in schemathesis.openapi.from_dict(document).get_all_operations()]
    labels = {f"{method.upper()} {path}" for path, methods in openapi()["paths"].items() for method in methods}
    assert {operation.label for operation in operations} == labels
    generated, before = Generated(seeded), number_of_runs()
    for mode in SEEDS:
        for operation in operations:
            generated.run(operation, mode, -(-cases // (len(SEEDS) * len(operations))))
    # An operation without parameters and body has nothing to get wrong: hypothesis ends such a one early.
    logging.getLogger(__name__).info("%s, by status %s", dict(generated.counts), sorted(generated.statuses.items()))
    assert generated.counts["all"] >= 0.9 * cases
    assert generated.counts["authenticated and known"] >= MIN_SHARE * generated.counts["all"]
    assert {200, 202, 401, 403, 404, 409, 422} <= set(generated.statuses)
    assert number_of_runs() == before + len(generated.started)


@pytest.mark.slow
def test_generated_requests_are_answered_as_documented(seeded: Seeded) -> None:
    send(seeded, CASES)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_ten_thousand_generated_requests_are_answered_as_documented(seeded: Seeded) -> None:
    send(seeded, LONG_CASES)
