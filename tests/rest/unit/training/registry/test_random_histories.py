"""Whatever is done to MLflow, the weights behind `champion` and `canary` are the ledger's after the next housekeeping.

Of 200 histories, `make test-rest` plays the first ten and `make chaos` the others, the last ten against a served MLflow.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import pytest

from tests.unit.training.evaluation.model_files import model_folder
from tests.unit.training.registry.histories import History, played
from tests.unit.training.registry.tracking_databases import ServedTracking, Tracking
from training.errors import DataError, StoreError
from training.registry.mlflow import restoring
from training.registry.mlflow.saved_model import save_model
from training.store import Store

pytestmark = pytest.mark.slow

SEED = 20261126
NUM_STEPS = 12
NUM_HISTORIES, NUM_QUICK, NUM_IN_PROCESS = 200, 10, 190
"""The last ten are played against a server."""


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database of MLflow's: its tables take seconds to make."""
    path = tmp_path_factory.mktemp("template") / "mlflow.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path.parent)
        for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
            patch.setenv(name, f"sqlite:///{path}")
        mlflow.MlflowClient().search_registered_models()
        mlflow.MlflowClient().search_experiments()
    return path


def rebuilt_here(store: Store, model_uri: str, folder: Path, *, inputs: Any) -> str:
    """As in the child process, which costs three seconds a time and has tests of its own (test_restoring)."""
    try:
        return save_model(store, store.manifests.get(model_uri, kind="model"), folder, inputs=inputs)
    except StoreError as err:
        raise DataError("registry.rebuild", str(err)) from err


@pytest.fixture
def history(request: pytest.FixtureRequest, tmp_path: Path, template: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[History]:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(restoring, "rebuilt", rebuilt_here)
    files = {path.name: path.read_bytes() for path in model_folder(tmp_path / "model").iterdir()}
    is_served = request.param >= NUM_IN_PROCESS
    if is_served:
        # No wait for jobs, which an installation does not run either; and no patience for a server that the history has replaced.
        monkeypatch.setenv("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")
    tracking = (ServedTracking if is_served else Tracking)(tmp_path, template, monkeypatch)
    yield History(f"{SEED} {request.param}", tmp_path, files, tracking)
    if isinstance(tracking, ServedTracking):
        tracking.end()


@pytest.mark.parametrize("history", range(NUM_QUICK), indirect=True)
def test_the_weights_behind_the_aliases_are_the_ledgers_after_each_step(history: History) -> None:
    _play(history)


@pytest.mark.long
@pytest.mark.parametrize("history", range(NUM_QUICK, NUM_HISTORIES), indirect=True)
def test_the_weights_behind_the_aliases_are_the_ledgers_in_many_histories(history: History) -> None:
    _play(history)


def _play(history: History) -> None:
    try:
        played(history, NUM_STEPS)
    except Exception as err:
        err.add_note(f"steps: {', '.join(history.log)}")
        raise
