"""Unpacks the state of an installation of an earlier version, as `record_state.py` recorded it."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import shutil
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from tests.compatibility.record_state import CODE_VERSION, FERNET_KEY, HOME, ROOT
from training.runtime.provenance import CHECKOUT

STATE: Final = Path(__file__).with_name("state")
DATABASES: Final = {"ledger": "nightshift.db", "airflow": "airflow/airflow.db", "mlflow": "mlflow/mlflow.db"}


@contextmanager
def earlier_state() -> Iterator[Path]:
    """Unpack the recorded installation; yield its NIGHTSHIFT_HOME, which is removed afterwards.

    The place is the one of the recording, because fingerprints and evaluations cover URIs. So one test at a time has it, on the whole
    machine.
    """
    with ROOT.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            shutil.rmtree(ROOT, ignore_errors=True)
            _unpack()
            yield HOME
        finally:
            shutil.rmtree(ROOT, ignore_errors=True)


def earlier_environment(*, code_version: str | None) -> dict[str, str]:
    """Return the variables of a process that works on the recorded installation with this checkout.

    Args:
        code_version: pins the code version of all stages; None: the files of the checkout name it.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("NIGHTSHIFT_", "AIRFLOW_", "MLFLOW_")) and not name.endswith("_URI")
    }
    return {
        **kept,
        "NIGHTSHIFT_HOME": str(HOME),
        "NIGHTSHIFT_PIPELINES": str(HOME / "dags" / "pipelines"),
        "NIGHTSHIFT_EXPECTATIONS": str(HOME / "expectations"),
        "ORDERS_URI": (ROOT / "orders").as_uri(),
        "PYTHONPATH": os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "plugins")]),
        **({} if code_version is None else {"NIGHTSHIFT_CODE_VERSION": code_version}),
    }


def pinned_environment() -> dict[str, str]:
    """Return the variables of a process with the code version of the recording."""
    return earlier_environment(code_version=CODE_VERSION)


def _unpack() -> None:
    ROOT.mkdir(mode=0o700)
    with tarfile.open(STATE / "files.tar.xz") as archive:
        archive.extractall(ROOT, filter="data")
    for name, place in DATABASES.items():
        path = HOME / place
        path.parent.mkdir(exist_ok=True)
        with closing(sqlite3.connect(path)) as database:
            database.executescript(gzip.decompress((STATE / f"{name}.sql.gz").read_bytes()).decode())
    credentials = HOME / "credentials.json"
    credentials.write_text(json.dumps({"fernet_key": FERNET_KEY}), encoding="utf-8")
    credentials.chmod(0o600)
