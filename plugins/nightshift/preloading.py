"""Imports, before a process is forked for each DAG file or task, what each of them would import again.

A pipeline's file and each of its tasks need the factory, Airflow's DAG bag and, for the first asset that they name, the modules of all
installed providers that know a kind of URI: 0.5 s of CPU in a process of its own, none in one that is forked after this.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Sequence
from typing import Final

logger = logging.getLogger(__name__)

MODULES: Final = ("airflow.dag_processing.dagbag", "nightshift.factory", "training.registry.ledger")
PARSING_COMMAND: Final = "dag-processor"


def preload() -> None:
    """Import what DAG files and tasks of pipelines need. What cannot be imported is left to them, and to their error messages."""
    try:
        for module in MODULES:
            importlib.import_module(module)
        from nightshift.assets import CHAMPION, model_asset

        # Airflow looks for the handler of an asset's scheme when it sees one of that scheme for the first time.
        model_asset("preloaded", CHAMPION)
    except Exception:  # an installed provider, for one, may fail to import in its own way
        logger.warning("not everything that tasks need could be imported in advance; each of them imports it itself", exc_info=True)


def is_parsing_process(arguments: Sequence[str] | None = None) -> bool:
    """Return whether this process runs `airflow dag-processor`, which forks a process for each DAG file that it parses."""
    return PARSING_COMMAND in (sys.argv if arguments is None else arguments)[1:2]
