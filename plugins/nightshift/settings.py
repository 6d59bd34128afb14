"""The settings of an installation, from the environment; the table is in docs/architecture.md."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from training.errors import Problem, SpecError, shown
from training.provenance import CHECKOUT
from training.store.objects import as_uri

BACKENDS: Final = ("local",)
DEFAULT_AIRFLOW_PORT: Final = 8080
DEFAULT_MLFLOW_PORT: Final = 5000


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Where an installation keeps its things, and where its stages run."""

    home: Path
    checkout_path: Path
    store_uri: str
    database_url: str
    """SQLAlchemy URL of the ledger and `dataset_version`."""
    pipelines_path: Path
    expectations_path: Path
    backend: str
    airflow_port: int
    mlflow_port: int
    mlflow_uri: str

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Read the settings.

        Raises:
            SpecError: every setting that is wrong: `settings.port`, `settings.backend`, `settings.path`, `store.location`.
        """
        problems: list[Problem] = []
        home = _path(environ, "NIGHTSHIFT_HOME", CHECKOUT / ".local", problems)
        mlflow_port = _port(environ, "NIGHTSHIFT_MLFLOW_PORT", DEFAULT_MLFLOW_PORT, problems)
        backend = environ.get("NIGHTSHIFT_BACKEND") or BACKENDS[0]
        if backend not in BACKENDS:
            hint = f"this version has: {', '.join(BACKENDS)}"
            problems.append(
                Problem(code="settings.backend", field="NIGHTSHIFT_BACKEND", message=f"there is no backend {shown(backend)}", hint=hint)
            )
        store_uri = _store_uri(environ, home, problems)
        settings = cls(
            home=home,
            checkout_path=CHECKOUT,
            store_uri=store_uri,
            database_url=environ.get("NIGHTSHIFT_DATABASE") or f"sqlite:///{home / 'nightshift.db'}",
            pipelines_path=_path(environ, "NIGHTSHIFT_PIPELINES", CHECKOUT / "dags" / "pipelines", problems),
            expectations_path=_path(environ, "NIGHTSHIFT_EXPECTATIONS", CHECKOUT / "expectations", problems),
            backend=backend,
            airflow_port=_port(environ, "NIGHTSHIFT_AIRFLOW_PORT", DEFAULT_AIRFLOW_PORT, problems),
            mlflow_port=mlflow_port,
            mlflow_uri=environ.get("MLFLOW_TRACKING_URI") or f"http://127.0.0.1:{mlflow_port}",
        )
        if problems:
            raise SpecError("environment", problems)
        return settings


def _store_uri(environ: Mapping[str, str], home: Path, problems: list[Problem]) -> str:
    location = environ.get("NIGHTSHIFT_STORE") or str(home / "store")
    try:
        return as_uri(location)
    except SpecError as err:
        problems.extend(err.problems)
        return location


def _path(environ: Mapping[str, str], name: str, default: Path, problems: list[Problem]) -> Path:
    value = environ.get(name)
    if value and not value.startswith("/"):
        message = f"{shown(value)} is not an absolute path"
        problems.append(Problem(code="settings.path", field=name, message=message, hint="start it with /"))
    return Path(value) if value else default


def _port(environ: Mapping[str, str], name: str, default: int, problems: list[Problem]) -> int:
    value = environ.get(name)
    if not value:
        return default
    if not value.isascii() or not value.isdigit() or not 1 <= int(value[:6]) <= 65535:
        problems.append(Problem(code="settings.port", field=name, message=f"{shown(value)} is not a port", hint="1 to 65535"))
        return default
    return int(value)
