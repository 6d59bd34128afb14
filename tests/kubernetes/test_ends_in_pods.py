"""What a cluster does to pods, and what the task's log says of it."""

from __future__ import annotations

import pytest

from tests.kubernetes.cluster_installation import NAMESPACE, ClusterInstallation, filler, kubectl, starts_gangs_as_a_whole

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow, pytest.mark.timeout(900)]

NIGHT = {"as_of": "2026-02-01T02:00:00+00:00"}
RUN_SECONDS = 400.0


def test_an_image_that_does_not_exist_fails_with_its_name(on_cluster: ClusterInstallation) -> None:
    name = on_cluster.add_pipeline("no_image")
    with on_cluster.placing(image="localhost/there-is-none:1", image_timeout="10s"):
        run_id = on_cluster.trigger(name, NIGHT)
        assert on_cluster.wait(name, run_id, timeout_seconds=RUN_SECONDS) == "failed"
    log = on_cluster.full_log(name, run_id, "ingest")
    assert "[pod.image] image localhost/there-is-none:1 cannot be pulled" in log
    assert on_cluster.tasks(name, run_id)["ingest"]["try_number"] == 1, "the same would happen again"


def test_a_pod_that_cannot_be_scheduled_says_why_and_fails_when_its_time_is_over(on_cluster: ClusterInstallation) -> None:
    name = on_cluster.add_pipeline("no_room")
    with on_cluster.placing(resources={"default": {"cpus": 100, "memory": "1GiB"}}, schedule_timeout="20s"):
        run_id = on_cluster.trigger(name, NIGHT)
        assert on_cluster.wait(name, run_id, timeout_seconds=RUN_SECONDS) == "failed"
    log = on_cluster.full_log(name, run_id, "ingest")
    assert "no place yet: 0/1 nodes are available: 1 Insufficient cpu" in log
    assert "[pod.unschedulable]" in log
    assert "waited 20s" in log


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_training_without_enough_memory_is_launched_twice_and_says_so(on_cluster: ClusterInstallation, nodes: int) -> None:
    placement = {"nodes": nodes, "processes_per_node": 1, "cpus": 0.3, "memory": "128MiB"}
    name = on_cluster.copy_with_placement("search_ranking", f"small_memory_{nodes}", placement)
    run_id = on_cluster.trigger(name, NIGHT)
    assert on_cluster.wait(name, run_id, timeout_seconds=RUN_SECONDS) == "failed"
    log = on_cluster.full_log(name, run_id, "train")
    assert "out of memory: killed at its limit of 128MiB" in log
    assert "launch 2: " in log
    assert "launch 3: " not in log
    assert on_cluster.tasks(name, run_id)["train"]["try_number"] == 1


def test_a_gang_of_which_one_member_fits_waits_as_a_whole_and_starts_by_itself(on_cluster: ClusterInstallation) -> None:
    if not starts_gangs_as_a_whole():
        pytest.skip("the cluster's scheduler places members one by one")
    name = on_cluster.copy_with_placement("search_ranking", "waiting_gang", {"nodes": 2, "processes_per_node": 1, "cpus": 0.8})
    run_id = ""
    with on_cluster.placing(schedule_timeout="10m"), filler(cpus="1"):
        run_id = on_cluster.trigger(name, {**NIGHT, "train": {"epochs": 1}})
        on_cluster.until(
            lambda: (
                len(on_cluster.pods(pipeline=name, stage="train")) == 2 and "no place yet" in on_cluster.full_log(name, run_id, "train")
            ),
            "a gang that waits, and says why",
            timeout_seconds=200,
        )
        phases = [pod["status"]["phase"] for pod in on_cluster.pods(pipeline=name, stage="train")]
        assert phases == ["Pending", "Pending"], "none may start"
        assert not any(pod["spec"].get("nodeName") for pod in on_cluster.pods(pipeline=name, stage="train"))
    assert on_cluster.wait(name, run_id, timeout_seconds=RUN_SECONDS) == "success", on_cluster.why(name, run_id)
    assert "launch 2: " not in on_cluster.full_log(name, run_id, "train")


def test_nobody_reaches_the_image_or_the_namespace_through_a_trigger(on_cluster: ClusterInstallation) -> None:
    name = on_cluster.add_pipeline("asked_for_more")
    run_id = on_cluster.trigger(name, {**NIGHT, "image": "localhost/busybox:1", "namespace": "default"})
    assert on_cluster.wait(name, run_id) == "failed"
    log = on_cluster.full_log(name, run_id, "resolve")
    assert "conf.unknown_key" in log
    assert NAMESPACE not in kubectl("get", "pods", "-n", "default", "-o", "name")
