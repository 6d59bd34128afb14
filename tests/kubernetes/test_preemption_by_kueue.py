"""A gang that Kueue preempts again and again is the same Job to its end, uses no budget, and ends with the weights of an undisturbed one.

Only Kueue shows in which order it suspends a Job, ends its pods and admits it again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial

import pytest
import yaml

from nightshift.execution.kubernetes.config import Cluster
from nightshift.execution.kubernetes.launch_request import Launch
from tests.chaos.test_kills import resumed, steps_done
from tests.kubernetes.cluster_installation import NAMESPACE, ClusterInstallation, kubectl
from tests.kubernetes.queues import cluster_queue, stand_in, why_no_kueue
from tests.kubernetes.test_kills_in_pods import PIPELINE, weights

pytestmark = [pytest.mark.kubernetes, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(1800)]

PREEMPTIONS = 9
NIGHT = {"as_of": "2026-02-01T02:00:00+00:00", "force": True, "train": {"epochs": 60, "batch_size": 512}}
QUEUE = "only-one-gang"
GANG = {"nodes": 2, "processes_per_node": 1, "cpus": 0.4, "priority": "exploration"}


@pytest.fixture(scope="module")
def undisturbed(on_cluster: ClusterInstallation) -> str:
    """Digest of the weights of the same training in a single pod of two processes, without a queue."""
    return str(weights(on_cluster, PIPELINE, on_cluster.trigger(PIPELINE, NIGHT)).scalars["weights_digest"])


@pytest.fixture
def queue(on_cluster: ClusterInstallation) -> Iterator[str]:
    """A queue with room for one gang, in which all stages wait."""
    if reason := why_no_kueue():
        pytest.skip(reason)
    objects = json.dumps({"apiVersion": "v1", "kind": "List", "items": cluster_queue(QUEUE, cpu="1", memory="100Gi")})
    kubectl("apply", "-f", "-", text=objects)
    try:
        with on_cluster.placing(queues={"default": QUEUE}):
            yield QUEUE
    finally:
        kubectl("delete", "-f", "-", text=objects)


def preempt(on_cluster: ClusterInstallation, name: str) -> None:
    """Let a Job of a higher priority take the gang's place for a second."""
    values = Cluster.model_validate(yaml.safe_load(on_cluster.placement.read_text(encoding="utf-8")))
    asked = {"pipeline": name, "stage": "train", "owner": "tests", "attempt_id": name, "request_uri": "file:///none"}
    kubectl("create", "-f", "-", text=json.dumps(stand_in(Launch(name=name, cpus=0.5, priority="production", **asked), values, seconds=1)))
    kubectl("wait", "--for=condition=Complete", f"job/{name}", "-n", NAMESPACE, "--timeout=120s")
    kubectl("delete", "job", name, "-n", NAMESPACE, "--wait")


def has_gone_on(on_cluster: ClusterInstallation, run_id: str, name: str, before: int) -> bool:
    return steps_done(on_cluster, run_id, name) > before


def test_a_gang_preempted_nine_times_is_the_same_job_with_the_same_weights_and_no_budget_used(
    on_cluster: ClusterInstallation, undisturbed: str, queue: str
) -> None:
    del queue
    name = on_cluster.copy_with_placement(PIPELINE, "preempted_gang", GANG)
    run_id = on_cluster.trigger(name, NIGHT)
    jobs: set[str] = set()
    for number in range(PREEMPTIONS):
        before = steps_done(on_cluster, run_id, name)
        on_cluster.until(partial(has_gone_on, on_cluster, run_id, name, before), f"steps after {before}", timeout_seconds=300)
        jobs |= {pod["metadata"]["labels"]["nightshift.io/launch"] for pod in on_cluster.pods(pipeline=name, stage="train")}
        preempt(on_cluster, f"preemptor-{number}")
    result = weights(on_cluster, name, run_id)
    assert result.scalars["weights_digest"] == undisturbed
    assert len(jobs) == 1
    assert result.attempts == PREEMPTIONS + 1, "one start of the processes after each preemption"
    log = on_cluster.full_log(name, run_id, "train")
    assert log.count("[pod.preempted]") == PREEMPTIONS
    assert "launch 2: " not in log
    assert not re.search(r"relaunch \d", log)
    assert resumed(on_cluster, result, name)
