"""Models from outside through the REST API."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from nightshift.api.problems import MAX_ERRORS
from tests.unit.plugins.seeded_installation import NEW, Seeded

PATH = "/models/register"
BODY = {"pipeline": "search_ranking", "artifact_uri": "${SHOP_URI}/models/17.ubj", "format": "xgboost_json"}


def test_a_registration_is_a_run_of_the_pipeline_that_judges_it(seeded: Seeded) -> None:
    body = {**BODY, "stage": "staging", "snapshot": NEW, "version": "17", "metrics": {"ndcg@10": 0.4}, "sha256": "a" * 64}
    answer = seeded.post(PATH, body, headers={"Idempotency-Key": "m1"})
    assert answer.status_code == 202, answer.text
    run = answer.json()
    given = {key: body[key] for key in ("artifact_uri", "format", "version", "metrics", "sha256")}
    assert run["parameters"] == {"snapshot": NEW, "registration": given}
    assert (run["pipeline"], run["state"], run["triggered_by"]) == ("search_ranking", "queued", "bob")
    assert answer.headers["location"] == f"/api/v1/runs/{quote(run['id'], safe='')}"
    assert seeded.post(PATH, body, headers={"Idempotency-Key": "m1"}).json()["id"] == run["id"]
    other = seeded.post(PATH, {**body, "version": "18"}, headers={"Idempotency-Key": "m1"})
    assert (other.status_code, other.json()["code"]) == (422, "idempotency.mismatch")


@pytest.mark.parametrize("stage", ["champion", "production", "canary", "archived", "None"])
def test_a_model_from_outside_gets_no_other_stage_than_candidate(seeded: Seeded, stage: str) -> None:
    answer = seeded.post(PATH, {**BODY, "stage": stage})
    assert (answer.status_code, answer.json()["code"]) == (409, "stage.transition")
    assert "gates" in answer.json()["hint"]


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"artifact_uri": "file:///etc/passwd"}, "uri.forbidden", "body.artifact_uri"),
        ({"artifact_uri": "${SHOP_URI}/../secret.ubj"}, "uri.forbidden", "body.artifact_uri"),
        ({"artifact_uri": "s3://bucket/model.pkl"}, "artifact.pickle", "body.artifact_uri"),
        ({"artifact_uri": "s3://bucket/model%2Epkl"}, "artifact.pickle", "body.artifact_uri"),
        ({"transforms_uri": "http://host/transforms.json"}, "uri.forbidden", "body.transforms_uri"),
        ({"format": "pickle"}, "request.invalid", "body.format"),
        ({"trained_until": "yesterday"}, "request.invalid", "body.trained_until"),
        ({"sha256": "abc"}, "digest.invalid", "body.sha256"),
        ({"metrics": {"auc": "high"}}, "request.invalid", "body.metrics.auc"),
        ({"artefact_uri": "s3://bucket/model.ubj"}, "request.invalid", "body.artefact_uri"),
    ],
)
def test_a_wrong_registration_starts_no_run(seeded: Seeded, change: dict[str, Any], code: str, field: str) -> None:
    before = seeded.get("/runs?pipeline=search_ranking&limit=1").json()["items"]
    answer = seeded.post(PATH, {**BODY, **change})
    assert (answer.status_code, answer.json()["code"]) == (422, code), answer.text
    assert answer.json()["errors"][0]["field"] == field
    assert seeded.get("/runs?pipeline=search_ranking&limit=1").json()["items"] == before


def test_an_unknown_key_names_the_nearest_one(seeded: Seeded) -> None:
    answer = seeded.post(PATH, {**BODY, "artefact_uri": "s3://bucket/model.ubj"})
    assert answer.json()["errors"][0]["hint"] == "did you mean artifact_uri?"


@pytest.mark.parametrize("path", [PATH, "/training-runs"])
def test_an_answer_names_the_first_of_thousands_of_unknown_keys(seeded: Seeded, path: str) -> None:
    odd = {f"key_{number}": 0 for number in range(5000)}
    answer = seeded.post(path, {**(BODY if path == PATH else {"pipeline": "search_ranking"}), **odd})
    assert (answer.status_code, len(answer.json()["errors"])) == (422, MAX_ERRORS)
    assert answer.json()["errors"][0]["field"] == "body.key_0"
