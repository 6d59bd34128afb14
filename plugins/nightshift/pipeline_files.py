"""Where the files of a pipeline are. Standard library alone: commands and DAG files need it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def texts_of(folder: Path) -> dict[str, str]:
    """Return name to text of the pipelines of a folder, also of YAML that is not sound; without those that cannot be read."""
    found = {}
    for path in sorted(folder.glob("*.yaml")):
        # A link to nothing, for one: the parse reports it, and nothing else is kept from starting.
        with suppress(OSError):
            found[path.stem] = path.read_text(encoding="utf-8", errors="replace")
    return found


def yaml_of(dag_file: Path) -> Path:
    """Return the path of the pipeline that a DAG file is for."""
    return dag_file.parent / "pipelines" / f"{dag_file.stem}.yaml"
