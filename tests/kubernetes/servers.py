"""The servers that pods need, on an address that pods reach: S3 (moto), PostgreSQL, MLflow. Each ends with the fixture that started it."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx

PASSWORD = "only-for-tests"


def wait_until(look: Callable[[], bool], what: str, *, timeout_seconds: float = 300.0) -> None:
    deadline = time.monotonic() + timeout_seconds
    while not look():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout_seconds:.0f} s")
        time.sleep(0.1)


@contextmanager
def s3_server(host: str, port: int, folder: Path) -> Iterator[str]:
    """Run moto's S3 in a process of its own; yield its URL."""
    log = (folder / "s3.log").open("wb")
    process = subprocess.Popen([str(Path(sys.executable).parent / "moto_server"), "-H", host, "-p", str(port)], stdout=log, stderr=log)
    url = f"http://{host}:{port}"
    try:
        wait_until(lambda: answers(f"{url}/moto-api/"), "S3")
        yield url
    finally:
        process.terminate()
        process.wait(20)
        log.close()


@contextmanager
def mlflow_server(host: str, port: int, folder: Path, account: Mapping[str, str]) -> Iterator[str]:
    """Run MLflow with accounts, as docs/compose.md does; yield its URL.

    Args:
        account: of its only user, by the names of MLflow's own variables.
    """
    log = (folder / "mlflow.log").open("wb")
    config = folder / "mlflow-auth.ini"
    config.write_text(
        "[mlflow]\ndefault_permission = NO_PERMISSIONS\n"
        f"database_uri = sqlite:///{folder / 'mlflow-auth.db'}\n"
        f"admin_username = {account['MLFLOW_TRACKING_USERNAME']}\nadmin_password = {account['MLFLOW_TRACKING_PASSWORD']}\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "mlflow", "server", "--app-name", "basic-auth", "--host", host, "--port", str(port), "--workers", "1"]
    command += ["--allowed-hosts", f"{host}:*,mlflow.airflow.svc:*"]
    command += ["--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}", "--artifacts-destination", (folder / "artifacts").as_uri()]
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    environment |= {"MLFLOW_AUTH_CONFIG_PATH": str(config), "MLFLOW_FLASK_SERVER_SECRET_KEY": secrets.token_hex(32)}
    environment.pop("MLFLOW_TRACKING_URI", None)
    process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    url = f"http://{host}:{port}"
    try:
        wait_until(lambda: answers(f"{url}/health"), "MLflow")
        yield url
    finally:
        os.killpg(process.pid, 15)
        process.wait(20)
        log.close()


@contextmanager
def postgres_server(host: str, port: int, folder: Path) -> Iterator[str]:
    """Run Debian's PostgreSQL, as its own user, with an empty database; yield its SQLAlchemy URL."""
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin"))[-1]
    # A folder of its own: each start of pytest takes the rights of other users away from the folder of all tests.
    own = Path(tempfile.mkdtemp(prefix="nightshift-postgres-"))
    data, password = own / "data", own / "password"
    password.write_text(PASSWORD, encoding="ascii")
    for path in (own, password):
        shutil.chown(path, "postgres", "postgres")
    initdb = [str(binaries / "initdb"), "-D", str(data), "-U", "nightshift", "-A", "scram-sha-256", "--pwfile", str(password)]
    subprocess.run(initdb, user="postgres", group="postgres", cwd="/", check=True, capture_output=True)
    with (data / "pg_hba.conf").open("a", encoding="ascii") as file:
        file.write("host all all 10.244.0.0/16 scram-sha-256\n")
    command = [str(binaries / "postgres"), "-D", str(data), "-h", f"{host},127.0.0.1", "-p", str(port), "-k", str(data)]
    log = (folder / "postgres.log").open("wb")
    process = subprocess.Popen(command, user="postgres", group="postgres", cwd="/", stdout=log, stderr=log)
    try:
        ready = [str(binaries / "pg_isready"), "-q", "-h", host, "-p", str(port)]
        wait_until(lambda: subprocess.run(ready, check=False).returncode == 0, "PostgreSQL")
        yield f"postgresql+psycopg2://nightshift:{PASSWORD}@{host}:{port}/postgres"
    finally:
        # Fast: not until the last client has gone.
        process.send_signal(signal.SIGINT)
        process.wait(30)
        log.close()
        shutil.rmtree(own)


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2.0).status_code < 500
    except httpx.HTTPError:
        return False
