"""A cluster that is disturbed while a gang trains: the same weights as in one pod, and nothing is left in the cluster.

Only a real cluster shows what a node that is drained, an API server that stops, and a task that is cleared do to a Job and its pods.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.chaos.test_kills import resumed
from tests.kubernetes.cluster_installation import ClusterInstallation, kubectl
from tests.kubernetes.test_kills_in_pods import NIGHT, PIPELINE, RUN_SECONDS, start, weights
from training.contracts import StageResult

pytestmark = [pytest.mark.kubernetes, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(900)]

API_SERVER = "NIGHTSHIFT_TEST_API_SERVER_PID"
STOPPED_SECONDS = 60
SUMMED = {"  precision: auto": "  optimizer: sgd\n  micro_batch_size: 512\n  precision: auto"}
"""One process adds up the gradients of eight shares, as a gang of eight does of one each. Not with adamw: where a gradient is 0 but for
rounding, as softmax makes many of a ranking, its step is the sign of the rounding."""


@pytest.fixture(scope="module")
def undisturbed(on_cluster: ClusterInstallation) -> str:
    """Digest of the weights of a training in a single pod of two processes, that nobody disturbs."""
    return str(weights(on_cluster, PIPELINE, on_cluster.trigger(PIPELINE, NIGHT)).scalars["weights_digest"])


@pytest.fixture(scope="module")
def gang(on_cluster: ClusterInstallation) -> str:
    """A pipeline of the same training on two nodes of one process; its name."""
    return on_cluster.copy_with_placement(PIPELINE, "disturbed_gang", {"nodes": 2, "processes_per_node": 1, "cpus": 0.4})


def launches(on_cluster: ClusterInstallation, name: str) -> set[str]:
    return {pod["metadata"]["labels"]["nightshift.io/launch"] for pod in on_cluster.pods(pipeline=name, stage="train")}


def test_a_gang_whose_node_is_drained_goes_on_when_there_is_a_node_again(
    on_cluster: ClusterInstallation, undisturbed: str, gang: str
) -> None:
    run_id = start(on_cluster, gang)
    (first,) = launches(on_cluster, gang)
    node = on_cluster.pods(pipeline=gang, stage="train")[0]["spec"]["nodeName"]
    try:
        kubectl("drain", node, "--force", "--delete-emptydir-data", f"--pod-selector=nightshift.io/pipeline={gang}", "--timeout=120s")
        on_cluster.until(lambda: launches(on_cluster, gang) - {first}, "the gang's next launch", timeout_seconds=120)
        on_cluster.until(
            lambda: "no place yet" in on_cluster.full_log(gang, run_id, "train"), "why the next launch waits", timeout_seconds=120
        )
    finally:
        kubectl("uncordon", node)
    result = weights(on_cluster, gang, run_id)
    assert result.scalars["weights_digest"] == undisturbed
    assert result.attempts == 2
    assert resumed(on_cluster, result, gang)


@pytest.mark.skipif(API_SERVER not in os.environ, reason=f"{API_SERVER} names no process")
def test_a_gang_trains_on_while_the_api_server_is_stopped_for_a_minute(
    on_cluster: ClusterInstallation, undisturbed: str, gang: str
) -> None:
    run_id = start(on_cluster, gang)
    api_server = int(os.environ[API_SERVER])
    os.kill(api_server, signal.SIGSTOP)
    try:
        time.sleep(STOPPED_SECONDS)
    finally:
        os.kill(api_server, signal.SIGCONT)
    result = weights(on_cluster, gang, run_id)
    assert result.scalars["weights_digest"] == undisturbed
    assert result.attempts == 1, "the members were not started again"


def test_a_task_that_is_cleared_while_its_gang_trains_goes_on_from_the_last_commit(
    on_cluster: ClusterInstallation, undisturbed: str, gang: str
) -> None:
    run_id = start(on_cluster, gang)
    (first,) = launches(on_cluster, gang)
    body = {"dry_run": False, "dag_run_id": run_id, "task_ids": ["train"], "include_downstream": True, "only_failed": False}
    on_cluster.api.post(f"/dags/{gang}/clearTaskInstances", body)
    on_cluster.until(lambda: launches(on_cluster, gang) - {first}, "the gang's next launch", timeout_seconds=180)
    result = weights(on_cluster, gang, run_id)
    assert result.scalars["weights_digest"] == undisturbed
    assert resumed(on_cluster, result, gang)


def test_a_gang_of_eight_trains_the_model_of_one_process(on_cluster: ClusterInstallation, tmp_path: Path) -> None:
    night = {**NIGHT, "train": {"epochs": 1, "batch_size": 4096}}
    found = []
    for name, nodes in (("one_process", 1), ("gang_of_eight", 8)):
        placement = {"nodes": nodes, "processes_per_node": 1, "cpus": 0.15, "memory": "1GiB"}
        on_cluster.copy_with_placement(PIPELINE, name, placement, **SUMMED)
        run_id = on_cluster.trigger(name, night)
        assert on_cluster.wait(name, run_id, timeout_seconds=RUN_SECONDS) == "success", on_cluster.why(name, run_id)
        found.append(weights_in(on_cluster, on_cluster.result(name, run_id, "train"), tmp_path / name))
    one, eight = found
    assert one.keys() == eight.keys()
    differences = {name: float((one[name] - eight[name]).abs().max()) for name in one}
    # docs/large-models.md: the limit of the other layouts of data ranks.
    assert max(differences.values()) < 1e-6, differences


def weights_in(on_cluster: ClusterInstallation, result: StageResult, folder: Path) -> dict[str, torch.Tensor]:
    manifests = on_cluster.store.manifests
    return load_file(manifests.fetch(manifests.get(result.artifact_uri, kind="model"), folder) / "weights.safetensors")
