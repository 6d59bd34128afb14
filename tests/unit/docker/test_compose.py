"""docker-compose.yaml: valid, without secrets, with all that a set-up needs to last."""

import json
import os
import re
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from training.runtime.provenance import CHECKOUT

PATH = CHECKOUT / "docker-compose.yaml"
ONE_SHOT = {"s3-init", "airflow-init"}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(PATH.read_text(encoding="utf-8"))
    return loaded


def test_it_fits_the_compose_specification() -> None:
    command = [str(Path(sys.executable).parent / "check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(PATH)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_variable_has_a_line_in_the_example(compose: dict[str, Any]) -> None:
    used = set(re.findall(r"\$\{([A-Z0-9_]+)", PATH.read_text(encoding="utf-8")))
    known = {line.split("=")[0] for line in example().splitlines() if "=" in line and not line.startswith("#")}
    assert used == known


def example() -> str:
    return (CHECKOUT / ".env.example").read_text(encoding="utf-8")


def test_no_secret_is_written_down() -> None:
    secret = re.compile(r"^\s*\w*(?:PASSWORD|SECRET|_KEY)[:=](?![ ]*(?:$|\$\{|/keys/)).*", re.MULTILINE)
    assert secret.findall(PATH.read_text(encoding="utf-8")) == []
    assert secret.findall(example()) == []


def test_every_service_is_bounded_watched_and_started_again(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert "mem_limit" in service, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "privileged" not in service, name
        assert service["restart"] == ("on-failure" if name in ONE_SHOT else "unless-stopped"), name
        assert name in ONE_SHOT or "healthcheck" in service, name


def test_nothing_listens_beyond_this_host(compose: dict[str, Any]) -> None:
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_no_service_that_loads_models_unpickles_one(compose: dict[str, Any]) -> None:
    loading = {name: service for name, service in compose["services"].items() if name not in ("postgres", "s3", "s3-init")}
    assert {service["environment"]["MLFLOW_ALLOW_PICKLE_DESERIALIZATION"] for service in loading.values()} == {"false"}


def test_the_object_store_offers_the_network_nothing_without_a_key(compose: dict[str, Any]) -> None:
    s3 = compose["services"]["s3"]
    assert {"-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3.ip.bind=0.0.0.0"} <= set(s3["command"])
    # Its gRPC listens where S3 does, and takes new users from anybody who has no certificate to show.
    assert {s3["environment"][f"WEED_GRPC_{name}"] for name in ("CA", "S3_CERT", "S3_KEY")} == {
        "/keys/ca.crt",
        "/keys/s3.crt",
        "/keys/s3.key",
    }
    (keys,) = (entry for entry in s3["volumes"] if isinstance(entry, dict))
    assert (keys["target"], keys["read_only"], keys["bind"]) == ("/keys", True, {"create_host_path": False})
    assert "cat /keys/ca.crt /keys/s3.crt /keys/s3.key" in s3["healthcheck"]["test"][1]


def test_what_makes_buckets_and_mlflow_get_no_key_of_airflows(compose: dict[str, Any]) -> None:
    keys = {"AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    assert compose["services"]["s3-init"]["environment"].keys() == keys | {"AWS_ENDPOINT_URL"}
    assert compose["services"]["mlflow"]["environment"].keys() == keys | {
        *("MLFLOW_DATABASE", "MLFLOW_AUTH_DATABASE", "MLFLOW_ADMIN_USERNAME", "MLFLOW_ADMIN_PASSWORD", "MLFLOW_FLASK_SERVER_SECRET_KEY"),
        *("MLFLOW_ARTIFACTS", "MLFLOW_ALLOWED_HOSTS", "MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "MLFLOW_S3_ENDPOINT_URL"),
    }


def test_images_are_pinned(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        tag = service["image"].rpartition(":")[2] if "${" not in service["image"] else service["image"]
        assert tag, name
        assert "latest" not in service["image"], name


def test_an_image_is_built_by_one_service(compose: dict[str, Any]) -> None:
    # Compose builds services at the same time, and the second that names a tag which was not there before fails.
    built = [service["image"] for service in compose["services"].values() if "build" in service]
    assert len(set(built)) == len(built)
    own = {service["image"] for service in compose["services"].values() if "${NIGHTSHIFT_VERSION" in service["image"]}
    assert {image.partition(":?")[0] for image in built} == {image.partition(":?")[0] for image in own}


def test_an_image_that_compose_builds_says_which_commit_it_is(compose: dict[str, Any]) -> None:
    built = [service["build"]["args"] for service in compose["services"].values() if "build" in service]
    assert [arguments["GIT_COMMIT"] for arguments in built] == ["${NIGHTSHIFT_COMMIT:-unknown}"] * 3
    # A value in .env would be that of an earlier checkout.
    assert "\nNIGHTSHIFT_COMMIT=\n" in example()
    page = (CHECKOUT / "docs" / "compose.md").read_text(encoding="utf-8")
    assert "\nNIGHTSHIFT_COMMIT=$(git rev-parse HEAD) docker compose build " in page


def test_the_database_is_ready_only_when_it_answers_others(compose: dict[str, Any]) -> None:
    # While it makes the databases, PostgreSQL's image runs a server with a socket alone.
    test = compose["services"]["postgres"]["healthcheck"]["test"]
    assert "-h" in test[:-1]


def test_files_of_the_checkout_that_containers_see_are_there_and_read_only(compose: dict[str, Any]) -> None:
    mounts = {entry for service in compose["services"].values() for entry in service.get("volumes", []) if str(entry).startswith("./")}
    assert mounts
    for mount in mounts:
        source, _, options = mount.split(":")
        assert (CHECKOUT / source).exists(), mount
        assert options == "ro", mount


def test_a_script_of_the_checkout_that_a_service_runs_is_mounted_in_it(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        mounted = {entry.split(":")[1] for entry in service.get("volumes", []) if isinstance(entry, str)}
        commands = [*service.get("command", []), *service.get("healthcheck", {}).get("test", [])]
        assert {word for word in commands if word.startswith("/opt/compose/")} <= mounted, name


@pytest.mark.parametrize(("status", "code"), [("healthy", 0), ("unhealthy", 1), (None, 1)])
def test_health_is_what_the_api_server_says(status: str | None, code: int) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"triggerer": {"status": status}, "scheduler": {"status": "healthy"}}).encode()
            self.send_response(200 if self.path == "/api/v2/monitor/health" else 404)
            self.end_headers()
            self.wfile.write(body)

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        environment = {**os.environ, "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{server.server_port}/execution/"}
        command = [sys.executable, str(CHECKOUT / "docker" / "compose" / "health.py"), "triggerer"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        server.shutdown()
    assert done.returncode == code, done.stderr


def test_what_must_last_is_on_named_volumes(compose: dict[str, Any]) -> None:
    mounted = {
        entry.split(":")[0]
        for service in compose["services"].values()
        for entry in service.get("volumes", [])
        if str(entry)[0] not in "./{"
    }
    assert mounted == set(compose["volumes"])
    assert {"postgres", "objects", "airflow-logs"} <= mounted


def test_two_installations_on_a_host_are_two_projects(compose: dict[str, Any], tmp_path: Path) -> None:
    assert compose["name"].startswith("${COMPOSE_PROJECT_NAME:?"), "a fixed name: the second one would recreate the first one's containers"
    names = set()
    for target in (tmp_path / "one", tmp_path / "other"):
        script = ["sh", str(CHECKOUT / "docker" / "compose" / "make-env.sh"), str(target)]
        subprocess.run(script, capture_output=True, check=True)
        (name,) = re.findall(r"^COMPOSE_PROJECT_NAME=(.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
        # What Compose takes.
        assert re.fullmatch(r"nightshift-[0-9a-f]{8}", name)
        names.add(name)
    assert len(names) == 2


def test_secrets_are_generated_once_and_never_overwritten(tmp_path: Path) -> None:
    target = tmp_path / ".env"
    script = ["sh", str(CHECKOUT / "docker" / "compose" / "make-env.sh"), str(target)]
    assert subprocess.run(script, capture_output=True, check=False).returncode == 0
    assert target.stat().st_mode & 0o077 == 0
    values = dict(
        line.split("=", 1) for line in target.read_text(encoding="utf-8").splitlines() if "=" in line and not line.startswith("#")
    )
    secrets = {name: value for name, value in values.items() if re.search(r"PASSWORD|SECRET|KEY", name)}
    assert len(secrets) == 12
    assert all(len(value) >= 24 for value in secrets.values())
    assert len(set(secrets.values())) == len(secrets)
    keys = tmp_path / "docker" / "compose" / "s3-keys"
    # The container's own user reads them.
    assert {path.name: path.stat().st_mode & 0o777 for path in keys.iterdir()} == {"ca.crt": 0o644, "s3.crt": 0o644, "s3.key": 0o644}
    # Nobody has the authority's key.
    assert (keys / "ca.crt").read_bytes() != (keys / "s3.crt").read_bytes()
    assert [path for path in tmp_path.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()] == [keys / "s3.key"]
    again = subprocess.run(script, capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert "exists; it is not changed" in again.stderr
