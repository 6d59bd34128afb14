"""Kills on a real cluster, in the middle of training: the night ends in success with the same bits, and nothing is left in the cluster."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.test_kills import attempts_of, resumed, steps_done
from tests.kubernetes.cluster_installation import NAMESPACE, ClusterInstallation, kubectl

pytestmark = [pytest.mark.kubernetes, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(900)]

PIPELINE = "search_ranking"
TRAINING = {"epochs": 4, "batch_size": 512}
NIGHT = {"as_of": "2026-02-01T02:00:00+00:00", "force": True, "train": TRAINING}
RUN_SECONDS = 500.0
MANY_STEPS = 150

Kill = Callable[[ClusterInstallation, str], None]


@pytest.fixture(scope="module")
def undisturbed(on_cluster: ClusterInstallation) -> str:
    """Digest of the weights of a training in a single pod of two processes, that nobody disturbs."""
    run_id = on_cluster.trigger(PIPELINE, NIGHT)
    assert on_cluster.wait(PIPELINE, run_id, timeout_seconds=RUN_SECONDS) == "success", on_cluster.why(PIPELINE, run_id)
    return str(on_cluster.result(PIPELINE, run_id, "train").scalars["weights_digest"])


@pytest.fixture(scope="module")
def gang(on_cluster: ClusterInstallation) -> str:
    """A pipeline of the same training on two nodes of one process; its name."""
    return on_cluster.copy_with_placement(PIPELINE, "gang_ranking", {"nodes": 2, "processes_per_node": 1, "cpus": 0.4})


def kill_member(on_cluster: ClusterInstallation, name: str) -> None:
    """kill -9 of the second member's training process, from inside its own container: what a kernel does."""
    kubectl("exec", "-n", NAMESPACE, second_member(on_cluster, name), "--", *KILL_RANK)


KILL_RANK = (
    "python",
    "-c",
    "import os, signal, pathlib\n"
    "for path in pathlib.Path('/proc').glob('[0-9]*'):\n"
    "    try: name = (path / 'comm').read_bytes(); line = (path / 'cmdline').read_bytes()\n"
    "    except OSError: continue\n"
    "    if name.startswith(b'rank ') and b'training.stages.train' in line: os.kill(int(path.name), signal.SIGKILL)\n",
)


def second_member(on_cluster: ClusterInstallation, name: str) -> str:
    members = on_cluster.pods(pipeline=name, stage="train")
    found = [pod for pod in members if pod["metadata"]["labels"].get("batch.kubernetes.io/job-completion-index", "0") == "1"]
    return str((found or members)[0]["metadata"]["name"])


def delete_pod(on_cluster: ClusterInstallation, name: str) -> None:
    kubectl("delete", "pod", "-n", NAMESPACE, second_member(on_cluster, name), "--wait=false")


def evict(on_cluster: ClusterInstallation, name: str) -> None:
    pod = second_member(on_cluster, name)
    body = f'{{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {{"name": "{pod}", "namespace": "{NAMESPACE}"}}}}'
    kubectl("create", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction", "-f", "-", text=body)


def kill_scheduler(on_cluster: ClusterInstallation, name: str) -> None:
    del name
    on_cluster.kill("scheduler")


def kill_triggerer(on_cluster: ClusterInstallation, name: str) -> None:
    del name
    on_cluster.kill("triggerer")


def start(on_cluster: ClusterInstallation, name: str) -> str:
    run_id = on_cluster.trigger(name, NIGHT)
    on_cluster.until(lambda: steps_done(on_cluster, run_id, name) > MANY_STEPS, "training well under way", timeout_seconds=300)
    return run_id


def weights(on_cluster: ClusterInstallation, name: str, run_id: str) -> Any:
    assert on_cluster.wait(name, run_id, timeout_seconds=RUN_SECONDS) == "success", on_cluster.why(name, run_id)
    return on_cluster.result(name, run_id, "train")


@pytest.mark.parametrize("kill", [kill_member, delete_pod, evict, kill_scheduler, kill_triggerer])
def test_one_pod_survives(on_cluster: ClusterInstallation, undisturbed: str, kill: Kill) -> None:
    run_id = start(on_cluster, PIPELINE)
    kill(on_cluster, PIPELINE)
    result = weights(on_cluster, PIPELINE, run_id)
    assert result.scalars["weights_digest"] == undisturbed
    log = on_cluster.full_log(PIPELINE, run_id, "train")
    launches = set(re.findall(r"launch \d+: [\w-]+", log))
    if kill in (kill_scheduler, kill_triggerer):
        assert result.attempts == 1, "the pod went on, and was found again"
        assert len(launches) == 1
        return
    assert result.attempts == 2
    assert resumed(on_cluster, result, PIPELINE)
    assert "resuming after step" in log, "the log goes on with that of the pod that took its place"
    assert len(launches) == (1 if kill is delete_pod else 2), "a pod that saved what it had and was deleted is made again by its Job"
    assert ("relaunch 1 of" in log) == (kill is not delete_pod)


@pytest.mark.parametrize("kill", [kill_member, delete_pod, evict])
def test_a_gang_survives(on_cluster: ClusterInstallation, undisturbed: str, gang: str, kill: Kill) -> None:
    run_id = start(on_cluster, gang)
    kill(on_cluster, gang)
    result = weights(on_cluster, gang, run_id)
    assert result.scalars["weights_digest"] == undisturbed, "two pods of one process make the bits of one pod of two"
    assert result.attempts == 2
    assert resumed(on_cluster, result, gang)
    assert "relaunch 1 of" in on_cluster.full_log(gang, run_id, "train")


def test_a_cancel_ends_all_members_after_a_checkpoint(on_cluster: ClusterInstallation, gang: str) -> None:
    run_id = start(on_cluster, gang)
    steps = steps_done(on_cluster, run_id, gang)
    on_cluster.api.patch(f"/dags/{gang}/dagRuns/{run_id}", {"state": "failed"})
    on_cluster.until(lambda: not on_cluster.pods(pipeline=gang, stage="train"), "all members gone", timeout_seconds=60)
    (work_id, _), *_ = attempts_of(on_cluster, run_id, gang)
    journal = on_cluster.store.work_folder(gang, "train", work_id).chain().history()
    saved = [entry.value["payload"]["step"] for entry in journal if entry.value["kind"] == "checkpoint"]
    assert saved
    assert saved[-1] >= steps
