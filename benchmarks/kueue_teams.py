"""An hour of three teams that share 128 GPUs by Kueue: does a team starve, is a gang placed in part, is lent quota returned?

    KUBECONFIG=… python benchmarks/kueue_teams.py [SECONDS]

It applies docker/kubernetes/ and docker/kubernetes/examples/three-teams/ as they are. Kueue has to be installed, configured as the
example's README says; without it the script says so and measures nothing. One node gets GPUs that do not exist. The Jobs are those of
`job_manifest`; their members sleep instead of training, and exit with 75 at SIGTERM, as a stage does. A member that was preempted starts
from the beginning, which is worse than a training, which resumes from its last checkpoint. The hour is compressed to SECONDS (default 600).
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "plugins")]

from nightshift.execution.kubernetes.config import Cluster  # noqa: E402
from nightshift.execution.kubernetes.launch_request import Launch  # noqa: E402
from nightshift.execution.kubernetes.manifests import LAUNCH_LABEL  # noqa: E402
from tests.kubernetes.cluster_installation import NAMESPACE, SHIPPED, kubectl  # noqa: E402
from tests.kubernetes.queues import stand_in, why_no_kueue  # noqa: E402

EXAMPLE = ROOT / "docker" / "kubernetes" / "examples" / "three-teams"
QUEUES = {"search": "team-search", "recommendations": "team-recommendations", "research": "team-research"}
NODE_GPUS = 8
HOUR_MINUTES = 60.0
# Trainings, and the minutes in which they arrive: the first two teams lend their quota while they are idle.
TEAMS = {
    "search": (15, 20.0, 60.0, "production"),
    "recommendations": (15, 0.0, 40.0, "production"),
    "research": (24, 0.0, 60.0, "exploration"),
}
MINUTES = (4.0, 16.0)
MAX_NODES = 4
POLL_SECONDS = 1.0
GPU_LABEL = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}


@dataclass
class Training:
    """One Job of one team, and what became of it. All times are seconds since the start."""

    name: str
    team: str
    nodes: int
    seconds: float
    arrives_at: float
    priority: str
    is_created: bool = False
    is_admitted: bool = False
    first_started_at: float | None = None
    ended_at: float | None = None
    has_failed: bool = False
    partial_since: float | None = None
    placed: int = 0

    @property
    def gpus(self) -> int:
        return self.nodes * NODE_GPUS

    @property
    def is_open(self) -> bool:
        return self.is_created and self.ended_at is None


@dataclass
class Figures:
    """What was seen, sample by sample."""

    used_gpu_seconds: float = 0.0
    usable_gpu_seconds: float = 0.0
    longest_partial_seconds: float = 0.0
    most_borrowed: dict[str, int] = field(default_factory=dict)
    owed_since: dict[str, float] = field(default_factory=dict)
    """Team to the time since which it has waited for a gang that fits into its own quota."""
    longest_owed_seconds: dict[str, float] = field(default_factory=dict)


def cluster() -> Cluster:
    """Return the shipped placement.yaml with the teams' queues, and nodes that are chosen by the queues' flavor alone."""
    values = yaml.safe_load(SHIPPED.read_text(encoding="utf-8")) | {"queues": QUEUES, "grace": "10s"}
    del values["on_demand"]
    return Cluster.model_validate(values)


def nominal_gpus() -> dict[str, int]:
    """Return team to its own quota, from the example's queues."""
    found = {}
    for document in yaml.safe_load_all((EXAMPLE / "queues.yaml").read_text(encoding="utf-8")):
        if document["kind"] == "ClusterQueue":
            (flavor,) = document["spec"]["resourceGroups"][0]["flavors"]
            amounts = {row["name"]: int(row["nominalQuota"]) for row in flavor["resources"] if row["name"] == "nvidia.com/gpu"}
            found[document["metadata"]["name"].removeprefix("team-")] = amounts["nvidia.com/gpu"]
    return found


def trainings(minute_seconds: float) -> list[Training]:
    """Return the hour's arrivals, the same in each call."""
    draw = np.random.default_rng(20260201)
    found = []
    for team, (count, first, last, priority) in TEAMS.items():
        for number in range(count):
            arrives_at = draw.uniform(first, last) * minute_seconds
            seconds = draw.uniform(*MINUTES) * minute_seconds
            found.append(Training(f"{team}-{number}", team, int(draw.integers(1, MAX_NODES, endpoint=True)), seconds, arrives_at, priority))
    return sorted(found, key=lambda training: training.arrives_at)


def submit(training: Training, values: Cluster) -> None:
    launch = Launch(
        name=training.name,
        pipeline=training.name,
        stage="train",
        owner=training.team,
        attempt_id=training.name,
        request_uri="file:///none",
        nodes=training.nodes,
        cpus=0.01,
        memory_bytes=2**24,
        gpus=NODE_GPUS,
        priority=training.priority,
    )
    kubectl("create", "-f", "-", text=json.dumps(stand_in(launch, values, seconds=training.seconds)))
    training.is_created = True


def look(all_of_them: list[Training], now: float, figures: Figures) -> None:
    """Ask the cluster once, and note each training's state."""
    items = json.loads(kubectl("get", "jobs,pods", "-n", NAMESPACE, "-o", "json"))["items"]
    jobs = {item["metadata"]["name"]: item for item in items if item["kind"] == "Job"}
    pods: dict[str, list[Any]] = {}
    for item in items:
        if item["kind"] == "Pod":
            pods.setdefault(item["metadata"]["labels"][LAUNCH_LABEL], []).append(item)
    for training in all_of_them:
        if training.is_open and training.name in jobs:
            note(training, jobs[training.name], pods.get(training.name, []), now, figures)


def note(training: Training, job: dict[str, Any], pods: list[Any], now: float, figures: Figures) -> None:
    conditions = {row["type"] for row in job["status"].get("conditions", []) if row["status"] == "True"}
    live = [pod for pod in pods if pod["status"]["phase"] in {"Pending", "Running"} and not pod["metadata"].get("deletionTimestamp")]
    training.placed = sum(1 for pod in live if pod["spec"].get("nodeName"))
    training.is_admitted = not job["spec"]["suspend"]
    if {"Complete", "Failed"} & conditions:
        training.ended_at, training.has_failed, training.placed = now, "Failed" in conditions, 0
    if training.placed == training.nodes and training.first_started_at is None:
        training.first_started_at = now
    is_ending = any(pod["status"]["phase"] in {"Succeeded", "Failed"} for pod in pods)
    is_partial = 0 < training.placed < training.nodes and training.is_admitted and not is_ending
    training.partial_since = (training.partial_since or now) if is_partial else None
    if training.partial_since is not None:
        figures.longest_partial_seconds = max(figures.longest_partial_seconds, now - training.partial_since)


def add_up(all_of_them: list[Training], quotas: dict[str, int], now: float, elapsed: float, figures: Figures) -> None:
    """Add one sample of `elapsed` seconds."""
    wanted = sum(training.gpus for training in all_of_them if training.is_open)
    used = sum(training.placed * NODE_GPUS for training in all_of_them if training.is_open)
    figures.used_gpu_seconds += elapsed * used
    figures.usable_gpu_seconds += elapsed * min(wanted, sum(quotas.values()))
    for team, quota in quotas.items():
        own = [training for training in all_of_them if training.team == team and training.is_open]
        admitted = sum(training.gpus for training in own if training.is_admitted)
        figures.most_borrowed[team] = max(figures.most_borrowed.get(team, 0), admitted - quota)
        is_owed = any(not training.is_admitted and admitted + training.gpus <= quota for training in own)
        if not is_owed:
            figures.owed_since.pop(team, None)
            continue
        since = figures.owed_since.setdefault(team, now)
        figures.longest_owed_seconds[team] = max(figures.longest_owed_seconds.get(team, 0.0), now - since)


def preemptions() -> dict[str, int]:
    """Return team to how often its trainings were evicted, as Kueue counts it."""
    found = dict.fromkeys(QUEUES, 0)
    for item in json.loads(kubectl("get", "workloads.kueue.x-k8s.io", "-n", NAMESPACE, "-o", "json"))["items"]:
        evictions = item.get("status", {}).get("schedulingStats", {}).get("evictions", [])
        found[item["spec"]["queueName"].removeprefix("team-")] += sum(row["count"] for row in evictions if row["reason"] == "Preempted")
    return found


def run(seconds: float) -> tuple[list[Training], Figures]:
    minute_seconds = seconds / HOUR_MINUTES
    quotas, values, figures = nominal_gpus(), cluster(), Figures()
    all_of_them = trainings(minute_seconds)
    began, last = time.monotonic(), 0.0
    while any(training.ended_at is None for training in all_of_them):
        now = time.monotonic() - began
        if now > 4 * seconds:
            break
        for training in all_of_them:
            if not training.is_created and training.arrives_at <= now:
                submit(training, values)
        look(all_of_them, now, figures)
        add_up(all_of_them, quotas, now, now - last, figures)
        last = now
        time.sleep(POLL_SECONDS)
    return all_of_them, figures


def report(all_of_them: list[Training], figures: Figures, minute_seconds: float) -> bool:
    """Print the figures in minutes of the hour; return whether each Job ended with success."""
    evicted = preemptions()
    heads = f"{'jobs':>4} {'done':>4} {'failed':>6} {'preempted':>9} {'GPUs borrowed':>13}"
    print(f"{'team':<16} {heads}   wait: median, longest   owed at most [minutes]")
    for team in QUEUES:
        own = [training for training in all_of_them if training.team == team]
        waits = [(t.first_started_at - t.arrives_at) / minute_seconds for t in own if t.first_started_at is not None]
        done = sum(1 for training in own if training.ended_at is not None and not training.has_failed)
        failed = sum(1 for training in own if training.has_failed)
        owed = figures.longest_owed_seconds.get(team, 0.0) / minute_seconds
        borrowed = max(0, figures.most_borrowed[team])
        print(f"{team:<16} {len(own):>4} {done:>4} {failed:>6} {evicted[team]:>9} {borrowed:>13}   ", end="")
        print(f"{statistics.median(waits):>12.1f} {max(waits):>8.1f}   {owed:>12.1f}")
    print(f"utilisation of what was asked, up to 128 GPUs: {figures.used_gpu_seconds / figures.usable_gpu_seconds:.1%}")
    print(f"longest time that a gang was placed in part: {figures.longest_partial_seconds:.1f} s of the clock")
    print(f"all ended after {max(t.ended_at or 0.0 for t in all_of_them) / minute_seconds:.0f} minutes")
    return all(training.ended_at is not None and not training.has_failed for training in all_of_them)


def set_gpus(node: str, count: int | None) -> None:
    """Give a node GPUs that do not exist, or take them away (None)."""
    key = "nvidia.com/gpu"
    value = None if count is None else str(count)
    patch = {"status": {"capacity": {key: value}, "allocatable": {key: value}}}
    kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", json.dumps(patch))
    ((name, product),) = GPU_LABEL.items()
    kubectl("label", "node", node, "--overwrite", f"{name}={product}" if count else f"{name}-")


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 600.0
    reason = why_no_kueue()
    if reason:
        print(f"not measured: {reason}")
        return
    node = json.loads(kubectl("get", "nodes", "-o", "json"))["items"][0]["metadata"]["name"]
    kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait")
    kubectl("apply", "-k", str(ROOT / "docker" / "kubernetes"))
    try:
        set_gpus(node, sum(nominal_gpus().values()))
        # Some builds of the kubelet want this ConfigMap in every namespace, and wait for it.
        kubectl("create", "configmap", "openshift-service-ca.crt", "-n", NAMESPACE, check=False)
        kubectl("apply", "-k", str(EXAMPLE))
        is_good = report(*run(seconds), seconds / HOUR_MINUTES)
    finally:
        kubectl("delete", "namespace", NAMESPACE, "--wait")
        kubectl("delete", "-k", str(EXAMPLE), "--ignore-not-found")
        set_gpus(node, None)
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
