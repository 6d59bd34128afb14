"""Which libraries, which commit, which image: what a result is tied to. Light enough for operators."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import platform
import subprocess
from collections.abc import Collection
from pathlib import Path

from training.installation import CHECKOUT as CHECKOUT
from training.installation import Variable
from training.spec.descriptors.families import own_packages

CODE_VERSION = Variable(
    name="NIGHTSHIFT_CODE_VERSION",
    meaning="code version of all stages, for example the digest of an image. Without it, each stage has its own code version "
    "(docs/internals.md, The code of a stage)",
)
GIT_COMMIT = Variable(
    name="NIGHTSHIFT_GIT_COMMIT",
    default="the checkout's commit",
    meaning="commit that is recorded with results where there is no checkout; set in images when they are built",
)
LIBRARIES = (
    "torch",
    "xgboost-cpu",
    "numpy",
    "pandas",
    "pyarrow",
    "duckdb",
    "great_expectations",
    "mlflow",
    "apache-airflow",
    "scikit-learn",
)

SAME_MODULES = {"xgboost-cpu": "xgboost"}
"""Distributions to those that have the same modules, for GPUs: an image has one of the two."""


def given_code_version() -> str | None:
    """Return `NIGHTSHIFT_CODE_VERSION`, which stands for the code of every stage: the digest of the image; None where it is not set."""
    return CODE_VERSION.text() or None


@functools.cache
def source_version() -> str:
    """Return a SHA-256 over every .py file of training/ and of users' packages: what a service has in memory.

    The code of a stage's work is another thing, `training.code`.
    """
    hasher = hashlib.sha256()
    for root in [CHECKOUT / "training", *_model_package_paths()]:
        for path in [root] if root.is_file() else sorted(root.rglob("*.py")):
            name = path.name if root.is_file() else path.relative_to(root.parent).as_posix()
            hasher.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return hasher.hexdigest()


def git_state() -> dict[str, str | bool]:
    """Return `{"commit": 40 hex digits or "unknown", "dirty": bool}` of the checkout, ignoring files that git does not track."""
    # An installed wheel may be in a virtual environment inside a repository of users, whose commit says nothing about this code.
    commit = _git("rev-parse", "HEAD") if (CHECKOUT / "pyproject.toml").is_file() else None
    if commit is None:
        return {"commit": GIT_COMMIT.text() or "unknown", "dirty": False}
    return {"commit": commit, "dirty": bool(_git("status", "--porcelain", "--untracked-files=no"))}


def environment(libraries: Collection[str] = ()) -> dict[str, str]:
    """Return Python, platform and library versions; of two distributions with the same modules, that which is installed.

    Args:
        libraries: distributions of the model's family, besides those that every model lists.
    """
    found = {"python": platform.python_version(), "platform": platform.platform(), "machine": platform.machine()}
    for name in dict.fromkeys([*LIBRARIES, *libraries]):
        installed = next((one for one in (name, SAME_MODULES.get(name)) if one is not None and version_of(one) is not None), name)
        found[installed] = version_of(installed) or "absent"
    return found


def version_of(distribution: str) -> str | None:
    """Return the version of an installed distribution."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _model_package_paths() -> list[Path]:
    paths = []
    for name in sorted(own_packages()):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            paths.append(Path(next(iter(spec.submodule_search_locations))))
        elif spec is not None and spec.origin:
            paths.append(Path(spec.origin))
    return paths


def _git(*arguments: str) -> str | None:
    try:
        answer = subprocess.run(["git", "-C", str(CHECKOUT), *arguments], capture_output=True, text=True, timeout=20, check=False)  # noqa: S607
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
