"""docker/compose/mlflow-server.sh: MLflow takes the command line that it makes, in compose and beside a Service of Kubernetes."""

import os
import shlex
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import yaml
from mlflow.cli import server
from mlflow.server.security_utils import is_allowed_host_header, should_block_cors_request

from training.runtime.provenance import CHECKOUT

SCRIPT = CHECKOUT / "docker" / "compose" / "mlflow-server.sh"
ENVIRONMENT = {
    "MLFLOW_DATABASE": "postgresql+psycopg2://mlflow:secret@postgres:5432/mlflow",
    "MLFLOW_AUTH_DATABASE": "postgresql+psycopg2://mlflow:secret@postgres:5432/mlflow_auth",
    "MLFLOW_ADMIN_USERNAME": "admin",
    "MLFLOW_ADMIN_PASSWORD": "secret-of-the-admin",
    "MLFLOW_ARTIFACTS": "s3://mlflow/artifacts",
}
SERVICE_LINKS = {"MLFLOW_PORT": "tcp://10.96.235.0:5000", "MLFLOW_SERVICE_HOST": "10.96.235.0", "MLFLOW_SERVICE_PORT": "5000"}
"""What Kubernetes sets in the pods of a namespace that has a Service named mlflow."""
Options = Callable[..., dict[str, Any]]


@pytest.fixture
def options(tmp_path: Path) -> Options:
    """Return a function that runs the script with a program `mlflow` that prints its arguments, and has MLflow's own parser read them."""
    program = tmp_path / "mlflow"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    program.chmod(0o755)

    def run(**variables: str) -> dict[str, Any]:
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path), **ENVIRONMENT, **variables}
        done = subprocess.run(["/bin/sh", str(SCRIPT)], env=environment, capture_output=True, text=True, check=True)
        command, *arguments = done.stdout.splitlines()
        assert command == "server"
        return dict(server.make_context("server", arguments).params)

    return run


@pytest.mark.parametrize("variables", [{}, SERVICE_LINKS])
def test_the_server_listens_on_its_port_beside_a_service_of_its_name(options: Options, variables: dict[str, str]) -> None:
    found = options(**variables)
    assert (found["port"], found["app_name"]) == (5000, "basic-auth")


def test_the_accounts_are_in_a_file_for_the_user_of_the_server_alone(options: Options, tmp_path: Path) -> None:
    options()
    (path,) = (path for path in tmp_path.iterdir() if path.name != "mlflow")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "admin_password = secret-of-the-admin" in path.read_text(encoding="utf-8")


def documented_hosts() -> list[str]:
    placement = yaml.safe_load((CHECKOUT / "docker" / "kubernetes" / "placement.yaml").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHECKOUT / "docker" / "kubernetes" / "airflow-values.yaml").read_text(encoding="utf-8"))
    compose = yaml.safe_load((CHECKOUT / "docker-compose.yaml").read_text(encoding="utf-8"))
    uris = [
        placement["environment"]["MLFLOW_TRACKING_URI"],
        next(variable["value"] for variable in values["env"] if variable["name"] == "MLFLOW_TRACKING_URI"),
        compose["x-airflow"]["environment"]["MLFLOW_TRACKING_URI"],
    ]
    return [*(uri.removeprefix("http://") for uri in uris), "localhost:5000", "mlflow.airflow.svc.cluster.local:5000"]


def test_the_server_answers_at_every_documented_address_and_at_no_other(options: Options) -> None:
    allowed = options()["allowed_hosts"].split(",")
    assert [host for host in documented_hosts() if not is_allowed_host_header(allowed, host)] == []
    for other in ("mlflow.example.com", "mlflow.example.com:5000", "evil.example.com:5000", "10.0.0.7:5000"):
        assert not is_allowed_host_header(allowed, other)


def test_a_proxy_with_tls_is_allowed_by_its_name_for_requests_and_for_the_page_in_a_browser(options: Options) -> None:
    found = options(MLFLOW_ALLOWED_HOSTS="mlflow.example.com,models.example.com:8443")
    allowed, origins = found["allowed_hosts"].split(","), found["cors_allowed_origins"].split(",")
    for host in ("mlflow.example.com", "models.example.com:8443", *documented_hosts()):
        assert is_allowed_host_header(allowed, host)
    assert not should_block_cors_request("https://mlflow.example.com", "POST", origins)
    assert should_block_cors_request("https://evil.example.com", "POST", origins)


def test_workers_have_three_minutes_for_their_imports(options: Options) -> None:
    given = shlex.split(options()["uvicorn_opts"])
    assert uvicorn.main.make_context("uvicorn", [*given, "mlflow.server:app"]).params["timeout_worker_healthcheck"] == 180
