"""The table of bad input in docs/data.md names tests and error codes that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SECTION = (ROOT / "docs" / "data.md").read_text(encoding="utf-8").partition("\n## Bad input\n")[2].partition("\n## ")[0]
ROWS = [line.strip("| ").split(" | ") for line in SECTION.splitlines() if line.startswith("| ")][2:]
CODES = set(re.findall(r"^\| `([a-z_.]+)` \|", (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8"), re.MULTILINE))
KEYS = ("data.group", "data.source.", "evaluate.", "validate.")


def functions(file: str) -> set[str]:
    """Return the tests of a file of `make test` or of `make test-rest`."""
    path = next(path for kind in ("unit", "rest/unit") if (path := ROOT / "tests" / kind / "training" / file).exists())
    return {node.name for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", ROWS, ids=[row[0][:40] for row in ROWS])
def test_each_row_names_codes_and_tests_that_exist(row: list[str]) -> None:
    _, result, shown_by = row
    codes = {name for name in re.findall(r"`([a-z_]+\.[a-z_.]+)[^`]*`", result) if not name.startswith(KEYS)}
    assert codes <= CODES
    named = re.findall(r"`([^`:]+)::([^`]+)`", shown_by)
    assert named
    for file, name in named:
        assert name in functions(file), f"{file} has no {name}"
