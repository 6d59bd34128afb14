"""The champion in MLflow's registry predicts from raw rows, in a process that knows nothing of this checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.integration.installation import Installation
from training.models.predictor import load_predictor

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PIPELINE = "search_ranking"
SCRIPT = """
import json, sys
import mlflow, pandas
model = mlflow.pyfunc.load_model("models:/search_ranking@champion")
print(json.dumps([float(score) for score in model.predict(pandas.read_parquet(sys.argv[1]))]))
"""


def test_champion_loads_by_its_alias_and_scores_raw_rows_as_the_evaluation_did(installation: Installation, tmp_path: Path) -> None:
    run_id = installation.trigger(PIPELINE, {"as_of": "2026-02-01T02:00:00+00:00"})
    assert installation.wait(PIPELINE, run_id) == "success", installation.why(PIPELINE, run_id)
    champion = installation.ledger.standing(PIPELINE).champion
    assert champion is not None
    store = installation.store
    dataset = store.manifests.get(installation.result(PIPELINE, run_id, "prepare").artifact_uri)
    frame = pq.read_table(store.manifests.fetch(dataset, tmp_path / "dataset", ["frame.parquet"]) / "frame.parquet").slice(0, 200)
    rows = frame.drop_columns(["label"])
    pq.write_table(rows, tmp_path / "rows.parquet")

    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment = {**kept, "MLFLOW_TRACKING_URI": installation.settings.mlflow_uri}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "rows.parquet")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]

    predictor = load_predictor(store.manifests.fetch(store.manifests.get(champion.model_uri), tmp_path / "model"))
    assert json.loads(done.stdout.splitlines()[-1]) == pytest.approx(predictor.predict(rows.to_pandas()))
    assert np.std(predictor.predict(rows.to_pandas())) > 0
