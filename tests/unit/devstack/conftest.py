"""An installation with ports of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from nightshift.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    variables = {"NIGHTSHIFT_HOME": str(tmp_path / "home"), "NIGHTSHIFT_AIRFLOW_PORT": "28080", "NIGHTSHIFT_MLFLOW_PORT": "28050"}
    return Settings.from_environment(variables)
