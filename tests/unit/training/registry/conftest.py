"""A real MLflow registry on SQLite, in this process."""

from __future__ import annotations

import uuid
from pathlib import Path

import mlflow
import pytest

from tests.unit.training.registry.registered import registered
from training.store import Store


@pytest.fixture(scope="session")
def registry_uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """URI of a tracking and registry database of the tests' own."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture
def registry(registry_uri: str, monkeypatch: pytest.MonkeyPatch) -> mlflow.MlflowClient:
    """A client of the registry; whatever else asks MLflow in this process asks the same one."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    # By the environment: what is set by a call stands above it, for every test that comes after.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", registry_uri)
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", registry_uri)
    return mlflow.MlflowClient()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store that knows of no model."""
    return Store(str(tmp_path / "store"))


@pytest.fixture
def model(registry: mlflow.MlflowClient, store: Store) -> str:
    """Name of a registered model with versions 1 to 9 of weights w1 to w9, whose tags say that they are candidates."""
    return registered(store, f"m{uuid.uuid4().hex[:8]}", range(1, 10))
