"""Queues of Kueue for tests and benchmarks, and Jobs that stand in for trainings."""

from __future__ import annotations

from typing import Any

from nightshift.execution.kubernetes.config import Cluster
from nightshift.execution.kubernetes.launch_request import Launch
from nightshift.execution.kubernetes.manifests import job_manifest
from tests.kubernetes.cluster_installation import NAMESPACE, kubectl
from tests.kubernetes.conftest import reason_to_skip
from tests.kubernetes.record import IMAGE


def why_no_kueue() -> str:
    """Return why there is no Kueue, empty if there is one."""
    reason = reason_to_skip()
    if reason or kubectl("get", "crd", "clusterqueues.kueue.x-k8s.io", "--ignore-not-found", "-o", "name"):
        return reason
    return "the cluster has no Kueue"


def stand_in(launch: Launch, cluster: Cluster, *, seconds: float) -> dict[str, Any]:
    """Return the Job of a training whose members sleep instead, and exit with 75 at SIGTERM, as a stage does."""
    job = job_manifest(launch, cluster)
    script = f"trap 'exit 75' TERM; sleep {seconds:.0f} & wait $!"
    container = {"image": IMAGE, "command": ["sh", "-c", script], "envFrom": []}
    job["spec"]["template"]["spec"]["containers"][0] |= container
    return job


def cluster_queue(name: str, **quotas: str) -> list[dict[str, Any]]:
    """Return a flavor of all nodes, a queue with these quotas whose higher priorities preempt lower ones, and its LocalQueue."""
    version = "kueue.x-k8s.io/v1beta2"
    flavor = {"name": name, "resources": [{"name": resource, "nominalQuota": amount} for resource, amount in quotas.items()]}
    spec = {
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [{"coveredResources": list(quotas), "flavors": [flavor]}],
    }
    return [
        {"apiVersion": version, "kind": "ResourceFlavor", "metadata": {"name": name}, "spec": {}},
        {"apiVersion": version, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec},
        {
            "apiVersion": version,
            "kind": "LocalQueue",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"clusterQueue": name},
        },
    ]
