"""The cluster: its file, and whether Airflow's account there has the rights that stages in pods need."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from nightshift.doctor.findings import Finding, Place, bad, good
from nightshift.execution.backend import backend_of
from nightshift.execution.kubernetes.config import VARIABLE, Cluster, cluster_of
from training.errors import UnavailableError
from training.spec.types import duration_text

KUBERNETES: Final = "kubernetes"
RIGHTS: Final = (
    ("", "pods", ("create", "get", "list", "delete")),
    ("", "pods/log", ("get",)),
    ("batch", "jobs", ("create", "get", "delete")),
    ("", "services", ("create",)),
)
"""API group, resource, verbs: those of docker/kubernetes/base/rbac.yaml."""
GANG_API: Final = "scheduling.k8s.io/v1alpha2"
GANG_GATES: Final = "GenericWorkload, GangScheduling and WorkloadWithJob"
GANG_VERSION: Final = "1.36"
KUEUE_GROUP: Final = "kueue.x-k8s.io"


def backend(place: Place) -> Iterator[Finding]:
    """Check where stages run; in a cluster, ask it for each right."""
    backend_of(place.settings).check()
    yield good("backend", f"stages run by the backend {place.settings.backend}")
    if place.settings.backend == KUBERNETES:
        yield from _cluster(cluster_of(place.settings))


def _cluster(cluster: Cluster) -> Iterator[Finding]:
    from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
    from kubernetes.client import ApisApi, AuthorizationV1Api
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    hook = KubernetesHook(conn_id=cluster.connection, in_cluster=cluster.in_cluster)
    missing: list[str] = []
    try:
        api = AuthorizationV1Api(hook.get_conn())
        for group, resource, verbs in RIGHTS:
            missing += [f"{verb} {resource}" for verb in verbs if not _may(api, cluster.namespace, group, resource, verb)]
        apis = json.loads(ApisApi(api.api_client).get_api_versions(_preload_content=False).data)
    except (ApiException, HTTPError, OSError) as err:
        raise UnavailableError(
            "kubernetes.unavailable", f"the cluster does not answer: {err}", hint="check KUBECONFIG or connection:"
        ) from err
    yield _rights(cluster, missing)
    yield _gangs(cluster, {version["groupVersion"] for group in apis["groups"] for version in group["versions"]})


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


def _may(api: object, namespace: str, group: str, resource: str, verb: str) -> bool:
    name, _, part = resource.partition("/")
    attributes = {"namespace": namespace, "group": group, "resource": name, "subresource": part, "verb": verb}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": attributes}}
    answer = api.create_self_subject_access_review(review, _preload_content=False)  # type: ignore[attr-defined]
    return bool(json.loads(answer.data)["status"]["allowed"])
