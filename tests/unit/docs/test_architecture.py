"""The tables of docs/architecture.md: layers are those of pyproject.toml, and each concept of the field leads to files that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
HEADING = "## Where to look\n"
NUM_CONCEPTS = 20


def concepts(page: str) -> dict[str, list[str]]:
    """Return concept to files and folders, relative to the checkout, as the table has them."""
    rows = [line.strip("| ").split(" | ") for line in page.split(HEADING, 1)[1].split("\n## ")[0].splitlines() if line.startswith("| ")]
    return {concept: re.findall(r"`([^`]+)`", where) for concept, where in rows if concept not in ("concept", "---")}


def documented_layers(page: str) -> list[list[set[str]]]:
    """Return the layers of each table of layers, top first: the modules of one layer are separated by commas, layers by ", then"."""
    tables = page.split("| layer, top first |")[1:]
    return [[layer for row in table.split("\n\n")[0].splitlines()[2:] for layer in _layers(row.split(" | ")[0])] for table in tables]


def _layers(cell: str) -> list[set[str]]:
    return [set(re.findall(r"`(\w+)`", part)) for part in cell.split(", then ")]


def missing_contents(page: str) -> list[str]:
    """Return the modules and folders that a row of the table of `training` names, and none of its packages has."""
    rows = [row.strip("| ").split(" | ") for row in page.split("| layer, top first |")[1].split("\n\n")[0].splitlines()[2:]]
    return [
        f"{cell}: {name}"
        for cell, contents in rows
        for name in set(re.findall(r"`(\w+/?)`", contents)) - set().union(*_layers(cell))
        if not any(
            _is_there(path, name)
            for package in set().union(*_layers(cell))
            for path in (ROOT / "training" / package).rglob(name.rstrip("/") if name[-1] == "/" else f"{name}.py")
        )
    ]


def missing_files(page: str, root: Path) -> list[str]:
    return [f"{concept}: {name}" for concept, names in concepts(page).items() for name in names if not _is_there(root / name, name)]


def _is_there(path: Path, name: str) -> bool:
    return path.is_dir() if name.endswith("/") else path.is_file()


def test_layers_are_those_of_the_import_contracts_in_their_order() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    checked = [[set(layer.split(" : ")) for layer in contract["layers"]] for contract in contracts if contract["type"] == "layers"]

    assert documented_layers(PAGE) == checked


def test_modules_and_folders_of_a_layer_are_in_its_packages() -> None:
    assert missing_contents(PAGE) == []
    assert missing_contents(PAGE.replace("`planning/`", "`plans/`")) != []


def test_each_concept_has_a_place_and_every_listed_file_exists() -> None:
    found = concepts(PAGE)

    assert missing_files(PAGE, ROOT) == []
    assert [concept for concept, names in found.items() if not names] == []
    assert len(found) == NUM_CONCEPTS


@pytest.mark.parametrize("name", ["training/gone.py", "training/gone/", "training/errors.py/", "training/store"])
def test_listed_file_or_folder_that_does_not_exist_is_found(name: str) -> None:
    page = f"{HEADING}| concept | where |\n| --- | --- |\n| leases | `training/store/leases.py`, `{name}` |\n\n## Next\n| a | `b` |\n"

    assert missing_files(page, ROOT) == [f"leases: {name}"]
