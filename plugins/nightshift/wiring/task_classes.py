"""Which class a task has here: on a backend that makes its own, such as KubernetesPodOperator's, that one."""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any, TypeVar, cast

from nightshift.execution.backend import Backend, backend_of
from nightshift.operators.stage import StageOperator
from nightshift.settings import Settings
from training.spec import PipelineSpec

Task = TypeVar("Task", bound=StageOperator)


def task_class(kind: type[Task], stage: str, spec: PipelineSpec | None) -> tuple[type[Task], dict[str, Any]]:
    """Return (class of the tasks of `kind` on the installation's backend, arguments for it besides the task's own).

    Args:
        spec: of the pipeline; None: a helper DAG's task, which serves all of them.

    Raises:
        SpecError: the installation's settings are wrong; Airflow shows it as the file's import error.
    """
    backend = _backend(Settings.from_environment())
    place = backend.operators.get(kind.__name__)
    if place is None:
        return kind, {}
    module, _, name = place.partition(":")
    return cast("type[Task]", getattr(import_module(module), name)), backend.arguments(stage, spec)


def import_classes() -> None:
    """Import the classes that the tasks of this installation have."""
    for place in backend_of(Settings.from_environment()).operators.values():
        import_module(place.partition(":")[0])


@functools.cache
def _backend(settings: Settings) -> Backend:
    """One per process, which reads its files once; Airflow parses each DAG file in a process of its own."""
    return backend_of(settings)
