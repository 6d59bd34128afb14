"""docker-compose.yaml: valid, without secrets, with all that a set-up needs to last."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from training.provenance import CHECKOUT

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
    secret = re.compile(r"^\s*\w*(?:PASSWORD|SECRET|_KEY)[:=](?![ ]*(?:$|\$\{)).*", re.MULTILINE)
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


def test_images_are_pinned(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        tag = service["image"].rpartition(":")[2] if "${" not in service["image"] else service["image"]
        assert tag, name
        assert "latest" not in service["image"], name


def test_what_must_last_is_on_named_volumes(compose: dict[str, Any]) -> None:
    mounted = {
        entry.split(":")[0] for service in compose["services"].values() for entry in service.get("volumes", []) if entry[0] not in "./"
    }
    assert mounted == set(compose["volumes"])
    assert {"postgres", "objects", "airflow-logs"} <= mounted


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
    again = subprocess.run(script, capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert "there already" in again.stderr
