"""What recorded states of a real cluster are read as."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from nightshift.execution.attempt_end import Action, Ended, judge
from nightshift.execution.kubernetes.status import ABSENT, LaunchStatus, look_at_gang, look_at_pod
from nightshift.execution.kubernetes.timeouts import LaunchTimeouts, overdue
from training.contracts import JsonObject

FOLDER = Path(__file__).with_name("recordings")


def recording(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return loaded


def looks(name: str) -> list[LaunchStatus]:
    found = recording(name)
    if found["kind"] == "Pod":
        return [look_at_pod(frame["pods"][0] if frame["pods"] else None) for frame in found["frames"]]
    return [look_at_gang(frame["job"], frame["pods"]) for frame in found["frames"]]


def phases(name: str) -> list[str]:
    """Return the phases in their order, each once for a stay in it."""
    found = [seen.phase for seen in looks(name)]
    return [phase for number, phase in enumerate(found) if number == 0 or found[number - 1] != phase]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pod-succeeds", ["waiting", "running", "ended"]),
        ("pod-fails", ["waiting", "running", "ended"]),
        ("pod-out-of-memory", ["waiting", "running", "ended"]),
        ("pod-deleted", ["waiting", "running", "ended", "absent"]),
        ("gang-succeeds", ["waiting", "running", "ended"]),
        ("gang-loses-a-member", ["waiting", "running", "ended"]),
        ("gang-suspended", ["waiting", "running", "ended"]),
        ("gang-without-room", ["waiting"]),
    ],
)
def test_a_recording_is_read_in_this_order(name: str, expected: list[str]) -> None:
    assert phases(name) == expected


def last_end(name: str) -> LaunchStatus:
    return next(seen for seen in reversed(looks(name)) if seen.phase == "ended")


@pytest.mark.parametrize(
    ("name", "code", "exit_code", "words"),
    [
        ("pod-succeeds", "", 0, "ended with success"),
        ("pod-fails", "pod.failed", 70, "exit code 70 (Error): the loss is not finite"),
        ("pod-out-of-memory", "pod.oom", 137, "out of memory: killed at its limit of 32MiB"),
        ("pod-without-program", "pod.config", 128, "exit code 128 (StartError)"),
        ("pod-evicted", "pod.preempted", 137, "taken away: EvictionByEvictionAPI"),
        ("gang-succeeds", "", 0, "all members ended with success"),
        ("gang-loses-a-member", "pod.failed", 137, "gang-loses-a-member-1-"),
        ("gang-member-out-of-memory", "pod.oom", 137, "out of memory: killed at its limit of 32MiB"),
    ],
)
def test_an_end_is_reported_with_its_reason(name: str, code: str, exit_code: int, words: str) -> None:
    seen = last_end(name)
    assert (seen.code, seen.exit_code) == (code, exit_code)
    assert words in seen.words


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("pod-without-image", "pod.image", "image localhost/there-is-none:1 cannot be pulled"),
        ("pod-without-place", "pod.unschedulable", "no place yet: 0/1 nodes are available: 1 Insufficient cpu"),
        ("gang-without-room", "pod.unschedulable", "0 of 2 members run; gang-without-room-"),
        ("gang-suspended", "gang.queued", "waiting for admission"),
    ],
)
def test_a_wait_is_reported_with_its_reason(name: str, code: str, words: str) -> None:
    waits = [seen for seen in looks(name) if seen.phase == "waiting" and seen.code == code]
    assert waits, [seen.code for seen in looks(name)]
    assert words in waits[-1].words


def test_an_evicted_member_is_reported_by_itself_and_when_it_is_missing_by_its_job() -> None:
    ends = [seen for seen in looks("gang-member-evicted") if seen.phase == "ended"]
    assert {seen.code for seen in ends} == {"pod.preempted"}
    assert "taken away: EvictionByEvictionAPI" in ends[0].words
    assert "has condition DisruptionTarget" in ends[-1].words


def test_a_lost_member_is_the_cause_and_not_those_who_lost_it() -> None:
    frame = recording("gang-loses-a-member")["frames"][-1]
    victim = json.loads(json.dumps(next(pod for pod in frame["pods"] if "-1-" in pod["metadata"]["name"])))
    peer = json.loads(json.dumps(victim).replace("gang-loses-a-member-1-", "gang-loses-a-member-0-"))
    peer["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] = 1
    seen = look_at_gang(frame["job"], [peer, victim])
    assert "-1-" in seen.member
    assert len(seen.failed) == 2


def test_what_is_not_there_is_absent() -> None:
    assert look_at_pod(None) == ABSENT
    assert look_at_gang(None, []) == ABSENT


def test_a_node_that_is_lost_takes_the_pod_with_it() -> None:
    pod = {"metadata": {"name": "p"}, "status": {"phase": "Failed", "reason": "NodeLost", "message": "node is unresponsive"}}
    seen = look_at_pod(pod)
    assert (seen.phase, seen.code, seen.words) == ("ended", "pod.preempted", "taken away: NodeLost node is unresponsive")


@pytest.mark.parametrize(
    ("message", "code", "action"),
    [
        ('Usage of EmptyDir volume "scratch" exceeds the limit "50Gi". ', "pod.storage", Action.FAIL),
        ('Container stage exceeded its local ephemeral storage limit "60Gi". ', "pod.storage", Action.FAIL),
        ("The node was low on resource: ephemeral-storage. Threshold quantity: 10Gi, available: 9Gi. ", "pod.preempted", Action.RELAUNCH),
    ],
)
def test_pod_is_evicted_for_what_it_wrote_or_for_a_full_node(message: str, code: str, action: Action) -> None:
    pod = {"metadata": {"name": "p"}, "status": {"phase": "Failed", "reason": "Evicted", "message": message}}
    seen = look_at_pod(pod)
    assert (seen.code, message.strip() in seen.words) == (code, True)
    lost_peer: JsonObject = {"code": "peer.lost", "exit_code": 75, "message": "rank 1 is gone"}
    assert judge(Ended(exit_code=1, seconds=0.0, code=seen.code, words=seen.words), lost_peer).action is action


NOW = datetime(2026, 2, 1, tzinfo=UTC)
LIMITS = LaunchTimeouts(schedule_seconds=3600, start_seconds=600, image_seconds=300)
EARLIER = "2026-01-31T23:00:00Z"


def late(
    seen: LaunchStatus, *, waited_seconds: float, limits: LaunchTimeouts = LIMITS, bad_image_since: datetime | None = None
) -> LaunchStatus | None:
    return overdue(seen, limits, waited_seconds=waited_seconds, bad_image_since=bad_image_since, now=NOW)


def test_patience_with_a_full_cluster_ends_with_the_schedulers_words() -> None:
    seen = LaunchStatus(phase="waiting", code="pod.unschedulable", words="no place yet: x")
    assert late(seen, waited_seconds=3599) is None
    ended = late(seen, waited_seconds=3601)
    assert ended is not None
    assert (ended.phase, ended.code, ended.words) == ("ended", "pod.unschedulable", "no place yet: x; waited 1h")


def test_patience_with_an_image_is_counted_from_the_first_failed_pull() -> None:
    seen = LaunchStatus(phase="waiting", code="pod.image", words="w", started_at=EARLIER)
    assert late(seen, waited_seconds=9999, limits=LaunchTimeouts(schedule_seconds=1, start_seconds=9999, image_seconds=300)) is None
    ended = late(seen, waited_seconds=1, bad_image_since=datetime(2026, 1, 31, 23, 54, tzinfo=UTC))
    assert ended is not None
    assert ended.words == "w; tried for 5m"


@pytest.mark.parametrize("code", ["pod.image_refused", "pod.config"])
def test_what_does_not_mend_itself_ends_at_once(code: str) -> None:
    ended = late(LaunchStatus(phase="waiting", code=code, words="w"), waited_seconds=0)
    assert ended is not None
    assert ended.phase == "ended"


def test_a_pod_that_has_a_node_is_no_longer_waiting_for_one() -> None:
    assert late(LaunchStatus(phase="waiting", started_at="2026-01-31T23:55:00Z"), waited_seconds=999_999) is None
    ended = late(LaunchStatus(phase="waiting", started_at=EARLIER), waited_seconds=1)
    assert ended is not None
    assert ended.code == "pod.start_timeout"


def test_an_elastic_gang_waits_for_all_its_nodes_only_so_long() -> None:
    limits = LaunchTimeouts(schedule_seconds=3600, start_seconds=600, image_seconds=300, unplaced_seconds=60)
    seen = LaunchStatus(phase="waiting", code="pod.unschedulable", words="w")
    assert late(seen, waited_seconds=59, limits=limits) is None
    ended = late(seen, waited_seconds=61, limits=limits)
    assert ended is not None
    assert ended.code == "gang.unplaced"


def test_what_runs_has_all_the_time_it_needs() -> None:
    assert late(LaunchStatus(phase="running", started_at="2020-01-01T00:00:00Z"), waited_seconds=1e9) is None


def test_the_rule_under_a_report_is_not_the_reported_line() -> None:
    state = {"terminated": {"exitCode": 1, "reason": "Error", "message": "worker failed\n=======\n"}}
    pod = {"metadata": {"name": "p"}, "status": {"phase": "Failed", "containerStatuses": [{"name": "stage", "state": state}]}}
    assert look_at_pod(pod).words == "exit code 1 (Error): worker failed"


def test_of_two_members_that_ended_alike_the_first_to_end_is_the_cause() -> None:
    def member(number: int, ended_at: str) -> dict[str, Any]:
        state = {"terminated": {"exitCode": 1, "reason": "Error", "message": f"m{number}", "finishedAt": ended_at}}
        status = {"phase": "Failed", "containerStatuses": [{"name": "stage", "state": state}]}
        return {"metadata": {"name": f"g-{number}", "labels": {"batch.kubernetes.io/job-completion-index": str(number)}}, "status": status}

    job = {"metadata": {"name": "g"}, "spec": {"completions": 2}, "status": {}}
    assert look_at_gang(job, [member(0, "2026-02-01T02:00:09Z"), member(1, "2026-02-01T02:00:07Z")]).member == "g-1"
