"""One task's requests to the cluster, by the hook and the pods of the task's own operator (`nightshift.operators.pods`): each is repeated
while the cluster does not answer, and its errors are ours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

import tenacity
from kubernetes import client
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from nightshift.execution.kubernetes.config import Cluster
from nightshift.execution.kubernetes.launch_request import Kind, Launch
from nightshift.execution.kubernetes.manifests import CONTAINER, LAUNCH_LABEL, Manifest, job_manifest, pod_manifest, service_manifest
from nightshift.execution.kubernetes.status import MAX_TAIL_LINES, MAX_TAILS, LaunchStatus, look_at_gang, look_at_pod
from nightshift.execution.local import printable
from training.errors import DeniedError, NightshiftError, UnavailableError, spec_error

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

NOT_FOUND: Final = 404
CONFLICT: Final = 409
INVALID: Final = frozenset({400, 422})
FORBIDDEN: Final = 403
DENIED: Final = frozenset({401, FORBIDDEN})
QUOTA: Final = "exceeded quota"
NO_RIGHT: Final = re.compile(r'User ".*" cannot ')
MAX_WORDS_CHARS: Final = 1000
MAX_TRIES: Final = 5
TRIED_AGAIN: Final = tenacity.retry(
    retry=tenacity.retry_if_exception_type(UnavailableError),
    stop=tenacity.stop_after_attempt(MAX_TRIES),
    wait=tenacity.wait_exponential_jitter(initial=0.5, max=8),
    reraise=True,
)
"""All requests to the cluster can be repeated: a launch's name is noted before the first one."""


class ClusterOperator(Protocol):
    """What is asked of a task's operator: `nightshift.operators.pods.PodTask`, for trainings `JobTask`, whose manifests are Jobs."""

    @property
    def client(self) -> client.CoreV1Api: ...

    def show(self, manifest: Manifest) -> None: ...

    def submit(self, manifest: Manifest, context: Context) -> None: ...


class Submitter:
    """Sends one task's requests to the cluster."""

    def __init__(self, cluster: Cluster, context: Context, operator: ClusterOperator) -> None:
        self._cluster = cluster
        self._context = context
        self._operator = operator

    def show(self, launch: Launch) -> None:
        """Have "Rendered Template" show a launch, also where another process requested it."""
        self._operator.show(self._manifest(launch))

    def look(self, name: str, kind: Kind) -> LaunchStatus:
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

    def submit(self, launch: Launch) -> None:
        """Create the objects of a launch unless they exist.

        Raises:
            DeniedError: `kubernetes.denied`, the account lacks a right; `kubernetes.refused`, an admission rule says no;
                `kubernetes.name_taken`, an object of its name is not the launch's.
            SpecError: `kubernetes.invalid`, the cluster refuses the manifest, and says why.
            UnavailableError: `kubernetes.unavailable`; `kubernetes.quota`, the namespace's ResourceQuota is used up.
        """
        self._create(launch)
        if launch.is_gang:
            self.ensure_service(launch)

    def last_lines(self, pods: Sequence[str]) -> list[str]:
        """Return the last lines of pods' logs with their names; none of a log that cannot be read, on which nothing depends."""
        found = []
        options = {"container": CONTAINER, "tail_lines": MAX_TAIL_LINES, "_preload_content": False}
        for name in pods[:MAX_TAILS]:
            with suppress(ApiException, HTTPError, OSError):
                log = self._core.read_namespaced_pod_log(name, self._namespace, **options).data
                found += [f"[{name}] {printable(line)}" for line in log.splitlines()]
        return found

    @TRIED_AGAIN
    def delete(self, name: str, kind: Kind) -> None:
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

    @TRIED_AGAIN
    def _create(self, launch: Launch) -> None:
        with self._faults(f"create {launch.kind.lower()}", launch.name):
            self._operator.submit(self._manifest(launch), self._context)

    def _manifest(self, launch: Launch) -> Manifest:
        return (job_manifest if launch.kind == "Job" else pod_manifest)(launch, self._cluster)

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
    if status in DENIED and QUOTA in words:
        return UnavailableError(
            "kubernetes.quota", what, hint="raise the namespace's ResourceQuota (docker/kubernetes/base/quota.yaml), or ask for less"
        )
    if status == FORBIDDEN and not NO_RIGHT.search(words):
        # An admission rule: a PriorityClass or ServiceAccount that is missing, a LimitRange, the namespace's security profile.
        return DeniedError(
            "kubernetes.refused", what, hint="make what the message names, or correct it in the file of NIGHTSHIFT_KUBERNETES"
        )
    if status in DENIED:
        return DeniedError("kubernetes.denied", what, hint="docker/kubernetes/ has the Role that Airflow needs")
    if status == NOT_FOUND:
        return DeniedError("kubernetes.missing", what, hint="make the namespace: kubectl apply -k docker/kubernetes/")
    if status in INVALID:
        return spec_error("cluster", "kubernetes.invalid", what, hint="correct the placement, or the cluster's file")
    return UnavailableError("kubernetes.unavailable", what)


def _message(body: object) -> str:
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else str(body)
    try:
        loaded = json.loads(text)
    except ValueError:
        return text[:MAX_WORDS_CHARS]
    return str(loaded.get("message", text) if isinstance(loaded, dict) else text)[:MAX_WORDS_CHARS]
