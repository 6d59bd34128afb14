"""Runs stages as Pods and Jobs. `resolve`, `nightshift check` and DAG files read this, so the cluster's client is imported in a task."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from nightshift.execution import gpus
from nightshift.execution.attempt_end import Action, AttemptEnd, StageEndedError
from nightshift.execution.backend import Backend, Deferral, StageTask, keys_set
from nightshift.execution.kubernetes.config import Cluster, check_placement, cluster_of
from nightshift.execution.kubernetes.launch_request import launch_of
from nightshift.execution.kubernetes.manifests import labels_of, resources_of
from nightshift.execution.kubernetes.status import LaunchStatus
from nightshift.settings import Settings
from training.contracts import JsonObject, StageResult
from training.errors import UnavailableError, shown
from training.spec import PipelineSpec
from training.stage_table import TRAININGS
from training.store.metric_journal import journal_name

if TYPE_CHECKING:
    from nightshift.execution.kubernetes.client import ClusterOperator
    from nightshift.execution.kubernetes.remote_work import RemoteWork, WatchedLaunch
    from nightshift.execution.kubernetes.trigger import WatchLaunch

AWAY: Final = "kubernetes.unavailable"
PODS: Final = "nightshift.operators.pods"
HELPER_PODS: Final = "nightshift.operators.helper_pods"


class KubernetesBackend(Backend):
    """Looks at the cluster, starts what is missing there, and leaves the waiting to the triggerer."""

    shares_disk = False
    operators: ClassVar[Mapping[str, str]] = {
        "StageOperator": f"{PODS}:StagePodOperator",
        "PromoteOperator": f"{PODS}:PromotePodOperator",
        "CanaryDecisionOperator": f"{PODS}:CanaryDecisionPodOperator",
        "TuneOperator": f"{PODS}:TunePodOperator",
        "TrainOperator": f"{PODS}:TrainingJobOperator",
        "TrialsOperator": f"{PODS}:TrialsJobOperator",
        "AnswerOperator": f"{HELPER_PODS}:AnswerPodOperator",
        "RepairOperator": f"{HELPER_PODS}:RepairPodOperator",
        "RollbackOperator": f"{HELPER_PODS}:RollbackPodOperator",
    }

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._remote: RemoteWork | None = None
        self._stopped = False

    @functools.cached_property
    def cluster(self) -> Cluster:
        """Of the installation.

        Raises:
            SpecError: `settings.kubernetes`, no file is named; or everything that is wrong with it.
        """
        return cluster_of(self._settings)

    def arguments(self, stage: str, spec: PipelineSpec | None) -> dict[str, Any]:
        """Return what "Rendered Template" shows before a launch, from the YAML and the cluster's file, and the way to the cluster."""
        cluster = self.cluster
        found: dict[str, Any] = {
            "namespace": cluster.namespace,
            "kubernetes_conn_id": cluster.connection,
            "in_cluster": cluster.in_cluster,
        }
        if spec is None:
            return {**found, "image": cluster.image}
        nodes = spec.train.placement.nodes if stage in TRAININGS else 1
        launch = launch_of(spec, cluster, stage=stage, name="", attempt_id="", request_uri="", nodes=nodes, spot=False)
        return {
            **found,
            "image": cluster.image_of(gpus=launch.gpus),
            "resources": resources_of(launch, cluster),
            # Those of a launch have no value yet.
            "labels": {name: value for name, value in labels_of(launch, cluster, queued=True).items() if value},
        }

    def check(self, spec: PipelineSpec | None = None) -> None:
        """Check the cluster's file, and whether it has the names that a pipeline uses.

        Raises:
            SpecError: `settings.kubernetes`, `placement.unknown`; or everything that is wrong with the file.
        """
        cluster = self.cluster
        if spec is not None:
            check_placement(spec, cluster)

    def ignored_keys(self, spec: PipelineSpec) -> list[str]:
        return keys_set(spec.train.placement, ("spot",)) if self.cluster.spot is None else []

    def code_version(self, spec: PipelineSpec, stage: str) -> str | None:
        """Return the digest that the stage's image is pinned to, None where it is named by a tag."""
        return self.cluster.code_version(gpus=spec.train.placement.gpus if stage in TRAININGS else 0)

    def device_of(self, spec: PipelineSpec) -> dict[str, str]:
        """A pod has the GPUs that the spec requests."""
        return gpus.device_of(spec, has_gpus=spec.train.placement.gpus > 0)

    def run(self, task: StageTask, event: JsonObject | None = None) -> StageResult | Deferral:
        """Look at the cluster once; return the result, or the trigger that waits for the launch.

        Args:
            event: `{number, seen}`: the launch that the task has waited for, and what the trigger saw of it last.

        Raises:
            StageEndedError: the work ended without a result; or the cluster does not answer.
            NightshiftError: the store does not answer, or the cluster refuses.
        """
        remote = self._remote = remote_work(task, self.cluster)
        watched, reported = _watched(event)
        try:
            found = remote.advance(watched=watched, reported=reported)
            if self._stopped:
                remote.stop()
                raise StageEndedError(AttemptEnd(action=Action.GIVE_UP, reason="stopped before it was done", code="stage.stopped"))
        except UnavailableError as err:
            if err.code != AWAY:
                raise
            # The launch keeps running in the cluster: this costs none of the user's tries.
            raise StageEndedError(AttemptEnd(action=Action.GIVE_UP, reason=str(err), code=err.code)) from err
        return found if isinstance(found, StageResult) else Deferral(trigger=watching(found, task))

    def stop(self) -> None:
        """Delete the launch that is under way, if it is this task's own."""
        self._stopped = True
        if self._remote is not None:
            self._remote.stop()


def remote_work(task: StageTask, cluster: Cluster) -> RemoteWork:
    """Return a task's work in the cluster."""
    from nightshift.execution.kubernetes.client import Submitter
    from nightshift.execution.kubernetes.remote_work import RemoteWork

    ti: Any = task.context["ti"]
    run: Any = task.context["dag_run"]
    # A clear raises the number of tries that a task may have, and nothing else does. A run that was deleted and triggered again under
    # the same id starts at another instant.
    generation = f"{run.start_date}/{getattr(ti, 'max_tries', 0)}"
    submitter = Submitter(cluster, task.context, cast("ClusterOperator", task.operator))
    return RemoteWork(task, generation=generation, cluster=cluster, submitter=submitter)


def watching(waiting: WatchedLaunch, task: StageTask) -> WatchLaunch:
    """Return the trigger that waits for a launch of a task's work."""
    from nightshift.execution.kubernetes.trigger import WatchLaunch

    journal = journal_name(task.work.stage, task.run.run_id, task.work.parameters)
    return WatchLaunch(
        number=waiting.number,
        name=waiting.name,
        kind=waiting.kind,
        namespace=waiting.namespace,
        limits=waiting.limits.to_json(),
        connection=waiting.connection,
        in_cluster=waiting.in_cluster,
        metrics=None if journal is None else f"{task.resolved.spec.name}/{journal}",
    )


def _watched(event: JsonObject | None) -> tuple[int, LaunchStatus | None]:
    """Return (number of the launch that the trigger watched, what it saw last); (0, None) without an event."""
    if event is None:
        return 0, None
    number, status = event["number"], event["seen"]
    if not isinstance(number, int) or not isinstance(status, Mapping):
        raise ValueError(f"not the event of a launch: {shown(dict(event))}")
    return number, LaunchStatus.from_json(status)
