"""Registers small models in a registry on SQLite, and loads them in a process that knows MLflow and its libraries alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import mlflow
import pytest

from training.contracts import canonical_json, sha256_hex
from training.registry.ledger.version_weights import MLflowRegistration, Noted, note
from training.registry.mlflow.versions import make_version, register_candidate
from training.registry.model.files import CLIENT_FILE
from training.store import Store

SCRIPT = """
import json, sys
import mlflow, pandas
found = []
for path in sys.argv[2:]:
    answer = mlflow.pyfunc.load_model(path).predict(pandas.DataFrame(json.loads(sys.argv[1])))
    found.append([float(score) for score in answer])
print(json.dumps([found, sorted(sys.modules)]))
"""


def registered(store: Store, model: str, numbers: Iterable[int]) -> str:
    """Register weights w<number> of each number, as logged models without files; return the model's name."""
    client = mlflow.MlflowClient()
    for number in numbers:
        logged = mlflow.initialize_logged_model(name=model)
        facts = Noted(weights_digest=f"w{number}", artifact_digest=f"{number:064}")
        note(store, logged.model_id, facts)
        make_version(store, client, model, logged.model_id, facts, run=None, tags={})
    return model


class Registry:
    """A registry of the test's own."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        folder.mkdir(parents=True)
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
            patch.setenv(name, f"sqlite:///{folder}/mlflow.db")
        patch.chdir(folder)
        self.store = Store(str(folder / "store"))
        self._folder = folder

    def register(self, files: Mapping[str, bytes], name: str = "orders") -> tuple[MLflowRegistration, Path]:
        """Register a model of these files; return its version and its files, downloaded."""
        weights = sha256_hex(canonical_json({file: sha256_hex(data) for file, data in files.items()}))
        _uri, manifest = self.store.manifests.put_files("model", files, {"weights_digest": weights})
        registered = register_candidate(self.store, name, manifest, inputs={"value": "double"}, run=None, tags={})
        target = self._folder / f"fetched-{name}-{registered.number}"
        fetched = Path(mlflow.artifacts.download_artifacts(artifact_uri=f"models:/{name}/{registered.number}", dst_path=str(target)))
        (fetched / CLIENT_FILE).unlink(missing_ok=True)
        return registered, fetched


def scores_elsewhere(rows: Mapping[str, list[Any]], *models: Path) -> tuple[list[list[float]], set[str]]:
    """Return the scores of each model, and the modules of the one process that loaded them all, in order, without the installation."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    command = [sys.executable, "-B", "-c", SCRIPT, json.dumps(rows), *map(str, models)]
    done = subprocess.run(command, cwd="/", env={**kept, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    scores, modules = json.loads(done.stdout.splitlines()[-1])
    return scores, set(modules)
