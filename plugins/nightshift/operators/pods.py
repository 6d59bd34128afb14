"""The tasks of an installation on Kubernetes: KubernetesPodOperator for stages, KubernetesJobOperator for trainings.

Kept of the provider: constructor, hook and connection, labels, `pod_mutation_hook`, callbacks, `dry_run`. Not kept: what
it takes for the identity of work, and for success. It searches a pod by DAG, task and run, deletes one that has ended while no task looked,
and starts it again; it knows success by a pod's phase. Here the store's record of launches is the identity, and a committed result is
success (docs/kubernetes.md). `StageOperator` comes first in each class, so its `execute`, `trigger_reentry`, `invoke_defer_method` and
`on_kill` are the task's.

Only `Backend.operators` names these classes. A DAG file imports them where the backend is Kubernetes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.cncf.kubernetes.callbacks import ExecutionMode
from airflow.providers.cncf.kubernetes.operators.job import KubernetesJobOperator
from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from nightshift.execution.kubernetes.manifests import ATTEMPT_LABEL, CONTAINER, LAUNCH_LABEL, QUEUE_LABEL, Manifest
from nightshift.operators.promotion import CanaryDecisionOperator, PromoteOperator
from nightshift.operators.stage import StageOperator, TrainOperator
from nightshift.operators.study import TrialsOperator, TuneOperator
from training.errors import DeniedError

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

NOT_FOUND: Final = 404
CONFLICT: Final = 409
PLAIN: Final = client.Configuration()
"""Of the models that are made here: without one each makes its own, which takes as long as all of a task's arguments."""


class PodTask(KubernetesPodOperator):
    """KubernetesPodOperator for a pod whose name a launch has claimed in the store."""

    # Those that these tasks set: each empty one costs every parse of every DAG file, and a line of "Rendered Template". And the provider's
    # KubernetesJobOperator has its own from a set: another order in each process would be another version of the DAG.
    template_fields = ("image", "namespace", "labels", "container_resources", "pod_template_dict")
    # "Rendered Template" then has the manifest of the launch.
    overwrite_rtif_after_execution = True

    def __init__(self, *, resources: Manifest | None = None, labels: dict[str, str] | None = None, **kwargs: Any) -> None:
        """Take what a DAG file knows of the task's pods, all of it as it is: a template in it is text.

        Args:
            resources: of the pod's container, as in a manifest.
            labels: of the pod.
            kwargs: of the task, and of KubernetesPodOperator.
        """
        super().__init__(
            **kwargs,
            labels=dict(labels or {}),
            container_resources=client.V1ResourceRequirements(**(resources or {}), local_vars_configuration=PLAIN),
            base_container_name=CONTAINER,
            termination_message_policy="FallbackToLogsOnError",
            random_name_suffix=False,
            # The record of launches is the identity of a pod, not the task's own state.
            durable=False,
            do_xcom_push=True,
        )

    def show(self, manifest: Manifest) -> None:
        """Have "Rendered Template" show a launch instead of what the DAG file knew: a trigger may have changed resources and nodes."""
        container = next(one for one in manifest["spec"]["containers"] if one["name"] == CONTAINER)
        self.name, self.namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
        # Those that a policy of the installation added stay; of a Job, the Job is in the queue and not its members.
        known = {name: value for name, value in self.labels.items() if name != QUEUE_LABEL}
        self.image, self.labels = container["image"], {**known, **manifest["metadata"]["labels"]}
        self.container_resources = client.V1ResourceRequirements(**container["resources"], local_vars_configuration=PLAIN)
        self.pod_template_dict = manifest

    def submit(self, manifest: Manifest, context: Context) -> None:
        """Create the pod of a launch, or take the one that is there; raises ApiException.

        Args:
            manifest: the Pod, completed by the provider's labels and the installation's `pod_mutation_hook`.
        """
        self.show(manifest)
        pod = self.build_pod_request_obj(context)
        for callback in self.callbacks:
            callback.on_pod_manifest_created(pod_request=pod, client=self.client, mode=ExecutionMode.SYNC, context=context, operator=self)
        made = self.get_or_create_pod(pod, context)
        for callback in self.callbacks:
            callback.on_pod_creation(pod=made, client=self.client, mode=ExecutionMode.SYNC, context=context, operator=self)

    def get_or_create_pod(self, pod_request_obj: client.V1Pod, context: Context) -> client.V1Pod:
        """Create the pod; a pod of its name is this launch's, by a worker that was killed or that works at the launch now.

        Raises:
            DeniedError: `kubernetes.name_taken`, a pod of that name has another attempt's label.
        """
        namespace = pod_request_obj.metadata.namespace
        # Not by the provider's pod manager, which tries a name that is taken again for half a minute.
        try:
            return self.client.create_namespaced_pod(namespace, self._json_of(pod_request_obj))
        except ApiException as err:
            if err.status != CONFLICT:
                raise
        found = self.find_pod(namespace, context)
        _check_same_attempt(found, pod_request_obj, "pod")
        return found or pod_request_obj

    def find_pod(self, namespace: str, context: Context, *, exclude_checked: bool = True) -> client.V1Pod | None:
        """Return the pod of this task's launch, by its name; None where there is none."""
        del context, exclude_checked
        return _read(lambda: self.client.read_namespaced_pod(self.name, namespace))

    def build_pod_request_obj(self, context: Context | None = None, *, dry_run: bool = False) -> client.V1Pod:
        with self._no_sidecar():
            pod = super().build_pod_request_obj(context, dry_run=dry_run)
        if not dry_run:
            pod.metadata.name, pod.metadata.namespace = self.name, self.namespace
            self._keep_labels(pod.metadata)
        return pod

    def _do_render_template_fields(self, *_fields: Any, **_named: Any) -> None:
        """Render nothing. Not by Airflow's `literal`, whose values a `task_policy` could not change."""

    def cleanup(self, *_pods: Any, **_named: Any) -> None:
        """Do nothing: `RemoteWork` deletes what a launch left, and a committed result is success."""

    def _keep_labels(self, metadata: client.V1ObjectMeta) -> None:
        """A `pod_mutation_hook` may replace all labels, and by these a launch is found and distinguished from others."""
        labels = dict(self.labels or {})
        metadata.labels = {**(metadata.labels or {}), **{name: labels[name] for name in (LAUNCH_LABEL, ATTEMPT_LABEL)}}

    def _json_of(self, made: Any) -> Manifest:
        found: Manifest = self.client.api_client.sanitize_for_serialization(made)
        return found

    @contextmanager
    def _no_sidecar(self) -> Iterator[None]:
        """The provider has one flag for "push the result" and "add a container that hands over the result"."""
        self.do_xcom_push = False
        try:
            yield
        finally:
            self.do_xcom_push = True


class JobTask(PodTask, KubernetesJobOperator):
    """KubernetesJobOperator for a Job whose name a launch has claimed in the store."""

    template_fields = PodTask.template_fields

    def show(self, manifest: Manifest) -> None:
        """As of a pod: the Job's members."""
        place = {name: manifest["metadata"][name] for name in ("name", "namespace")}
        member = manifest["spec"]["template"]
        super().show({"apiVersion": "v1", "kind": "Pod", **member, "metadata": {**member["metadata"], **place}})

    def submit(self, manifest: Manifest, context: Context) -> None:
        """Create the Job of a launch, or take the one that is there; raises ApiException.

        Args:
            manifest: the Job, with the members' template as they are to be, which the provider completes as a pod's.
        """
        self.show(manifest)
        spec = manifest["spec"]
        empty: Manifest = {"metadata": {}, "spec": {"containers": []}}
        job = json.dumps({**manifest, "spec": {**spec, "template": empty}})
        self.full_job_spec = client.ApiClient().deserialize(SimpleNamespace(data=job), "V1Job")
        self.parallelism = spec["parallelism"]
        self.create_job(self.build_job_request_obj(context))

    def create_job(self, job_request_obj: client.V1Job) -> client.V1Job:
        """Create the Job; a Job of its name is this launch's.

        Raises:
            DeniedError: `kubernetes.name_taken`, a Job of that name has another attempt's label.
        """
        namespace, name = job_request_obj.metadata.namespace, job_request_obj.metadata.name
        try:
            return self.job_client.create_namespaced_job(namespace, self._json_of(job_request_obj))
        except ApiException as err:
            if err.status != CONFLICT:
                raise
        found = _read(lambda: self.job_client.read_namespaced_job(name, namespace))
        _check_same_attempt(found, job_request_obj, "Job")
        return found or job_request_obj

    def build_job_request_obj(self, context: Context | None = None) -> client.V1Job:
        with self._no_sidecar():
            job = super().build_job_request_obj(context)
        # The provider's prefix is not in the names by which members find each other.
        job.metadata.name = self.name
        self._keep_labels(job.spec.template.metadata)
        return job

    def get_pods(self, pod_request_obj: client.V1Pod, context: Context, *, exclude_checked: bool = True) -> Sequence[client.V1Pod]:
        """Return the members that exist, of a suspended Job none."""
        del context, exclude_checked
        found: Sequence[client.V1Pod] = self.client.list_namespaced_pod(
            pod_request_obj.metadata.namespace, label_selector=f"{LAUNCH_LABEL}={self.name}"
        ).items
        return found

    def execute_deferrable(self) -> None:
        """As `invoke_defer_method`: KubernetesJobTrigger has no `on_kill`, and fails where no pod exists yet."""
        self.invoke_defer_method()


class StagePodOperator(StageOperator, PodTask):
    """Runs one stage of a pipeline in a pod, or finds it done."""


class PromotePodOperator(PromoteOperator, PodTask):
    """Decides about a run's candidate, in a pod."""


class CanaryDecisionPodOperator(CanaryDecisionOperator, PodTask):
    """Decides about a canary, in a pod."""


class TunePodOperator(TuneOperator, PodTask):
    """Sums up a study, in a pod."""


class TrainingJobOperator(TrainOperator, JobTask):
    """Trains in an Indexed Job of as many members as the training has nodes, one or more."""


class TrialsJobOperator(TrialsOperator, JobTask):
    """One worker of a study, whose trials are Indexed Jobs."""


def _read(read: Any) -> Any:
    try:
        return read()
    except ApiException as err:
        if err.status == NOT_FOUND:
            return None
        raise


def _check_same_attempt(found: Any, asked: Any, kind: str) -> None:
    if found is None:
        return
    theirs, ours = ((one.metadata.labels or {}).get(ATTEMPT_LABEL) for one in (found, asked))
    if theirs != ours:
        message = f"{kind} {found.metadata.name} in namespace {found.metadata.namespace} has the attempt {theirs!r} and not {ours!r}"
        raise DeniedError("kubernetes.name_taken", message, hint="delete it: Nightshift did not make it for this launch")
