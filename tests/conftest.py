"""One real installation for all integration tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.integration.installation import Installation


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """A running installation with the small shop; what it started is gone afterwards, and must be."""
    made = Installation.start(tmp_path_factory.mktemp("installation"))
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(autouse=True)
def _no_experiment_of_another_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow notes the experiment that was set last for the whole process; in the next test's database it does not exist."""
    monkeypatch.delenv("MLFLOW_EXPERIMENT_ID", raising=False)
    fluent = sys.modules.get("mlflow.tracking.fluent")
    if fluent is not None:
        monkeypatch.setattr(fluent, "_active_experiment_id", None, raising=False)
