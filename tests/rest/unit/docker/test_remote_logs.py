"""Logs of tasks in S3, by Airflow's Amazon provider: with the environment that docker-compose.yaml and airflow-values.yaml give.

A server (moto) and processes: what counts is what Airflow makes of its whole environment, once per process.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import boto3
import pytest
import yaml
from moto.server import ThreadedMotoServer

from training.runtime.provenance import CHECKOUT

CREDENTIALS = {"aws_access_key_id": "key-of-the-test", "aws_secret_access_key": "secret-of-the-test"}
SCRIPT = """
import sys
from pathlib import Path
from airflow.sdk.log import load_remote_conn_id, load_remote_log_handler
from airflow.logging_config import get_remote_task_log

folder, path = Path(sys.argv[1]), sys.argv[2]
(folder / path).parent.mkdir(parents=True)
(folder / path).write_text("the words of a task")
# As the worker does after a try, and the api-server for a page.
load_remote_log_handler().upload(path, None)
print("connection", load_remote_conn_id())
print("read", get_remote_task_log().read(path, None))
"""


def of_compose() -> dict[str, str]:
    """Return the environment of the scheduler of compose, with `.env` as it is in the example, and words for secrets."""
    compose = yaml.safe_load((CHECKOUT / "docker-compose.yaml").read_text(encoding="utf-8"))
    given = {name: str(value) for name, value in compose["services"]["scheduler"]["environment"].items()}
    return {name: re.sub(r"\$\{\w+:([-?])([^}]*)\}", lambda found: found[2] or "a-secret", value) for name, value in given.items()}


def of_the_chart() -> dict[str, str]:
    """Return the environment and the configuration of the values; AWS_ENDPOINT_URL is in the Secret nightshift-store."""
    values = yaml.safe_load((CHECKOUT / "docker" / "kubernetes" / "airflow-values.yaml").read_text(encoding="utf-8"))
    config = {f"AIRFLOW__LOGGING__{name.upper()}": value for name, value in values["config"]["logging"].items()}
    return {**{variable["name"]: variable["value"] for variable in values["env"]}, **config}


@pytest.fixture(scope="module")
def s3_url() -> Iterator[str]:
    """Run S3 with the bucket `nightshift`; yield its URL."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    bucket = boto3.resource("s3", endpoint_url=url, region_name="us-east-1", **CREDENTIALS).create_bucket(Bucket="nightshift")
    yield url
    # What moto has is this process's, not the server's.
    bucket.objects.delete()
    bucket.delete()
    server.stop()


@pytest.mark.parametrize("environment_of", [of_compose, of_the_chart])
def test_a_log_is_written_to_s3_and_read_back_with_a_connection_that_is_there(
    environment_of: Callable[[], dict[str, str]], s3_url: str, tmp_path: Path
) -> None:
    own = {"AWS_ENDPOINT_URL": s3_url, "AIRFLOW_HOME": str(tmp_path), "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(tmp_path / "logs")}
    keys = {name.upper(): value for name, value in CREDENTIALS.items()}
    environment = {"PATH": os.environ["PATH"], **environment_of(), **keys, **own}
    path = f"dag_id={environment_of.__name__}/run_id=r/task_id=t/attempt=1.log"
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "logs"), path]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "connection aws_default" in done.stdout
    assert f"read (['s3://nightshift/airflow-logs/{path}'], ['the words of a task'])" in done.stdout
    # Without the connection, each process asks the database or the api-server for it, and warns.
    assert "Unable to find AWS Connection" not in done.stdout + done.stderr
