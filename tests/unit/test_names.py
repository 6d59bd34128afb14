"""Names that users' programs and files hold: none disappears unnoticed. A name that goes on purpose leaves names.json with a line in
CHANGELOG.md; new ones are added by `python -m tests.unit.test_names`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

import pytest

from nightshift.console import COMMANDS
from tests.unit.tools.test_reference import KEYS
from tools.reference import environment
from training.contracts import ExitCode
from training.database.schema import Base
from training.runtime.provenance import CHECKOUT

PATH: Final = Path(__file__).with_name("names.json")
KINDS: Final = ("columns", "commands", "environment variables", "error codes", "exit codes", "keys of the YAML")


def codes_of_the_page() -> list[str]:
    """Return the codes of the reference: `make lint` fails where it is not that of the source."""
    text = (CHECKOUT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `([a-z_0-9.]+)` \|", text, re.MULTILINE)


def names() -> dict[str, list[str]]:
    """Return the names that there are now, by kind."""
    rows = environment.page(CHECKOUT)
    tables = Base.metadata.tables
    found = {
        "commands": list(COMMANDS),
        "columns": [f"{name}.{column.name}" for name, table in tables.items() for column in table.columns],
        "environment variables": re.findall(r"^\| `(NIGHTSHIFT_\w+)`", rows, re.MULTILINE),
        "error codes": codes_of_the_page(),
        "exit codes": [f"{code.name} {code.value}" for code in ExitCode],
        "keys of the YAML": [key.place for key in KEYS],
    }
    return {kind: sorted(found[kind]) for kind in KINDS}


@pytest.fixture(scope="module")
def found() -> dict[str, list[str]]:
    return names()


@pytest.mark.parametrize("kind", KINDS)
def test_no_name_that_users_hold_is_missing(found: dict[str, list[str]], kind: str) -> None:
    known = json.loads(PATH.read_text(encoding="utf-8"))[kind]
    assert known, kind
    assert sorted(set(known) - set(found[kind])) == []


if __name__ == "__main__":
    PATH.write_text(json.dumps(names(), indent=1) + "\n", encoding="utf-8")
