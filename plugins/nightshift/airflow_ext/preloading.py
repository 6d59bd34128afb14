"""Imports, before a process is forked for each DAG file or task, what each of them would import again.

A pipeline's file and each of its tasks need the factory, Airflow's DAG bag and, for the first asset that they name, the modules of all
installed providers that know a kind of URI: 0.4 s of CPU in a new process, with the Kubernetes provider 0.9, and 0.03 in one that is forked
after this. For the tasks of a run that is more than a tenth of its CPU (docs/performance.md).

So are the parts of DAGs that no spec changes: the JSON Schemas of a trigger's form, a third of the CPU of a parse, and what Airflow imports
and reads for the first DAG that it serialises, two thirds of that DAG's.

Workers also read the entry points of all installed distributions, where each task looks for families, metrics, gates and sources. The
dag-processor does not: it forgets nothing, and what a DAG file names may be installed before its next parse.

After an edit or an update of the code, or an installation of a library, until the services are started again, a task would mix what is in
memory with what it imports from the disk. So a worker drops what was preloaded where one of the files has changed (`forget_if_changed`),
and its tasks import everything.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from typing import Final

logger = logging.getLogger(__name__)

MODULES: Final = ("airflow.dag_processing.dagbag", "nightshift.wiring.pipeline", "training.registry.ledger.ledger")
PARSING_COMMAND: Final = "dag-processor"
PACKAGES: Final = ("nightshift", "training")
"""Packages whose code may be edited while services run."""

_stamps: dict[str, tuple[int, int] | None] = {}
"""Path of each file that is in memory, and of the folders of libraries, with the modification time in ns and the size as of the import;
empty before `preload`."""


def preload(*, parses: bool = False) -> None:
    """Import what DAG files and tasks of pipelines need. What cannot be imported is left to them, and to their error messages.

    Args:
        parses: whether the processes that are forked serialise DAGs too.
    """
    try:
        for module in MODULES:
            importlib.import_module(module)
        from nightshift.airflow_ext.assets import CHAMPION, model_asset

        # Airflow's Kubernetes provider, for one: 0.8 s of CPU.
        importlib.import_module("nightshift.wiring.task_classes").import_classes()
        # With the descriptors of the families, which a spec imports by name.
        importlib.import_module("training.spec.trigger_form").make_schemas()
        # Airflow looks for the handler of an asset's scheme when it sees one of that scheme for the first time.
        model_asset("preloaded", CHAMPION)
        if parses:
            _serialise_a_dag()
        else:
            # Looks through all installed distributions: 0.04 s of CPU.
            importlib.import_module("training.spec.descriptors.families").own_packages()
    except Exception:  # an installed provider, for one, may fail to import in its own way
        logger.warning("not everything that tasks need could be imported in advance; each of them imports it itself", exc_info=True)
    _stamps.update({path: _stamp(path) for path in (*_own_modules().values(), *_library_folders())})


def _library_folders() -> list[str]:
    return [str(path) for path in importlib.import_module("training.runtime.template").folders_of_libraries()]


def _serialise_a_dag() -> None:
    from airflow.sdk import DAG, BaseOperator
    from airflow.serialization.serialized_objects import DagSerialization

    from nightshift.airflow_ext.timetables import CronTimetable

    dag = DAG("preloaded", schedule=CronTimetable("@daily", timezone="UTC", pipeline="preloaded"))
    BaseOperator(task_id="preloaded", dag=dag)
    DagSerialization.to_dict(dag)


def forget_if_changed() -> bool:
    """Drop the preloaded modules of `PACKAGES` if the file of one was changed or removed, or a library installed; return whether one was.

    Call it in a process that uses none of them itself, before it forks the one that does.
    """
    if not _stamps or all(_stamp(path) == _stamps.get(path) for path in {*_stamps, *_library_folders()}):
        return False
    for name in _own_modules():
        del sys.modules[name]
    importlib.invalidate_caches()
    _stamps.clear()
    return True


def _own_modules() -> dict[str, str]:
    """Return module to file."""
    found = {name: getattr(module, "__file__", None) for name, module in sys.modules.items() if name.partition(".")[0] in PACKAGES}
    return {name: path for name, path in found.items() if path}


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def is_parsing_process() -> bool:
    """Return whether this process runs `airflow dag-processor`, which forks a process for each DAG file that it parses."""
    return PARSING_COMMAND in sys.argv[1:2]
