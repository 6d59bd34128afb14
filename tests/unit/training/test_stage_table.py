"""The table of stages against the stages: who opens the database and MLflow is read from their imports, those inside functions included."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from nightshift.execution.kubernetes.config import load_cluster
from training.runtime.provenance import CHECKOUT
from training.stage_table import ALL_STAGES, TABLE, Need

OPENED_BY = {Need.DATABASE: "sqlalchemy.create_engine", Need.MLFLOW: "mlflow"}
"""Service to the import without which it is not opened."""
SECRET = {Need.STORE: "nightshift-store", Need.DATABASE: "nightshift-database", Need.MLFLOW: "nightshift-mlflow"}
PLACEMENT = CHECKOUT / "docker" / "kubernetes" / "placement.yaml"


def imports_of(path: Path) -> Iterator[str]:
    """Yield the modules that a file may import when it runs: not those under TYPE_CHECKING."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    for_types = {id(inner) for block in blocks for statement in block.body for inner in ast.walk(statement)}
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def closure(module: str) -> set[str]:
    """Return all that a module may import, through our own modules."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if not name.startswith("training"):
            continue
        place = CHECKOUT / name.replace(".", "/")
        path = next((found for found in (place.with_suffix(".py"), place / "__init__.py") if found.is_file()), None)
        if path is not None:
            waiting += imports_of(path)
            waiting += [name.rpartition(".")[0]] if "." in name else []
    return seen


def test_the_table_has_every_stage_module() -> None:
    stages = CHECKOUT / "training" / "stages"
    modules = {path.stem for path in stages.glob("*.py") if "def work(" in path.read_text(encoding="utf-8")}
    assert modules == set(ALL_STAGES)


@pytest.mark.parametrize("stage", ALL_STAGES)
def test_a_stage_declares_the_services_that_its_code_opens(stage: str) -> None:
    reached = closure(f"training.stages.{stage}")
    opened = {need for need, name in OPENED_BY.items() if name in reached}
    assert opened == TABLE[stage].services - {Need.STORE}
    assert Need.STORE in TABLE[stage].services


@pytest.mark.parametrize("stage", ALL_STAGES)
def test_the_shipped_placement_gives_a_stage_the_secrets_of_what_it_opens_and_no_other(stage: str) -> None:
    assert set(load_cluster(PLACEMENT).secrets_of(stage)) == {SECRET[need] for need in TABLE[stage].services}


def test_the_documentation_creates_every_secret_that_the_shipped_placement_names() -> None:
    named = {name for names in yaml.safe_load(PLACEMENT.read_text(encoding="utf-8"))["secrets"].values() for name in names}
    text = (CHECKOUT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    assert all(f"kubectl create secret generic {name} -n nightshift " in text for name in named)


def test_the_table_imports_the_standard_library_alone() -> None:
    script = "import sys; before = set(sys.modules); import training.stage_table; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", script], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert loaded <= sys.stdlib_module_names | {"training"}
