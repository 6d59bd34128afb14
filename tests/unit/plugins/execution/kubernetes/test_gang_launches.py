"""Gangs: a Job and its Service, elastic sizes, and the node of a straggler."""

from typing import Any

import pytest

from nightshift.execution.kubernetes.status import LaunchStatus
from tests.unit.plugins.execution.kubernetes.conftest import FIRST, SECOND, Night, Nights
from tests.unit.plugins.execution.kubernetes.kubernetes_api import KubernetesApi

pytestmark = pytest.mark.usefixtures("known_names")


def test_a_gang_is_a_job_and_a_service_that_goes_with_it(api: KubernetesApi, night: Nights) -> None:
    work = night({"nodes": 2, "processes_per_node": 1})
    assert work.advance().kind == "Job"
    assert (api.names("jobs"), api.names("services"), api.names("pods")) == ([FIRST], [FIRST], [])
    assert api.objects["services", FIRST]["metadata"]["ownerReferences"][0]["uid"] == api.objects["jobs", FIRST]["metadata"]["uid"]


def test_a_worker_killed_between_job_and_service_is_made_up_for(api: KubernetesApi, night: Nights) -> None:
    work = night({"nodes": 2, "processes_per_node": 1})
    work.advance()
    api.remove(FIRST, "services")
    assert work.advance().name == FIRST
    assert api.names("services") == [FIRST]
    assert api.creates["jobs", FIRST] == 1


def test_a_suspended_job_is_waited_for(api: KubernetesApi, night: Nights) -> None:
    work = night({"nodes": 2, "processes_per_node": 1}, queues={"default": "shared"})
    for _ in range(5):
        assert work.advance().name == FIRST
    assert api.objects["jobs", FIRST]["spec"]["suspend"] is True
    assert api.creates["jobs", FIRST] == 1


def test_an_elastic_gang_that_was_lost_continues_with_fewer_when_there_is_no_room_for_all(api: KubernetesApi, night: Nights) -> None:
    work = night({"nodes": 4, "processes_per_node": 1, "min_nodes": 1})
    first = work.advance()
    assert first.limits.unplaced_seconds == 0, "the first start waits for all"
    work.begin()
    api.remove(FIRST, "jobs")
    second = work.advance()
    assert second.limits.unplaced_seconds > 0
    assert api.objects["jobs", SECOND]["spec"]["completions"] == 4
    third = work.advance(watched=2, reported=LaunchStatus(phase="ended", code="gang.unplaced", words="no place"))
    # 4096 rows a step are not to be shared by three.
    assert api.objects["jobs", third.name]["spec"]["completions"] == 2
    assert work.request().parameters["elastic"] is True
    fourth = work.advance(watched=3, reported=LaunchStatus(phase="ended", code="gang.unplaced", words="no place"))
    assert api.objects["jobs", fourth.name]["spec"]["completions"] == 1
    assert api.names("jobs") == [fourth.name]


def name_straggler(work: Night, node: str) -> None:
    """A rank of the newest launch is named as slow."""
    work.work_folder.write_straggler(work.request().attempt_id, 1, {"rank": 1, "node": node, "step": 40, "ratio": 2.5, "words": "slow"})


def node_affinity(api: KubernetesApi, name: str) -> dict[str, Any]:
    found: dict[str, Any] = api.objects["jobs", name]["spec"]["template"]["spec"].get("affinity", {}).get("nodeAffinity", {})
    return found


UNPLACED = LaunchStatus(phase="ended", code="gang.unplaced", words="no place")


def test_an_elastic_gang_is_relaunched_without_the_node_of_its_straggler(api: KubernetesApi, night: Nights) -> None:
    work = night({"nodes": 4, "processes_per_node": 1, "min_nodes": 1}, infrastructure=9)
    work.advance()
    assert node_affinity(api, FIRST) == {}
    work.begin()
    name_straggler(work, "node-b")
    api.remove(FIRST, "jobs")
    second = work.advance()
    (term,) = node_affinity(api, second.name)["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchFields"] == [{"key": "metadata.name", "operator": "NotIn", "values": ["node-b"]}]
    assert "4 nodes without node-b (slow before)" in work.said[-1]
    # There is no fifth node: it goes on with fewer, still without the slow one.
    third = work.advance(watched=2, reported=UNPLACED)
    assert api.objects["jobs", third.name]["spec"]["completions"] == 2
    assert "requiredDuringSchedulingIgnoredDuringExecution" in node_affinity(api, third.name)


def test_a_gang_that_finds_no_place_without_the_slow_node_takes_it_again(api: KubernetesApi, night: Nights) -> None:
    work = night({"nodes": 8, "processes_per_node": 1, "min_nodes": 1}, infrastructure=9)
    work.advance()
    work.begin()
    name_straggler(work, "node-b")
    api.remove(FIRST, "jobs")
    work.advance()
    work.advance(watched=2, reported=UNPLACED)
    fourth = work.advance(watched=3, reported=UNPLACED)
    assert api.objects["jobs", fourth.name]["spec"]["completions"] == 2
    assert node_affinity(api, fourth.name) == {}


@pytest.mark.parametrize(
    ("placement", "infrastructure"),
    [
        ({"nodes": 2, "processes_per_node": 1}, 9),
        ({"nodes": 4, "processes_per_node": 1, "min_nodes": 1}, 2),
    ],
    ids=["fixed size", "few relaunches left"],
)
def test_a_gang_that_must_not_wait_prefers_other_nodes(
    api: KubernetesApi, night: Nights, placement: dict[str, int], infrastructure: int
) -> None:
    work = night(placement, infrastructure=infrastructure)
    work.advance()
    work.begin()
    name_straggler(work, "node-b")
    api.remove(FIRST, "jobs")
    second = work.advance()
    assert list(node_affinity(api, second.name)) == ["preferredDuringSchedulingIgnoredDuringExecution"]
    assert f"{placement['nodes']} nodes preferably not on node-b (slow before)" in work.said[-1]


def test_damaged_note_of_a_straggler_does_not_stop_a_relaunch(api: KubernetesApi, night: Nights) -> None:
    work = night({"nodes": 2, "processes_per_node": 1})
    work.advance()
    work.begin()
    name_straggler(work, "node-b")
    attempt_id = work.request().attempt_id
    work.store.bucket.put(work.store.bucket.key(f"{work.work_folder.uri}/attempts/{attempt_id}/stragglers/1.json"), b"{")
    api.remove(FIRST, "jobs")
    assert node_affinity(api, work.advance().name) == {}
    assert any("the stragglers of launch 1 are not known" in line for line in work.said)
