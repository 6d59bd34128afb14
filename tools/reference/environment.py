"""The environment variables: the table of docs/architecture.md, with the modules that read each."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

from tools.reference.markdown import code, notice, table

HEADING: Final = "## Settings of an installation (environment variables)"
PREFIX: Final = "NIGHTSHIFT_"
SOURCES: Final = ("training", "plugins", "devstack", "dags")
NAME: Final = re.compile(r"NIGHTSHIFT_[A-Z_]*[A-Z]")
INTERNAL: Final = {
    "NIGHTSHIFT_MODEL_FAMILY": "tells the process that measures latency which family the candidate is of",
    "NIGHTSHIFT_SERVICE": "marks the processes of an installation, so that `make stop` finds them",
}
"""Set by Nightshift for its own processes; a value of the user's is overwritten."""


def documented(root: Path) -> list[tuple[list[str], str, str]]:
    """Return (names, default, meaning) for each row of the table in docs/architecture.md."""
    text = (root / "docs" / "architecture.md").read_text(encoding="utf-8").split(HEADING, 1)[1]
    rows = [line.strip("|").split(" | ") for line in text.split("\n## ")[0].splitlines() if line.startswith("| `")]
    return [(re.findall(r"`([^`]+)`", names), default.strip(), " | ".join(meaning).strip()) for names, default, *meaning in rows]


def readers(root: Path) -> dict[str, list[str]]:
    """Return variable to the files in which it is a string of its own, and so is read or set there."""
    found: dict[str, set[str]] = {}
    for folder in SOURCES:
        for path in sorted((root / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and NAME.fullmatch(node.value):
                    found.setdefault(node.value, set()).add(path.relative_to(root).as_posix())
    return {name: sorted(files) for name, files in sorted(found.items())}


def page(root: Path) -> str:
    """Return the page.

    Raises:
        ValueError: the code reads a variable that no table has, or a table has one that nothing reads.
    """
    read, rows = readers(root), documented(root)
    named = {name for names, _default, _meaning in rows for name in names if name.startswith(PREFIX)} | INTERNAL.keys()
    if missing := sorted(read.keys() - named):
        raise ValueError(f"not in the table of docs/architecture.md, nor in INTERNAL: {', '.join(missing)}")
    if unread := sorted(named - read.keys()):
        raise ValueError(f"in the table of docs/architecture.md, and nothing reads it: {', '.join(unread)}")
    body = [
        (
            ", ".join(map(code, names)),
            default,
            meaning,
            "<br>".join(map(code, dict.fromkeys(file for name in names for file in read.get(name, [])))),
        )
        for names, default, meaning in rows
    ]
    own = [(code(name), meaning, "<br>".join(map(code, read[name]))) for name, meaning in INTERNAL.items()]
    return (
        f"# Environment variables\n{notice()}\n"
        "All of them are optional. An empty variable counts as not set. Paths are absolute.\n\n"
        + table(("variable", "default", "meaning", "used in"), body)
        + "\n## Set by Nightshift itself\nA value of your own is overwritten.\n\n"
        + table(("variable", "meaning", "used in"), own)
    )
