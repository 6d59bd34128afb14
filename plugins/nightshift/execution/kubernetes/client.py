"""The only place that names Airflow's KubernetesPodOperator: it connects to the cluster, and builds pods as that Airflow wants them: its
labels, its `pod_mutation_hook`. What it would do after that is done elsewhere: it deletes a pod that succeeded while no task looked and
starts it again, and it knows success by a pod's phase.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import tenacity
from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from kubernetes import client
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from nightshift.execution.kubernetes.config import Cluster
from nightshift.execution.kubernetes.launch import Launch
from nightshift.execution.kubernetes.manifests import (
    CONTAINER,
    LAUNCH_LABEL,
    Manifest,
    job_manifest,
    member_template,
    pod_manifest,
    service_manifest,
)
from nightshift.execution.kubernetes.status import LaunchStatus, look_at_gang, look_at_pod
from training.errors import DeniedError, NightshiftError, Problem, SpecError, UnavailableError
from training.installation import Variable

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

POD: Final = Variable(
    name="KUBERNETES_SERVICE_HOST", set_by="others", meaning="Kubernetes: the process runs in a pod, whose account it uses"
)
KUBECONFIG: Final = Variable(
    name="KUBECONFIG", kind="path", set_by="others", meaning="Kubernetes: the cluster's file; it comes before the pod's account"
)
NOT_FOUND: Final = 404
CONFLICT: Final = 409
INVALID: Final = frozenset({400, 422})
DENIED: Final = frozenset({401, 403})
MAX_WORDS_CHARS: Final = 1000
MAX_TRIES: Final = 5
TRIED_AGAIN: Final = tenacity.retry(
    retry=tenacity.retry_if_exception_type(UnavailableError),
    stop=tenacity.stop_after_attempt(MAX_TRIES),
    wait=tenacity.wait_exponential_jitter(initial=0.5, max=8),
    reraise=True,
)
"""All requests to the cluster can be repeated: a launch's name is noted before the first one."""


def in_cluster() -> bool | None:
    """Return True inside a pod, None elsewhere: there the connection or KUBECONFIG says where the cluster is."""
    return True if POD.text() and not KUBECONFIG.text() else None


class Submitter:
    """Sends one task's requests to the cluster."""

    def __init__(self, cluster: Cluster, context: Context, *, task_id: str) -> None:
        self._cluster = cluster
        self._context = context
        self._task_id = task_id
        self._operator = self._operator_of({"metadata": {}, "spec": {"containers": []}}, name="none")

    def look(self, name: str, kind: str) -> LaunchStatus:
        """Return what the cluster says of a launch.

        Raises:
            DeniedError: `kubernetes.denied`.
            UnavailableError: `kubernetes.unavailable`.
        """
        if kind == "Pod":
            return look_at_pod(
                self._read("read pod", lambda: self._core.read_namespaced_pod(name, self._namespace, _preload_content=False))
            )
        job = self._read("read job", lambda: self._batch.read_namespaced_job(name, self._namespace, _preload_content=False))
        selector = f"{LAUNCH_LABEL}={name}"
        listed = self._read(
            "list pods", lambda: self._core.list_namespaced_pod(self._namespace, label_selector=selector, _preload_content=False)
        )
        return look_at_gang(job, (listed or {}).get("items", []))

    def submit(self, launch: Launch) -> bool:
        """Create the objects of a launch unless they exist; return whether this call created them.

        Raises:
            DeniedError: `kubernetes.denied`.
            SpecError: `kubernetes.invalid`, the cluster refuses the manifest, and says why.
            UnavailableError: `kubernetes.unavailable`.
        """
        manifest = pod_manifest(launch, self._cluster)
        operator = self._operator_of(manifest, name=launch.name)
        pod: Manifest = operator.client.api_client.sanitize_for_serialization(operator.build_pod_request_obj(self._context))
        if not launch.is_gang:
            # Not by the operator's pod manager, which tries a name that is taken again for half a minute.
            return self._created("create pod", partial(self._core.create_namespaced_pod, self._namespace, pod), launch)
        job = job_manifest(launch, self._cluster, template=member_template(pod, launch, self._cluster))
        made = self._created("create job", partial(self._batch.create_namespaced_job, self._namespace, job), launch)
        self.ensure_service(launch)
        return made

    @TRIED_AGAIN
    def delete(self, name: str, kind: str) -> None:
        """Delete a launch and all that belongs to it; its processes get SIGTERM and time for a checkpoint. A missing launch is no error."""
        with self._faults(f"delete {kind.lower()}", name):
            try:
                if kind == "Pod":
                    self._core.delete_namespaced_pod(name, self._namespace, _preload_content=False)
                else:
                    self._batch.delete_namespaced_job(name, self._namespace, propagation_policy="Background", _preload_content=False)
            except ApiException as err:
                if err.status != NOT_FOUND:
                    raise

    @property
    def _namespace(self) -> str:
        return self._cluster.namespace

    @property
    def _core(self) -> client.CoreV1Api:
        return self._operator.client

    @property
    def _batch(self) -> client.BatchV1Api:
        return client.BatchV1Api(self._core.api_client)

    def _operator_of(self, manifest: Manifest, *, name: str) -> KubernetesPodOperator:
        return KubernetesPodOperator(
            task_id=self._task_id,
            name=name,
            namespace=self._cluster.namespace,
            pod_template_dict=manifest,
            base_container_name=CONTAINER,
            termination_message_policy="FallbackToLogsOnError",
            kubernetes_conn_id=self._cluster.connection,
            in_cluster=None if self._cluster.connection else in_cluster(),
            random_name_suffix=False,
            do_xcom_push=False,
            deferrable=True,
            get_logs=False,
            automount_service_account_token=False,
        )

    @TRIED_AGAIN
    def _created(self, verb: str, create: Callable[..., Any], launch: Launch) -> bool:
        with self._faults(verb, launch.name):
            try:
                create(_preload_content=False)
            except ApiException as err:
                if err.status != CONFLICT:
                    raise
                # Names are unique: it was made by a worker that was killed, or by one that works at the launch now.
                return False
            return True

    def ensure_service(self, launch: Launch) -> None:
        """Create a gang's Service where it is missing: a worker may have been killed between the Job and it.

        Raises:
            DeniedError, UnavailableError: as `submit`.
        """
        job = self._read("read job", lambda: self._batch.read_namespaced_job(launch.name, self._namespace, _preload_content=False))
        if job is None:
            return
        service = service_manifest(launch, self._cluster, job_uid=job["metadata"]["uid"])
        with self._faults("create service", launch.name):
            try:
                self._core.create_namespaced_service(self._namespace, service, _preload_content=False)
            except ApiException as err:
                if err.status != CONFLICT:
                    raise

    @TRIED_AGAIN
    def _read(self, verb: str, read: Callable[[], Any]) -> Any:
        with self._faults(verb, ""):
            try:
                return json.loads(read().data)
            except ApiException as err:
                if err.status == NOT_FOUND:
                    return None
                raise

    @contextmanager
    def _faults(self, verb: str, name: str) -> Iterator[None]:
        try:
            yield
        except ApiException as err:
            raise fault(err.status or 0, err.body or err.reason or "", verb=verb, name=name, namespace=self._namespace) from err
        except (HTTPError, OSError) as err:
            raise UnavailableError("kubernetes.unavailable", f"could not {verb} {name}: the cluster does not answer: {err}") from err


def fault(status: int, body: object, *, verb: str, name: str, namespace: str) -> NightshiftError:
    """Return what an HTTP status of the API means for a task."""
    words = _message(body)
    what = f"could not {verb} {name} in namespace {namespace}: {words}"
    if status in DENIED:
        return DeniedError("kubernetes.denied", what, hint="docker/kubernetes/ has the Role that Airflow needs")
    if status == NOT_FOUND:
        return DeniedError("kubernetes.missing", what, hint="make the namespace: kubectl apply -k docker/kubernetes/")
    if status in INVALID:
        return SpecError("cluster", [Problem(code="kubernetes.invalid", message=what, hint="correct the placement, or the cluster's file")])
    return UnavailableError("kubernetes.unavailable", what)


def _message(body: object) -> str:
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else str(body)
    try:
        loaded = json.loads(text)
    except ValueError:
        return text[:MAX_WORDS_CHARS]
    return str(loaded.get("message", text) if isinstance(loaded, dict) else text)[:MAX_WORDS_CHARS]
