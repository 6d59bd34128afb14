"""The components of a laptop installation, as commands for the supervisor."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Final

from devstack.environment import (
    HOST,
    MLFLOW_ACCOUNTS_DATABASE,
    MLFLOW_ACCOUNTS_FILE,
    MLFLOW_DATABASE,
    airflow_home,
    credentials,
    mlflow_home,
    owns_mlflow,
)
from devstack.ports import Port
from devstack.service_environment import airflow_environment, mlflow_environment
from devstack.supervisor import Component
from nightshift.settings import Settings

MAKE_MLFLOW_DATABASES: Final = """
import sys
from mlflow.server.auth.sqlalchemy_store import SqlAlchemyStore as Accounts
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore as Runs
Runs(sys.argv[1], "mlflow-artifacts:/")
Accounts().init_db(sys.argv[2])
"""
"""What MLflow's server does at its first start, without the accounts."""


def components(settings: Settings) -> list[Component]:
    """Return MLflow's server (unless the tracking URI is another's) and Airflow's four, which wait for their database's migration."""
    shared = airflow_environment(settings)
    airflow = (sys.executable, "-m", "airflow")
    migrate = _in_drafts([airflow_home(settings) / "airflow.db"], (*airflow, "db", "migrate"))
    migration = Component(name="airflow-database", command=migrate, environment=shared, once=True)
    first = [] if database_is_current(settings) else [migration]
    # Tasks run on this machine, so the API reads their logs from disk: no log servers, which would listen on every interface.
    arguments = {
        "scheduler": ("scheduler", "--skip-serve-logs"),
        "dag-processor": ("dag-processor",),
        "api-server": ("api-server",),
        "triggerer": ("triggerer", "--skip-serve-logs"),
    }
    return [
        *(_mlflow(settings) if owns_mlflow(settings) else []),
        *first,
        *(
            Component(name=name, command=(*airflow, *rest), environment=shared, needs=migration.name if first else "")
            for name, rest in arguments.items()
        ),
    ]


def database_is_current(settings: Settings) -> bool:
    """Return whether this Airflow has been at work on its database before: then it needs no migration, which takes seconds to find out."""
    home = airflow_home(settings)
    return (home / "airflow.db").exists() and (home / f"migrated-{version('apache-airflow')}").exists()


def note_database_is_current(settings: Settings) -> None:
    """Record that Airflow started with its present database."""
    (airflow_home(settings) / f"migrated-{version('apache-airflow')}").touch()


def _in_drafts(databases: list[Path], command: tuple[str, ...]) -> tuple[str, ...]:
    return (sys.executable, "-m", "devstack.sqlite_migration", *map(str, databases), "--", *command)


def _mlflow(settings: Settings) -> list[Component]:
    """Return MLflow's server, after a step that makes the databases that are missing."""
    folder = mlflow_home(settings)
    databases = [folder / MLFLOW_DATABASE, folder / MLFLOW_ACCOUNTS_DATABASE]
    server = _mlflow_server(settings)
    missing = [path for path in databases if not path.exists()]
    if not missing:
        return [server]
    make = (sys.executable, "-c", MAKE_MLFLOW_DATABASES, *(f"sqlite:///{path}" for path in databases))
    first = Component(name="mlflow-databases", command=_in_drafts(missing, make), environment=server.environment, once=True)
    return [first, replace(server, needs=first.name)]


def _mlflow_server(settings: Settings) -> Component:
    folder = mlflow_home(settings)
    command = (
        *(sys.executable, "-m", "mlflow", "server", "--app-name", "basic-auth"),
        *("--host", HOST, "--port", str(settings.mlflow_port), "--workers", "1"),
        *("--backend-store-uri", f"sqlite:///{folder / MLFLOW_DATABASE}"),
        *("--artifacts-destination", (folder / "artifacts").as_uri()),
    )
    # Its job runner is eight processes for features that nothing here uses.
    own = {
        **mlflow_environment(settings),
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_AUTH_CONFIG_PATH": str(folder / MLFLOW_ACCOUNTS_FILE),
        "MLFLOW_FLASK_SERVER_SECRET_KEY": credentials(settings)["mlflow_secret_key"],
    }
    return Component(name="mlflow", command=command, environment=own)


def ports(settings: Settings) -> list[Port]:
    """Return what the components listen on; MLflow's only where it is this installation's own."""
    wanted = [Port(settings.airflow_port, "Airflow", "NIGHTSHIFT_AIRFLOW_PORT")]
    if owns_mlflow(settings):
        wanted.append(Port(settings.mlflow_port, "MLflow", "NIGHTSHIFT_MLFLOW_PORT"))
    return wanted
