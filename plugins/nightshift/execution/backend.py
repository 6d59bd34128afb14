"""Where a stage's process runs: the seam between operators and backends."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from nightshift.settings import Settings
from training.contracts import StageRequest
from training.errors import Problem, SpecError, shown
from training.spec import PipelineSpec
from training.spec.families import built_in_families
from training.spec.sections.train import Placement

LOCAL: Final = "local"
KUBERNETES: Final = "kubernetes"
LOCALLY_IGNORED: Final = ("memory", "gpus", "accelerator", "shared_memory", "min_nodes", "spot", "topology", "priority")
"""Keys of `train.placement` that place nothing on one machine: its processes use what the machine has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How a stage's process ended. Whether it succeeded is the store's to say."""

    exit_code: int
    """As a shell reports it: 128 + n for signal n."""
    seconds: float
    oom_killed: bool = False
    """The kernel killed something for memory meanwhile."""
    peak_bytes: int = 0
    """Resident memory of the largest of its processes; 0: not known."""
    limit_bytes: int = 0
    """Memory that it could have had; 0: not known."""
    code: str = ""
    """What a cluster says of its end (`pod.oom`, `pod.preempted`, `pod.gone` …); empty where there is none, or it says nothing."""
    words: str = ""
    """The same for people."""

    @property
    def signal_name(self) -> str | None:
        """Name of the signal that ended it, or None."""
        number = self.exit_code - 128
        return signal.Signals(number).name if number in set(signal.Signals) else None


class Stoppable(Protocol):
    """What a task has under way."""

    def stop(self) -> None:
        """Ask it to stop; returns at once, also in a signal's handler."""


class Launcher(Stoppable, Protocol):
    """Starts one attempt and stays until it is over."""

    def launch(self, request_uri: str, request: StageRequest, spec: PipelineSpec, say: Callable[[str], None]) -> Ended:
        """Run the attempt to its end, handing each line of its output to `say`."""

    def stop(self) -> None:
        """Ask the attempt to stop, and make it within five seconds; returns at once, also in a signal's handler."""


def ignored_keys(settings: Settings, spec: PipelineSpec) -> list[str]:
    """Return the keys of `train.placement` and `resources` that a pipeline sets and the installation's backend ignores, dotted.

    The same YAML serves laptop and cluster, so they are no error. `cpus` sets threads everywhere; `nodes` is a number of processes here.
    """
    placement = spec.train.placement
    ignored: tuple[str, ...] = LOCALLY_IGNORED
    sized = [f"resources.{stage}" for stage in spec.resources]
    if settings.backend == KUBERNETES:
        ignored = ("spot",) if settings.cluster().spot is None else ()
        sized = []
    defaults = Placement()
    return [*(f"train.placement.{key}" for key in ignored if getattr(placement, key) != getattr(defaults, key)), *sized]


def launcher_of(settings: Settings) -> Launcher:
    """Return the launcher of an installation whose stages are processes of this machine.

    Raises:
        SpecError: `settings.backend`, there is none of that name.
    """
    from nightshift.execution.local import LocalLauncher

    check_backend(settings)
    return LocalLauncher(settings)


def check_backend(settings: Settings, spec: PipelineSpec | None = None) -> None:
    """Look at what the installation says of its backend, and whether it has what a pipeline asks for, before a run relies on it.

    Raises:
        SpecError: `settings.backend`, there is none of that name; what is wrong with the cluster's file; `placement.unknown`.
    """
    if settings.backend == KUBERNETES:
        from nightshift.execution.kubernetes.config import check_placement

        cluster = settings.cluster()
        if spec is not None:
            check_placement(spec, cluster)
    elif settings.backend != LOCAL:
        message = f"there is no backend {shown(settings.backend)}"
        hint = f"use {LOCAL} or {KUBERNETES}"
        raise SpecError("environment", [Problem(code="settings.backend", field="NIGHTSHIFT_BACKEND", message=message, hint=hint)])


def spec_environment(stage: str, spec: PipelineSpec) -> dict[str, str]:
    """Return what a stage must know of the spec before it reads it."""
    model = spec.train.model
    return {"NIGHTSHIFT_MODEL_FAMILY": model} if stage == "evaluate" and model in built_in_families() else {}
