"""A process of a pod that makes no progress is ended with its stacks in the task's log, and relaunched; one that moves is not ended."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.test_kills import attempts_of, steps_done
from tests.kubernetes.cluster_installation import NAMESPACE, ClusterInstallation, kubectl
from tests.kubernetes.hanging import SIGNALS
from tests.kubernetes.test_kills_in_pods import NIGHT, PIPELINE, TRAINING, second_member, weights
from training.runtime.attempt_errors import UNKNOWN

pytestmark = [pytest.mark.kubernetes, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(1500)]

LIMITS = {"timezone: UTC": "timezone: UTC\ntimeout: {step: 15s, part: 30s}"}
SOME_STEPS = 10
LONG = {**NIGHT, "train": {**TRAINING, "epochs": 8}}
"""Not at its end before the last hang."""


@pytest.mark.parametrize(
    ("name", "placement"),
    [
        ("hanging_in_a_pod", {"nodes": 1, "processes_per_node": 2}),
        ("hanging_in_a_gang", {"nodes": 2, "processes_per_node": 1, "cpus": 0.4}),
    ],
)
def test_each_hang_of_a_rank_and_of_an_evaluation_ends_it_with_its_stacks_and_the_night_goes_on(
    on_cluster: ClusterInstallation, name: str, placement: dict[str, Any]
) -> None:
    kubectl("create", "configmap", "hanging", "-n", NAMESPACE, "--from-file=sitecustomize.py=tests/kubernetes/hanging.py", check=False)
    on_cluster.copy_with_placement(PIPELINE, name, placement, **LIMITS)
    run_id = on_cluster.trigger(name, LONG)
    for number, how in enumerate(SIGNALS, 1):

        def is_under_way(number: int = number) -> bool:
            return len(list(attempts_of(on_cluster, run_id, name))) == number and steps_done(on_cluster, run_id, name) > SOME_STEPS

        on_cluster.until(is_under_way, f"steps of attempt {number}", timeout_seconds=300)
        kubectl("exec", "-n", NAMESPACE, second_member(on_cluster, name), "--", "python", "-m", "sitecustomize", how)

    on_cluster.until(lambda: running(on_cluster, name, "evaluate"), "an evaluation", timeout_seconds=500)
    kubectl("exec", "-n", NAMESPACE, running(on_cluster, name, "evaluate")[0], "--", "python", "-m", "sitecustomize", "with_gil")

    result = weights(on_cluster, name, run_id)
    assert result.attempts == len(SIGNALS) + 1, "nothing was ended that moved"
    log = on_cluster.full_log(name, run_id, "train")
    for number, _ in enumerate(SIGNALS, 1):
        assert f"relaunch {number} of 8: [stage.hung] rank 1: no progress in step within the limit of 15 s" in log
    assert log.count('sitecustomize.py", line') >= len(SIGNALS), "the stacks"
    log = on_cluster.full_log(name, run_id, "evaluate")
    # It held the GIL before or after its first heartbeat, which says that it is in a part.
    assert "relaunch 1 of 8: [stage.hung] rank 0: no progress in " in log
    assert "raise timeout.part in" in log or UNKNOWN.name in log
    assert 'sitecustomize.py", line' in log
    assert on_cluster.result(name, run_id, "evaluate").attempts == 2


def running(on_cluster: ClusterInstallation, name: str, stage: str) -> list[str]:
    return [pod["metadata"]["name"] for pod in on_cluster.pods(pipeline=name, stage=stage) if pod["status"]["phase"] == "Running"]
