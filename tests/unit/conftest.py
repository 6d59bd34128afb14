"""Airflow for unit tests: a home and a database of its own, and this checkout's plugins. Set before anything imports it."""

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOME = Path(tempfile.mkdtemp(prefix="nightshift-unit-"))
atexit.register(shutil.rmtree, HOME, ignore_errors=True)

for name in [name for name in os.environ if name.startswith("AIRFLOW_")]:
    del os.environ[name]
os.environ |= {
    "AIRFLOW_HOME": str(HOME),
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
    "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
    "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "ada:viewer",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{HOME / 'airflow.db'}",
    "AIRFLOW__API__BASE_URL": "http://airflow.test:8080",
    "AIRFLOW__API_AUTH__JWT_SECRET": "for-unit-tests-alone-" * 4,
}


@pytest.fixture(scope="session", autouse=True)
def files_parsed_once() -> Iterator[None]:
    """Parse each file of training/ once for all tests: each installation's cache is empty at first, and hundreds of tests have one."""
    from training.code import imports

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(imports, "imports_of", functools.cache(imports.imports_of))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_wait_for_the_disk() -> Iterator[None]:
    """Leave out the wait for the disk: no test takes the machine's power away; tests/unit/training/store/power_loss.py notes each call."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _file: None)
        yield


@pytest.fixture(scope="session")
def airflow_database() -> None:
    """Airflow's tables, made once."""
    from airflow.utils.db import initdb

    initdb()


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The settings of an installation in a folder of its own; return the folder."""
    for name in [name for name in os.environ if name.startswith("NIGHTSHIFT_") or name.endswith("_URI")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NIGHTSHIFT_HOME", str(tmp_path))
    return tmp_path
