"""States of a gang's Job and its pods, written as a cluster's API gives them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.unit.plugins.execution.kubernetes.kubernetes_api import failed, pod_status

Json = dict[str, Any]
GANG = "g"


def ago(seconds: float) -> str:
    """Return the API's text of an instant in the past."""
    return (datetime.now(UTC) - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def job_of(
    *,
    wanted: int = 2,
    name: str = GANG,
    suspend: bool = False,
    created: str = "",
    suspended: tuple[bool, str] | None = None,
    generation: int = 1,
) -> Json:
    """Return a Job; `suspended`: its condition, with the instant of its last change; `generation`: which version of its spec it is."""
    status: Json = {}
    if suspended is not None:
        condition = {"type": "Suspended", "status": str(suspended[0]), "lastTransitionTime": suspended[1]}
        status = {"conditions": [condition], **({} if suspended[0] else {"startTime": suspended[1]})}
    metadata: Json = {"name": name, "namespace": "n", "uid": "u", "creationTimestamp": created or ago(10), "generation": generation}
    metadata["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
    return {"metadata": metadata, "spec": {"completions": wanted, "parallelism": wanted, "suspend": suspend}, "status": status}


def member(number: int, status: Json, *, node: str = "n", name: str = GANG, created: str = "", is_deleted: bool = False) -> Json:
    metadata: Json = {"name": f"{name}-{number}-x", "creationTimestamp": created or ago(10)}
    metadata["labels"] = {"nightshift.io/launch": name, "batch.kubernetes.io/job-completion-index": str(number)}
    if is_deleted:
        metadata["deletionTimestamp"] = ago(1)
    return {"metadata": metadata, "spec": {"containers": [], **({"nodeName": node} if node else {})}, "status": status}


def running(placed: str = "") -> Json:
    placed = placed or ago(10)
    conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": placed}]
    return {**pod_status("Running", running={"startedAt": placed}), "conditions": conditions}


def without_place() -> Json:
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available: 1 Insufficient cpu."}
    return {"phase": "Pending", "conditions": [said]}


def stopped(exit_code: int) -> Json:
    return failed(exit_code)
