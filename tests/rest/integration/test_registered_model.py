"""The champion predicts from raw rows, one from outside is judged as any other, and without a login nobody reads or replaces one."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pyarrow.parquet as pq
import pytest

from devstack.environment import mlflow_account
from tests.integration.given_weights import check_given_weights_are_judged_as_trained_ones
from tests.integration.installation import ROOT, Installation
from training.models.predictor import load_predictor

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PIPELINE = "search_ranking"
SCRIPT = """
import json, sys
import mlflow, pandas
model = mlflow.pyfunc.load_model("models:/search_ranking@champion")
print(json.dumps([float(score) for score in model.predict(pandas.read_parquet(sys.argv[1]))]))
"""
VERIFIED = SCRIPT.replace("import mlflow, pandas", "import pandas; from training.registry.serving import load_verified").replace(
    'mlflow.pyfunc.load_model("models:/search_ranking@champion")', 'load_verified("models:/search_ranking@champion", digest=sys.argv[2])'
)
ANONYMOUS = ("/api/2.0/mlflow/registered-models/search", "/api/2.0/mlflow-artifacts/artifacts?path=.", "/version", "/graphql", "/")


def test_champion_loads_by_its_alias_and_scores_raw_rows_as_the_evaluation_did(installation: Installation, tmp_path: Path) -> None:
    run_id = installation.trigger(PIPELINE, {"as_of": "2026-02-01T02:00:00+00:00"})
    assert installation.wait(PIPELINE, run_id) == "success", installation.why(PIPELINE, run_id)
    champion = installation.ledger.standing(PIPELINE).champion
    assert champion is not None
    store = installation.store
    dataset = store.manifests.get(installation.result(PIPELINE, run_id, "prepare").artifact_uri)
    files = store.manifests.fetch(dataset, tmp_path / "dataset", ["frame/00000.parquet"])
    frame = pq.read_table(files / "frame/00000.parquet").slice(0, 200)
    rows = frame.drop_columns(["label"])
    pq.write_table(rows, tmp_path / "rows.parquet")

    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment = {**kept, "MLFLOW_TRACKING_URI": installation.settings.mlflow_uri, **mlflow_account(installation.settings)}
    scores = []
    # MLflow alone, which knows nothing of this checkout; and what checks every file first, by the ledger's digest.
    for script, path in ((SCRIPT, ""), (VERIFIED, str(ROOT))):
        command = [sys.executable, "-c", script, str(tmp_path / "rows.parquet"), champion.artifact_digest]
        done = subprocess.run(command, cwd=tmp_path, env={**environment, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        scores.append(json.loads(done.stdout.splitlines()[-1]))

    predictor = load_predictor(store.manifests.fetch(store.manifests.get(champion.model_uri), tmp_path / "model"))
    assert scores == [pytest.approx(predictor.predict(rows.to_pandas()))] * 2
    assert np.std(predictor.predict(rows.to_pandas())) > 0


def test_weights_from_outside_are_judged_as_those_of_a_training(installation: Installation) -> None:
    def put(place: str, content: bytes) -> None:
        path = installation.shop / place
        path.parent.mkdir(parents=True)
        path.write_bytes(content)

    check_given_weights_are_judged_as_trained_ones(installation, put)


@pytest.mark.parametrize("path", ANONYMOUS)
def test_mlflow_answers_nothing_without_a_login(installation: Installation, path: str) -> None:
    with httpx.Client(base_url=installation.settings.mlflow_uri, trust_env=False) as anonymous:
        assert anonymous.get(path).status_code == 401
        assert anonymous.get(path, auth=("admin", "guessed")).status_code == 401


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/api/2.0/mlflow-artifacts/artifacts/models/m-1/artifacts/code/training/__init__.py"),
        ("DELETE", "/api/2.0/mlflow-artifacts/artifacts/models/m-1/artifacts/MLmodel"),
        ("POST", "/api/2.0/mlflow/registered-models/alias"),
        ("POST", "/api/2.0/mlflow/users/create"),
    ],
)
def test_artifacts_and_aliases_cannot_be_changed_without_a_login(installation: Installation, method: str, path: str) -> None:
    body = {"name": "search_ranking", "alias": "champion", "version": "1"}
    with httpx.Client(base_url=installation.settings.mlflow_uri, trust_env=False) as anonymous:
        assert anonymous.request(method, path, json=body).status_code == 401


def test_what_an_installation_writes_is_readable_by_its_user_alone(installation: Installation) -> None:
    home = installation.home
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    files = [home / "credentials.json", home / "nightshift.db", home / "airflow" / "airflow.db", *(home / "mlflow").glob("*.db")]
    files += [path for folder in ("store", "logs", "airflow/logs", "mlflow/artifacts") for path in (home / folder).rglob("*")]
    open_to_others = [path for path in files if not path.is_symlink() and stat.S_IMODE(path.stat().st_mode) & 0o077]
    assert files
    assert open_to_others == []
