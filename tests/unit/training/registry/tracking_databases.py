"""MLflow's database in a test: the one in use, copies of it, and another server."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import time
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.integration.installation import free_ports


class Tracking:
    """MLflow's database: the one in use, and copies of it."""

    def __init__(self, folder: Path, template: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder, self._template, self._patch, self._made = folder, template, patch, 0
        self.backups: list[Path] = []
        self.begin(template)

    def begin(self, source: Path) -> None:
        """Use a copy of a database from now on, as after a restoration. Each has a file of its own: MLflow keeps connections."""
        self._made += 1
        self.path = self._folder / f"mlflow-{self._made}.db"
        shutil.copyfile(source, self.path)
        for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
            self._patch.setenv(name, f"sqlite:///{self.path}")

    def back_up(self) -> None:
        copy = self._folder / f"backup-{len(self.backups)}.db"
        with closing(sqlite3.connect(self.path)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        self.backups.append(copy)

    def replace(self) -> None:
        """Use another server, that knows nothing."""
        self.begin(self._template)

    def execute(self, statement: str, *values: Any) -> None:
        """Change the database behind MLflow's back."""
        with closing(sqlite3.connect(self.path, timeout=30)) as connection, connection:
            connection.execute(statement, values)


class ServedTracking(Tracking):
    """The same behind a server, as installations have it: a restored database is another process."""

    _process: subprocess.Popen[bytes] | None = None

    def begin(self, source: Path) -> None:
        super().begin(source)
        self.end()
        (port,) = free_ports(1)
        command = [sys.executable, "-m", "mlflow", "server", "--host=127.0.0.1", f"--port={port}", "--workers=1"]
        self._process = subprocess.Popen([*command, f"--backend-store-uri=sqlite:///{self.path}"], cwd=self._folder)
        uri = f"http://127.0.0.1:{port}"
        for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
            self._patch.setenv(name, uri)
        while not _answers(uri):
            assert self._process.poll() is None, "MLflow's server ended"
            time.sleep(0.1)

    def end(self) -> None:
        """Stop the server."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)


def _answers(uri: str) -> bool:
    try:
        with urllib.request.urlopen(f"{uri}/health", timeout=1) as answer:  # noqa: S310 - a server of this test
            return bool(answer.status == 200)
    except OSError:
        return False
