"""`nightshift register` against a server."""

from __future__ import annotations

import json

import pytest

from tests.commands import command
from tests.unit.plugins.client.test_client import Server

main = command("register")
ARTIFACT = "${SHOP_URI}/models/17.ubj"


@pytest.mark.usefixtures("server")
def test_the_command_starts_the_run_that_judges_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--version", "17", "--metric", "ndcg@10=0.41", "--metric", "a=b=2", "--transforms", "s3://models/17/transforms.json"]
    words = ["search_ranking", ARTIFACT, "--format", "xgboost_json", *options, "--trained-until", "2026-01-20", "--key", "once"]
    assert main(words) == 0
    started = capsys.readouterr().out.splitlines()[-1]
    assert main([*words, "--json"]) == 0
    run = json.loads(capsys.readouterr().out)
    assert started == f"{run['id']}  queued"
    assert run["parameters"]["registration"] == {
        "artifact_uri": ARTIFACT,
        "format": "xgboost_json",
        "transforms_uri": "s3://models/17/transforms.json",
        "version": "17",
        "metrics": {"ndcg@10": 0.41, "a=b": 2.0},
        "trained_until": "2026-01-20",
    }


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["model.ubj"], "[uri.forbidden] 'model.ubj' is not a place that a YAML may name ("),
        (["s3://models/model.pkl"], "[artifact.pickle]"),
        ([ARTIFACT, "--metric", "auc"], "[command.metric]"),
        ([ARTIFACT, "--metric", "auc=nan"], "[command.metric]"),
    ],
)
def test_what_is_wrong_is_said_with_its_code_and_starts_nothing(
    server: Server, options: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["search_ranking", *options, "--format", "xgboost_json"]) == 64
    assert error in capsys.readouterr().err
