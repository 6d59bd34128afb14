"""The cluster: its file, and whether Airflow's account there has the rights that stages in pods need."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from nightshift.doctor.findings import Finding, Place, bad, good
from nightshift.execution.backend import backend_of
from nightshift.execution.kubernetes.config import Cluster, cluster_of
from training.errors import UnavailableError

KUBERNETES: Final = "kubernetes"
RIGHTS: Final = (
    ("", "pods", ("create", "get", "list", "delete")),
    ("", "pods/log", ("get",)),
    ("batch", "jobs", ("create", "get", "delete")),
    ("", "services", ("create",)),
)
"""API group, resource, verbs: those of docker/kubernetes/base/rbac.yaml."""


def backend(place: Place) -> Iterator[Finding]:
    """Check where stages run; in a cluster, ask it for each right."""
    backend_of(place.settings).check()
    yield good("backend", f"stages run by the backend {place.settings.backend}")
    if place.settings.backend == KUBERNETES:
        yield from _rights(cluster_of(place.settings))


def _rights(cluster: Cluster) -> Iterator[Finding]:
    from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
    from kubernetes.client import AuthorizationV1Api
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    hook = KubernetesHook(conn_id=cluster.connection, in_cluster=cluster.in_cluster)
    missing: list[str] = []
    try:
        api = AuthorizationV1Api(hook.get_conn())
        for group, resource, verbs in RIGHTS:
            missing += [f"{verb} {resource}" for verb in verbs if not _may(api, cluster.namespace, group, resource, verb)]
    except (ApiException, HTTPError, OSError) as err:
        raise UnavailableError(
            "kubernetes.unavailable", f"the cluster does not answer: {err}", hint="check KUBECONFIG or connection:"
        ) from err
    if missing:
        hint = "kubectl apply -k docker/kubernetes/, with this account as a subject of the RoleBinding nightshift-launcher"
        yield bad("cluster", f"in namespace {cluster.namespace} this account may not: {', '.join(missing)}", hint=hint)
    else:
        yield good("cluster", f"this account has the rights that stages in namespace {cluster.namespace} need")


def _may(api: object, namespace: str, group: str, resource: str, verb: str) -> bool:
    name, _, part = resource.partition("/")
    attributes = {"namespace": namespace, "group": group, "resource": name, "subresource": part, "verb": verb}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": attributes}}
    answer = api.create_self_subject_access_review(review, _preload_content=False)  # type: ignore[attr-defined]
    return bool(json.loads(answer.data)["status"]["allowed"])
