"""Two gangs that stand in each other's way on a cluster that places members one by one: no half of one is held for long, and both end.

Only a real scheduler shows which members get a node, and only a real kubelet what becomes of those that wait for the others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.integration.installation import ENDED
from tests.kubernetes.cluster_installation import ClusterInstallation, filler, starts_gangs_as_a_whole
from tests.kubernetes.test_kills_in_pods import NIGHT, PIPELINE, weights

pytestmark = [pytest.mark.kubernetes, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(1500)]

NODES = 4
CPUS = 0.32
"""Of a member: six of the eight fit on the node of two processors."""
FILLER_CPUS = "1690m"
"""Leaves room for one pod of another stage, and for no member."""
PARTIAL_WAIT_SECONDS = 10
HANDOVER_SECONDS = 60
"""The trigger gives up on a partial gang; a worker's task deletes its Job. On a loaded machine a worker takes its time to start."""


@dataclass
class Holding:
    """Since when, and for how long at most, a gang has had nodes for a part of its members."""

    longest_seconds: float = 0.0
    launches: set[str] = field(default_factory=set)
    """Those that were seen with a part of their nodes."""
    _since: datetime | None = None

    def note(self, pods: list[dict[str, Any]]) -> None:
        staying = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        placed = [pod for pod in staying if pod["spec"].get("nodeName")]
        if not 0 < len(placed) < NODES or any(pod["status"]["phase"] == "Succeeded" for pod in placed):
            self._since = None
            return
        now = datetime.now(UTC)
        self._since = self._since or now
        self.longest_seconds = max(self.longest_seconds, (now - self._since).total_seconds())
        self.launches.add(placed[0]["metadata"]["labels"]["nightshift.io/launch"])


def test_two_gangs_with_room_for_one_and_a_half_give_back_what_they_hold_and_both_end(on_cluster: ClusterInstallation) -> None:
    if starts_gangs_as_a_whole():
        pytest.skip("the cluster's scheduler places all members of a gang or none")
    placement = {"nodes": NODES, "processes_per_node": 1, "cpus": CPUS, "memory": "1GiB"}
    names = [on_cluster.copy_with_placement(PIPELINE, name, placement) for name in ("gang_one", "gang_two")]
    held = {name: Holding() for name in names}
    with on_cluster.placing(partial_wait=f"{PARTIAL_WAIT_SECONDS}s"):
        with filler(cpus=FILLER_CPUS):
            runs = {name: on_cluster.trigger(name, NIGHT) for name in names}
            for name in names:
                on_cluster.until(
                    lambda name=name: len(on_cluster.pods(pipeline=name, stage="train")) == NODES, f"all of {name}", timeout_seconds=400
                )

        def both_ended() -> bool:
            for name in names:
                held[name].note(on_cluster.pods(pipeline=name, stage="train"))
            return all(on_cluster.api.get(f"/dags/{name}/dagRuns/{runs[name]}")["state"] in ENDED for name in names)

        on_cluster.until(both_ended, "the end of both", timeout_seconds=900, why=lambda: str(held))
    results = [weights(on_cluster, name, runs[name]) for name in names]
    assert results[0].scalars["weights_digest"] == results[1].scalars["weights_digest"]
    assert max(gang.longest_seconds for gang in held.values()) < PARTIAL_WAIT_SECONDS + HANDOVER_SECONDS, held
    logs = [on_cluster.full_log(name, runs[name], "train") for name in names]
    released = [log.count("which uses no relaunch: [gang.partial]") for log in logs]
    assert sum(released) >= 1, "six members fit: one gang at least has a part of its nodes"
    for log, count in zip(logs, released, strict=True):
        assert f"launch {count + 1}: " in log, "the next launch asks for all again"
        assert not re.search(r"relaunch \d", log), "no budget is used"
