"""The cluster: its file, the rights of Airflow's account there, the queues, and whether it would take the pods of each pipeline."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from nightshift.doctor.findings import Finding, Installation, bad, good
from nightshift.execution.backend import backend_of
from nightshift.execution.kubernetes.config import VARIABLE, Cluster, check_placement, cluster_of
from nightshift.execution.kubernetes.launch_request import Launch, launch_name, launch_of
from nightshift.execution.kubernetes.manifests import pod_manifest
from training.errors import SpecError, UnavailableError
from training.spec import PipelineSpec, load_spec
from training.spec.scalar_types import duration_text
from training.stage_table import ALL_STAGES, TRAININGS

KUBERNETES: Final = "kubernetes"
RIGHTS: Final = (
    ("", "pods", ("create", "get", "list", "delete")),
    ("", "pods/log", ("get",)),
    ("batch", "jobs", ("create", "get", "delete")),
    ("", "services", ("create",)),
    ("kueue.x-k8s.io", "localqueues", ("get",)),
)
"""API group, resource, verbs: those of docker/kubernetes/base/rbac.yaml."""
GANG_API: Final = "scheduling.k8s.io/v1alpha2"
GANG_GATES: Final = "GenericWorkload, GangScheduling and WorkloadWithJob"
GANG_VERSION: Final = "1.36"
KUEUE_GROUP: Final = "kueue.x-k8s.io"
NOT_FOUND: Final = 404
NO_ATTEMPT: Final = "doctor"
"""Stands for the attempt in the names of pods that are never made."""


def backend(place: Installation) -> Iterator[Finding]:
    """Check where stages run; in a cluster, ask it for each right."""
    backend_of(place.settings).check()
    yield good("backend", f"stages run by the backend {place.settings.backend}")
    if place.settings.backend == KUBERNETES:
        yield from _cluster(cluster_of(place.settings), _sound_specs(place))


def _sound_specs(place: Installation) -> list[PipelineSpec]:
    """Return the pipelines that can be read: the check `pipelines` names the others."""
    found = []
    for path in sorted(place.settings.pipelines_path.glob("*.yaml")):
        with suppress(SpecError):
            found.append(load_spec(path))
    return found


def _cluster(cluster: Cluster, specs: Sequence[PipelineSpec]) -> Iterator[Finding]:
    from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
    from kubernetes.client import ApisApi, AuthorizationV1Api
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    hook = KubernetesHook(conn_id=cluster.connection, in_cluster=cluster.in_cluster)
    missing: list[str] = []
    try:
        api = AuthorizationV1Api(hook.get_conn())
        for group, resource, verbs in RIGHTS:
            if group != KUEUE_GROUP or cluster.queues:
                missing += [f"{verb} {resource}" for verb in verbs if not _may(api, cluster.namespace, group, resource, verb)]
        groups = json.loads(ApisApi(api.api_client).get_api_versions(_preload_content=False).data)["groups"]
        yield _rights(cluster, missing)
        yield _gangs(cluster, {version["groupVersion"] for group in groups for version in group["versions"]})
        kueue = next((group["preferredVersion"]["version"] for group in groups if group["name"] == KUEUE_GROUP), None)
        if kueue and "get localqueues" not in missing:
            yield from _queues(cluster, kueue, api.api_client)
        if "create pods" not in missing:
            yield from (_pods(spec, cluster, api.api_client) for spec in specs)
    except (ApiException, HTTPError, OSError) as err:
        raise UnavailableError(
            "kubernetes.unavailable", f"the cluster does not answer: {err}", hint="check KUBECONFIG or connection:"
        ) from err


def _rights(cluster: Cluster, missing: list[str]) -> Finding:
    if missing:
        hint = "kubectl apply -k docker/kubernetes/, with this account as a subject of the RoleBinding nightshift-launcher"
        return bad("cluster", f"in namespace {cluster.namespace} this account may not: {', '.join(missing)}", hint=hint)
    return good("cluster", f"this account has the rights that stages in namespace {cluster.namespace} need")


def _gangs(cluster: Cluster, versions: set[str]) -> Finding:
    """Say what becomes of a training on several nodes that finds only some of them; `versions`: of the cluster's API groups."""
    has_kueue = any(version.startswith(f"{KUEUE_GROUP}/") for version in versions)
    wait = duration_text(cluster.partial_wait)
    released = f"a gang that has only some of its nodes for {wait} gives them back (partial_wait)"
    if cluster.queues and not has_kueue:
        hint = f"install Kueue, or remove `queues:` from the file of {VARIABLE}: without Kueue a gang is suspended for ever"
        return bad("gangs", f"queues: names queues of Kueue, and the cluster has no API {KUEUE_GROUP}", hint=hint)
    if cluster.queues:
        return good("gangs", f"Kueue admits gangs as a whole, within its quotas; {released}")
    if GANG_API in versions:
        words = f"the cluster has the API {GANG_API}: with the feature gates {GANG_GATES} on, Kubernetes starts all members or none"
        return good("gangs", f"{words}; otherwise {released}")
    lacking = f"no API {GANG_API} (Kubernetes {GANG_VERSION} with the alpha feature gates {GANG_GATES}) and no Kueue"
    return good("gangs", f"{lacking}: members start one by one, and {released}")


def _queues(cluster: Cluster, version: str, api_client: Any) -> Iterator[Finding]:
    """Look for each LocalQueue of the file: what waits for one that is not there waits until `schedule_timeout`."""
    from kubernetes.client import CustomObjectsApi
    from kubernetes.client.exceptions import ApiException

    hint = f"kubectl apply -k docker/kubernetes/kueue/, or correct `queues:` in the file of {VARIABLE}"
    for name in sorted(set(cluster.queues.values())):
        try:
            queue = CustomObjectsApi(api_client).get_namespaced_custom_object(KUEUE_GROUP, version, cluster.namespace, "localqueues", name)
        except ApiException as err:
            if err.status != NOT_FOUND:
                raise
            yield bad("queues", f"namespace {cluster.namespace} has no LocalQueue {name}", hint=hint)
            continue
        conditions = queue.get("status", {}).get("conditions", [])
        inactive = [each for each in conditions if each["type"] == "Active" and each["status"] == "False"]
        if inactive:
            yield bad("queues", f"LocalQueue {name} admits nothing: {inactive[0].get('message', '')}", hint=hint)
        else:
            yield good("queues", f"LocalQueue {name} is in namespace {cluster.namespace}")


def _pods(spec: PipelineSpec, cluster: Cluster, api_client: Any) -> Finding:
    """Have the cluster judge the pod of each stage, without making it: names, admission rules, limits, quota."""
    from kubernetes.client import CoreV1Api
    from kubernetes.client.exceptions import ApiException

    from nightshift.execution.kubernetes.client import fault

    try:
        check_placement(spec, cluster)
    except SpecError as err:
        words = "; ".join(f"{each.field}: {each.message}" for each in err.problems)
        return bad("pods", f"{spec.name}: {words}", hint=err.problems[0].hint)
    for stage in ALL_STAGES:
        launch = _launch(spec, cluster, stage)
        try:
            CoreV1Api(api_client).create_namespaced_pod(
                cluster.namespace, pod_manifest(launch, cluster), dry_run="All", _preload_content=False
            )
        except ApiException as err:
            found = fault(err.status or 0, err.body or err.reason or "", verb="create pod", name=launch.name, namespace=cluster.namespace)
            return bad("pods", f"{spec.name}, {stage}: [{found.code}] {found.message}", hint=found.hint)
    return good(
        "pods", f"{spec.name}: the cluster takes the pod of each stage (created as a dry run; whether a node has room is not asked)"
    )


def _launch(spec: PipelineSpec, cluster: Cluster, stage: str) -> Launch:
    placement = spec.train.placement
    return launch_of(
        spec,
        cluster,
        stage=stage,
        name=launch_name(spec.name, stage, NO_ATTEMPT, 0),
        attempt_id=NO_ATTEMPT,
        request_uri="",
        nodes=placement.nodes if stage in TRAININGS else 1,
        spot=placement.spot and stage in TRAININGS,
    )


def _may(api: object, namespace: str, group: str, resource: str, verb: str) -> bool:
    name, _, part = resource.partition("/")
    attributes = {"namespace": namespace, "group": group, "resource": name, "subresource": part, "verb": verb}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": attributes}}
    answer = api.create_self_subject_access_review(review, _preload_content=False)  # type: ignore[attr-defined]
    return bool(json.loads(answer.data)["status"]["allowed"])
