"""Images hold what `make run` installs, each no more than it needs."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from training.runtime.provenance import CHECKOUT

DOCKER = CHECKOUT / "docker"
FILES = sorted((DOCKER / "requirements").glob("*.txt"))
DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"))


def names(path: Path) -> set[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return {re.split(r"[\[=]", line)[0].strip().lower() for line in lines if line.strip() and line[0] not in "#-"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_image_names_packages_and_requirements_pin_them(path: Path) -> None:
    assert "==" not in path.read_text(encoding="utf-8")
    # boto3 is the S3 client of MLflow's server, and comes with Airflow's provider elsewhere: constraints.txt pins it.
    assert names(path) - names(CHECKOUT / "requirements.txt") <= {"boto3"}
    assert names(path) <= names(CHECKOUT / "constraints.txt")


def test_every_requirement_is_in_some_image() -> None:
    assert names(CHECKOUT / "requirements.txt") == set().union(*(names(path) for path in FILES)) - {"boto3"}


def test_stages_have_no_airflow_and_airflow_has_no_torch() -> None:
    assert not [name for name in names(DOCKER / "requirements" / "stage.txt") if "airflow" in name]
    heavy = {"torch", "pandas", "mlflow", "great_expectations", "duckdb", "xgboost-cpu", "scikit-learn"}
    assert not heavy & names(DOCKER / "requirements" / "airflow.txt")


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_image_has_a_base_argument_and_an_unprivileged_user(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "ARG BASE=python:3.11-slim-bookworm" in text
    assert "USER 65532:65532" in text
    assert 'ENTRYPOINT ["tini", "-g", "--"]' in text
    assert "PIP_NO_CACHE_DIR=1" in text
    assert not re.search(r"FROM \S+:latest", text)


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_no_process_of_an_image_unpickles_a_model(path: Path) -> None:
    assert "MLFLOW_ALLOW_PICKLE_DESERIALIZATION=false" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_a_new_commit_leaves_the_packages_layers_as_they_are(path: Path) -> None:
    # A build argument is part of every layer below it: named any earlier, it has gigabytes pushed and pulled with every commit.
    for stage in path.read_text(encoding="utf-8").split("\nFROM ")[1:]:
        if "GIT_COMMIT" in stage:
            assert not re.search(r"^(RUN|COPY|ADD)\b", stage.partition("ARG GIT_COMMIT")[2], re.MULTILINE)
            code = re.search(r"^COPY (?:training|--from=code)\b", stage, re.MULTILINE)
            assert code is None or not re.search(r"^RUN|/opt/venv$", stage[code.start() :], re.MULTILINE)


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_every_image_says_which_commit_it_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("org.opencontainers.image.revision=${GIT_COMMIT}") == text.count("ARG GIT_COMMIT=unknown") > 0


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_packages_come_compiled(path: Path) -> None:
    # Pods have a root that they cannot write to: what is not compiled in the image is compiled anew by every process.
    assert not re.search(r"__pycache__|--no-compile|PIP_NO_COMPILE", path.read_text(encoding="utf-8"))


def made(target: str) -> list[str]:
    """Return the arguments of the command that a target runs where TORCH_INDEX is an index of builds for CPUs."""
    index = "TORCH_INDEX=https://cpu.example.com"
    done = subprocess.run(["make", "--dry-run", target, index], cwd=CHECKOUT, capture_output=True, text=True, check=True)  # noqa: S607
    return shlex.split(done.stdout)


def test_the_image_for_gpus_has_the_tag_that_the_cluster_file_names_and_torch_with_cuda() -> None:
    placement = yaml.safe_load((DOCKER / "kubernetes" / "placement.yaml").read_text(encoding="utf-8"))
    images = {"image-stage": placement["image"], "image-stage-cuda": placement["gpu_image"]}
    for target, image in images.items():
        command = made(target)
        assert command[command.index("-t") + 1] == image.rpartition("/")[2]
        assert ("TORCH_INDEX=https://cpu.example.com" in command) is (target == "image-stage")


def test_the_command_nightshift_is_on_the_path_of_airflows_images(tmp_path: Path) -> None:
    text = (DOCKER / "airflow.Dockerfile").read_text(encoding="utf-8")
    (copied,) = re.findall(r"^COPY (\S+/nightshift) (\S+)$", text, re.MULTILINE)
    source, target = CHECKOUT / copied[0], Path(copied[1])
    # Both images begin with this stage, and the folder of the command is one of its PATH.
    base = text[text.index(" AS base\n") : text.index("FROM base AS worker")]
    assert f"COPY {copied[0]} {copied[1]}" in base
    assert str(target.parent) in re.search(r"PATH=(\S+)", base)[1].split(":")  # type: ignore[index]
    assert f"!{copied[0]}" in (CHECKOUT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    # As in a container: no checkout around it, and the code by PYTHONPATH.
    (tmp_path / target.name).symlink_to(source)
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "PYTHONPATH": f"{CHECKOUT}:{CHECKOUT / 'plugins'}",
        "HOME": str(tmp_path),
    }
    environment["NIGHTSHIFT_HOME"] = str(tmp_path / "home")
    asked = [str(tmp_path / target.name), "doctor", "airflow"]
    done = subprocess.run(asked, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "[access.unauthenticated] no server is named" in done.stdout
    assert "-> set NIGHTSHIFT_SERVER and NIGHTSHIFT_TOKEN; on a laptop: make start" in done.stdout
