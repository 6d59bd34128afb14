"""Images hold what `make run` installs, each no more than it needs."""

import re
from pathlib import Path

import pytest

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
