"""Records what a real cluster says of pods and gangs, state by state, for the tests that have no cluster.

    KUBECONFIG=… python -m tests.kubernetes.record [NAME …]

writes tests/unit/plugins/execution/kubernetes/recordings/<name>.json: the cluster's version and, for each change, the Pod, or the Job
and its pods, as the API gave them, less what is of no account (addresses, managed fields). It needs an image of busybox on the nodes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from nightshift.execution.kubernetes.config import Cluster
from nightshift.execution.kubernetes.launch_request import Launch
from nightshift.execution.kubernetes.manifests import job_manifest, pod_manifest
from tests.kubernetes.cluster_installation import kubectl

FOLDER: Final = Path(__file__).resolve().parents[1] / "unit" / "plugins" / "execution" / "kubernetes" / "recordings"
NAMESPACE: Final = "recordings"
POLL_SECONDS: Final = 0.2
VERSION: Final = os.environ.get("NIGHTSHIFT_TEST_KUBERNETES_VERSION", "1.36.2")
IMAGE: Final = "localhost/busybox:1"
CLUSTER: Final = Cluster.model_validate({"namespace": NAMESPACE, "image": IMAGE, "service_account": "default", "grace": "2s"})
DROPPED: Final = frozenset(
    "managedFields hostIP hostIPs podIP podIPs containerID imageID ownerReferences resourceVersion generation qosClass volumes "
    "volumeMounts allocatedResources user tolerations selfLink generateName observedGeneration env envFrom securityContext "
    "finalizers terminationMessagePath dnsPolicy schedulerName preemptionPolicy priority enableServiceLinks".split()
)

Frame = dict[str, Any]
HUNGRY: Final = ["sh", "-c", "sleep 1; x=a; while true; do x=$x$x; done"]


class Recording:
    """One launch, watched until a condition holds."""

    def __init__(self, name: str, command: list[str], **asked: Any) -> None:
        values = {"pipeline": "recorded", "stage": "train", "owner": "tests", "attempt_id": "attempt", "request_uri": "file:///r"}
        self.name = name
        self.launch = Launch(**{**values, "name": name, "cpus": 0.1, "memory_bytes": 2**25, **asked})
        self.command = command
        self.frames: list[Frame] = []

    def create(self, **changes: Any) -> None:
        made = job_manifest(self.launch, CLUSTER) if self.launch.is_gang else pod_manifest(self.launch, CLUSTER)
        pod = made["spec"]["template"] if self.launch.is_gang else made
        pod["spec"]["containers"][0] |= {"command": self.command, **changes.pop("container", {})}
        made["spec"] |= changes
        kubectl("create", "-f", "-", text=json.dumps(made))

    def look(self) -> Frame:
        pods = json.loads(kubectl("get", "pods", "-n", NAMESPACE, "-l", f"nightshift.io/launch={self.name}", "-o", "json"))["items"]
        frame: Frame = {"pods": [reduced(pod) for pod in pods]}
        if self.launch.is_gang:
            text = kubectl("get", "job", self.name, "-n", NAMESPACE, "-o", "json", check=False)
            frame["job"] = reduced(json.loads(text)) if text else None
        if not self.frames or self.frames[-1] != frame:
            self.frames.append(frame)
        return frame

    def until(self, condition: Callable[[Frame], bool], *, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition(self.look()):
            assert time.monotonic() < deadline, f"{self.name}: not within {seconds} s: {json.dumps(self.frames[-1])[:2000]}"
            time.sleep(POLL_SECONDS)

    def delete(self) -> None:
        kind = "job" if self.launch.is_gang else "pod"
        kubectl("delete", kind, self.name, "-n", NAMESPACE, "--wait=false", "--ignore-not-found")

    def write(self) -> None:
        FOLDER.mkdir(exist_ok=True)
        record = {"kubernetes": VERSION, "kind": self.launch.kind, "name": self.name, "frames": self.frames}
        (FOLDER / f"{self.name}.json").write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def reduced(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reduced(item) for key, item in value.items() if key not in DROPPED}
    return [reduced(item) for item in value] if isinstance(value, list) else value


def phase(name: str) -> Callable[[Frame], bool]:
    return lambda frame: bool(frame["pods"]) and all(pod["status"].get("phase") == name for pod in frame["pods"])


def ended(frame: Frame) -> bool:
    conditions = {item["type"] for item in ((frame["job"] or {}).get("status") or {}).get("conditions") or [] if item["status"] == "True"}
    return bool(conditions & {"Failed", "Complete"})


def waiting(reason: str) -> Callable[[Frame], bool]:
    return lambda frame: reason in json.dumps(frame["pods"])


def gone(frame: Frame) -> bool:
    return not frame["pods"]


def evict(name: str) -> None:
    body = json.dumps({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": NAMESPACE}})
    kubectl("create", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction", "-f", "-", text=body)


def members(recording: Recording) -> list[str]:
    return [pod["metadata"]["name"] for pod in recording.frames[-1]["pods"]]


def pod_succeeds() -> Recording:
    made = Recording("pod-succeeds", ["sh", "-c", "echo working; sleep 2"])
    made.create()
    made.until(phase("Succeeded"))
    return made


def pod_fails() -> Recording:
    made = Recording("pod-fails", ["sh", "-c", "echo the loss is not finite; sleep 1; exit 70"])
    made.create()
    made.until(phase("Failed"))
    return made


def pod_out_of_memory() -> Recording:
    made = Recording("pod-out-of-memory", HUNGRY)
    made.create()
    made.until(phase("Failed"))
    return made


def pod_without_image() -> Recording:
    made = Recording("pod-without-image", ["sleep", "1"])
    made.create(container={"image": "localhost/there-is-none:1"})
    made.until(waiting("ImagePullBackOff"))
    return made


def pod_without_place() -> Recording:
    made = Recording("pod-without-place", ["sleep", "1"], cpus=100.0)
    made.create()
    made.until(waiting("Unschedulable"))
    return made


def pod_without_program() -> Recording:
    made = Recording("pod-without-program", ["there-is-none"])
    made.create()
    made.until(phase("Failed"))
    return made


def pod_deleted() -> Recording:
    made = Recording("pod-deleted", ["sleep", "1000"])
    made.create()
    made.until(phase("Running"))
    made.delete()
    made.until(gone)
    return made


def pod_evicted() -> Recording:
    made = Recording("pod-evicted", ["sleep", "1000"])
    made.create()
    made.until(phase("Running"))
    evict("pod-evicted")
    made.until(gone)
    return made


def gang_succeeds() -> Recording:
    made = Recording("gang-succeeds", ["sh", "-c", "sleep 2"], nodes=2)
    made.create()
    made.until(ended)
    return made


def gang_loses_a_member() -> Recording:
    command = ["sh", "-c", 'if [ "$JOB_COMPLETION_INDEX" = 1 ]; then sleep 2; exit 137; fi; sleep 1000']
    made = Recording("gang-loses-a-member", command, nodes=2)
    made.create()
    made.until(ended)
    return made


def gang_member_out_of_memory() -> Recording:
    command = ["sh", "-c", f'[ "$JOB_COMPLETION_INDEX" = 0 ] || {{ {HUNGRY[-1]}; }}; sleep 4; exit 1']
    made = Recording("gang-member-out-of-memory", command, nodes=2)
    made.create()
    made.until(ended)
    return made


def gang_member_evicted() -> Recording:
    made = Recording("gang-member-evicted", ["sleep", "1000"], nodes=2)
    made.create()
    made.until(phase("Running"))
    evict(members(made)[1])
    made.until(ended)
    return made


def gang_suspended() -> Recording:
    made = Recording("gang-suspended", ["sh", "-c", "sleep 1"], nodes=2)
    made.create(suspend=True)
    made.until(lambda frame: waiting("")(frame) and bool(frame["job"]))
    time.sleep(2)
    made.look()
    kubectl("patch", "job", made.name, "-n", NAMESPACE, "-p", '{"spec": {"suspend": false}}')
    made.until(ended)
    return made


def gang_without_room() -> Recording:
    made = Recording("gang-without-room", ["sh", "-c", "sleep 1"], nodes=2, cpus=1.4)
    made.create()
    made.until(waiting("Unschedulable"))
    time.sleep(2)
    made.look()
    return made


SCENARIOS: Final = (
    *(pod_succeeds, pod_fails, pod_out_of_memory, pod_without_image, pod_without_place, pod_without_program, pod_deleted, pod_evicted),
    *(gang_succeeds, gang_loses_a_member, gang_member_out_of_memory, gang_member_evicted, gang_suspended, gang_without_room),
)


def main() -> None:
    wanted = set(sys.argv[1:])
    kubectl("create", "namespace", NAMESPACE, check=False)
    kubectl("create", "configmap", "openshift-service-ca.crt", "-n", NAMESPACE, check=False)
    try:
        for scenario in SCENARIOS:
            if not wanted or scenario.__name__ in wanted:
                made = scenario()
                made.delete()
                made.write()
                sys.stdout.write(f"{made.name}: {len(made.frames)} states\n")
                sys.stdout.flush()
    finally:
        kubectl("delete", "namespace", NAMESPACE, "--wait=false")


if __name__ == "__main__":
    main()
