"""Where stages run: the seam between operators and backends.

A further backend is one class and its registration: in `BACKENDS`, or as an entry point of the group `nightshift.backends`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from nightshift.execution.attempt_end import Action, AttemptEnd, StageEndedError
from nightshift.resolved_run import ResolvedRun
from nightshift.settings import Settings
from nightshift.work import Work
from training.code.closure import Code
from training.contracts import JsonObject, RunIdentity, Scalar, StageRequest, StageResult
from training.errors import shown, spec_error
from training.spec import PipelineSpec
from training.spec.descriptors.families import FAMILIES
from training.spec.registry import Registry
from training.spec.sections.train import Placement
from training.store import WorkFolder
from training.store.launches import Launches

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.definitions.context import Context
    from airflow.triggers.base import BaseTrigger

ELASTIC: Final = "elastic"
"""Parameter of an attempt, not of the work: the attempt may continue with fewer nodes than requested."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageTask:
    """One try of a task, with the stage's work."""

    run: RunIdentity
    resolved: ResolvedRun
    work: Work
    operator: BaseOperator
    """The task's own: what a backend makes in its place (`Backend.operators`)."""
    context: Context
    """Airflow's."""
    say: Callable[[str], None]
    """Write a line to the task's log."""
    warn: Callable[[str], None]

    def request(self, *, attempt_id: str, takeover_epoch: int, **parameters: Scalar) -> StageRequest:
        """Return the request of a new attempt; `parameters` are added to the work's own."""
        return StageRequest(
            pipeline=self.resolved.spec.name,
            stage=self.work.stage,
            work_id=self.work.id,
            attempt_id=attempt_id,
            store_uri=self.resolved.store.root_uri,
            spec_uri=self.resolved.spec_uri,
            as_of=self.resolved.as_of,
            inputs=self.work.inputs,
            parameters={**self.work.parameters, **parameters},
            run=self.run,
            takeover_epoch=takeover_epoch,
            code_version=self.work.code.version,
            code_files=self.work.code.files,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Deferral:
    """The work runs without the task: the task waits in the triggerer and resumes with the trigger's event."""

    trigger: BaseTrigger


class Backend(Protocol):
    """The place where the stages of an installation run. Each task makes its own instance."""

    shares_disk: bool
    """All stages run on one machine and its disk."""
    operators: ClassVar[Mapping[str, str]] = {}
    """Name of a task's class, `TrainOperator` for one, to the class of that task on this backend as `module:class`; absent: its own."""

    def __init__(self, settings: Settings) -> None: ...

    def arguments(self, stage: str, spec: PipelineSpec | None) -> dict[str, Any]:
        """Return what the constructor of a class of `operators` is given, besides the task's own arguments, when a DAG file is parsed.

        Args:
            spec: of the pipeline; None: a helper DAG's task, which serves all of them.

        Raises:
            SpecError: the installation's settings for this backend are wrong.
        """
        del stage, spec
        return {}

    def check(self, spec: PipelineSpec | None = None) -> None:
        """Check the installation's settings for this backend, and that it has what a pipeline requires, before a run relies on it.

        Raises:
            SpecError: every problem.
        """

    def ignored_keys(self, spec: PipelineSpec) -> list[str]:
        """Return the keys of `train.placement` and `resources` that a pipeline sets and that have no effect here, dotted.

        One YAML serves every backend, so they are not errors.
        """

    def code_version(self, spec: PipelineSpec, stage: str) -> str | None:
        """Return the digest that stands for the code of a stage, None where its files do."""

    def device_of(self, spec: PipelineSpec) -> dict[str, str]:
        """Return `{"device": "cuda"}` for a training on GPUs, and `{}` for one on CPUs, whose work id has no device."""

    def run(self, task: StageTask, event: JsonObject | None = None) -> StageResult | Deferral:
        """Do or continue the work; return its result, or what the task waits for.

        Args:
            event: of the trigger that the task has waited for; None: it has not waited.

        Raises:
            StageEndedError: the work ended without a result, and is not started again by this try.
            NightshiftError: store or backend do not answer, or refuse.
        """

    def stop(self) -> None:
        """End the task's work, and start no more. Returns at once, also in a signal's handler; Airflow leaves five seconds."""


BACKENDS: Final[Registry[type[Backend]]] = Registry(
    group="nightshift.backends",
    built_in={
        "local": "nightshift.execution.local:LocalBackend",
        "kubernetes": "nightshift.execution.kubernetes.backend:KubernetesBackend",
    },
    descriptor_at="{}",
    fits=lambda found: isinstance(found, type),
    code="settings.backend",
    hint="name a class with the methods of nightshift.execution.backend.Backend, and install what it imports",
)
"""Names are values of `NIGHTSHIFT_BACKEND`. A backend is imported where it is used."""


def backend_of(settings: Settings) -> Backend:
    """Return the installation's backend.

    Raises:
        SpecError: `settings.backend`, there is none of that name, or it cannot be imported.
    """
    backend = BACKENDS.get(settings.backend)
    if backend is None:
        message, hint = f"there is no backend {shown(settings.backend)}", f"use {' or '.join(BACKENDS.names())}"
        raise spec_error("environment", "settings.backend", message, hint=hint, field="NIGHTSHIFT_BACKEND")
    return backend(settings)


def work_at(folder: WorkFolder) -> Work:
    """Return the work of a folder as its newest launch was given it: sources and champions move on while a task waits for it.

    Raises:
        StageEndedError: there is no launch.
    """
    launches = Launches(folder).all()
    if not launches:
        end = AttemptEnd(action=Action.RETRY, reason=f"the launches of {folder.uri} are missing", code="launch.missing")
        raise StageEndedError(end)
    request = folder.request(launches[-1].attempt_id)
    return Work(
        stage=request.stage,
        id=request.work_id,
        folder=folder,
        inputs=request.inputs,
        parameters={name: value for name, value in request.parameters.items() if name != ELASTIC},
        code=Code(version=request.code_version, files=request.code_files),
    )


def keys_set(placement: Placement, keys: tuple[str, ...]) -> list[str]:
    """Return those of `keys` that a placement sets, as `train.placement.<key>`."""
    defaults = Placement()
    return [f"train.placement.{key}" for key in keys if getattr(placement, key) != getattr(defaults, key)]


def spec_environment(stage: str, spec: PipelineSpec) -> dict[str, str]:
    """Return what a stage must know of the spec before it reads it."""
    model = spec.train.model
    return {"NIGHTSHIFT_MODEL_FAMILY": model} if stage == "evaluate" and model in FAMILIES.built_in else {}
