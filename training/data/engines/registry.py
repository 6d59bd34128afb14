"""The engines that there are."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from training.data.engines.duckdb import DuckDBEngine
from training.data.engines.engine import Engine, OpenEngine, Progress

ENGINES: Final[Mapping[str, OpenEngine]] = {"duckdb": DuckDBEngine}
DEFAULT: Final = "duckdb"


def open_engine(folder: Path, progress: Progress) -> AbstractContextManager[Engine]:
    """Return the engine that prepare joins with; arguments as `OpenEngine`."""
    return ENGINES[DEFAULT](folder, progress)
