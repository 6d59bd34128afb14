"""What a cluster costs: Airflow's share of a stage that runs in a pod, and the time that a killed gang loses.

    KUBECONFIG=… python benchmarks/kubernetes_stages.py [ROUNDS]

Needs what tests/kubernetes needs (see tests/kubernetes/conftest.py); without a cluster it says so and measures nothing. The floor of a pod
is measured in the same run: the same image started by the API alone, from its creation to its end, doing nothing.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "plugins")]

from tests.chaos.test_kills import steps_done  # noqa: E402
from tests.kubernetes.cluster_installation import NAMESPACE, ClusterInstallation, kubectl  # noqa: E402
from tests.kubernetes.conftest import HOST, IMAGE, reason_to_skip  # noqa: E402
from tests.kubernetes.test_kills_in_pods import NIGHT, kill_member  # noqa: E402

STAGES = ("ingest", "validate", "prepare", "train", "evaluate", "promote")
MANY_STEPS = 150


def pod_floor_seconds(rounds: int) -> list[float]:
    """Return the seconds from creating a pod of the image to its end, for a process that imports nothing."""
    found = []
    security = {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    for number in range(rounds):
        container = {"name": "stage", "image": IMAGE, "command": ["python", "-c", "pass"], "securityContext": security}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"floor-{number}", "namespace": NAMESPACE}}
        pod["spec"] = {"restartPolicy": "Never", "containers": [container]}
        started_at = time.monotonic()
        kubectl("create", "-f", "-", text=json.dumps(pod))
        kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", f"pod/floor-{number}", "-n", NAMESPACE, "--timeout=60s")
        found.append(time.monotonic() - started_at)
        kubectl("delete", "pod", f"floor-{number}", "-n", NAMESPACE)
    return found


def overheads(on_cluster: ClusterInstallation, name: str, rounds: int) -> dict[str, list[float]]:
    """Return stage to seconds of its task less the seconds of its process's work, as the stage itself timed it."""
    found: dict[str, list[float]] = {stage: [] for stage in STAGES}
    for _ in range(rounds):
        run_id = on_cluster.trigger(name, {"as_of": NIGHT["as_of"], "force": True})
        succeed(on_cluster, name, run_id)
        tasks = on_cluster.tasks(name, run_id)
        for stage in STAGES:
            ran = instant(tasks[stage]["end_date"]) - instant(tasks[stage]["start_date"])
            found[stage].append(ran - on_cluster.result(name, run_id, stage).timings["total"])
    return found


def relaunches(on_cluster: ClusterInstallation, name: str, rounds: int) -> list[float]:
    """Return the seconds from kill -9 of a gang's second member to its first step after the relaunch."""
    found = []
    for _ in range(rounds):
        run_id = on_cluster.trigger(name, NIGHT)
        under_way = partial(has_begun, on_cluster, run_id, name)
        on_cluster.until(under_way, "training well under way", timeout_seconds=300)
        killed_at = time.time()
        kill_member(on_cluster, name)
        succeed(on_cluster, name, run_id)
        found.append(first_step_at(on_cluster, name, run_id, killed_at) - killed_at)
    return found


def has_begun(on_cluster: ClusterInstallation, run_id: str, name: str) -> bool:
    return steps_done(on_cluster, run_id, name) > MANY_STEPS


def succeed(on_cluster: ClusterInstallation, name: str, run_id: str) -> None:
    if on_cluster.wait(name, run_id, timeout_seconds=600) != "success":
        raise SystemExit(on_cluster.why(name, run_id))


def first_step_at(on_cluster: ClusterInstallation, name: str, run_id: str, killed_at: float) -> float:
    """Return when the relaunched training said its first step, from the stage's own log, which has its pod's clock to the second."""
    lines = on_cluster.full_log(name, run_id, "train").splitlines()
    resumed = next(number for number, line in enumerate(lines) if "resuming after step" in line)
    line = next(line for line in lines[resumed:] if re.search(r"\d of [\d,]+ steps", line))
    hours, minutes, seconds = (int(part) for part in line.split()[0].split(":"))
    day = datetime.fromtimestamp(killed_at)
    return day.replace(hour=hours, minute=minutes, second=seconds, microsecond=0).timestamp() + 1.0


def instant(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def row(name: str, values: list[float], *, floor: float | None = None) -> None:
    middle = statistics.median(values)
    ratio = f"{middle / floor:5.1f} x the floor" if floor else ""
    print(f"{name:<44} {middle:6.1f} s   {min(values):5.1f} to {max(values):5.1f}   {ratio}")


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    reason = reason_to_skip()
    if reason:
        print(f"not measured: {reason}")
        return
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nightshift-bench-")))
        home.chmod(0o755)
        on_cluster: Any = ClusterInstallation.on(stack, home, image=IMAGE, host=HOST)
        floor = pod_floor_seconds(rounds + 2)
        small = on_cluster.add_pipeline("bench_small")
        found = overheads(on_cluster, small, rounds)
        gang = on_cluster.copy_with_placement("search_ranking", "bench_gang", {"nodes": 2, "processes_per_node": 1, "cpus": 0.4})
        lost = relaunches(on_cluster, gang, rounds)
        print(f"{'':<44} {'median':>8}   {'range':>12}")
        row("a pod of the image that does nothing (floor)", floor)
        for stage in STAGES:
            row(f"{stage}: task less the stage's own work", found[stage], floor=statistics.median(floor))
        row("kill -9 of a gang's member to its next step", lost)


if __name__ == "__main__":
    main()
