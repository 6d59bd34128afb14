"""Where the files of a pipeline are. Standard library alone: commands and DAG files need it."""

from __future__ import annotations

from pathlib import Path


def yaml_of(dag_file: Path) -> Path:
    """Return the path of the pipeline that a DAG file is for."""
    return dag_file.parent / "pipelines" / f"{dag_file.stem}.yaml"
