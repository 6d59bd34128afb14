"""A gang that has only a part of its nodes: it gives them back, holds nothing for a while, and asks for all of them again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from nightshift.execution.attempt_end import StageEndedError
from nightshift.execution.kubernetes import remote_work, trigger
from nightshift.execution.kubernetes.config import Cluster
from nightshift.execution.kubernetes.remote_work import WatchedLaunch
from nightshift.execution.kubernetes.status import LaunchStatus, look_at_gang
from nightshift.execution.kubernetes.timeouts import LaunchTimeouts, limits_of, once_run, overdue
from nightshift.execution.kubernetes.trigger import WatchLaunch
from nightshift.execution.relaunch_budget import back_off_seconds
from tests.unit.plugins.execution.kubernetes.conftest import FIRST, SECOND, Night, Nights, seen_by, watch_of
from tests.unit.plugins.execution.kubernetes.gang_states import GANG, ago, job_of, member, running, without_place
from tests.unit.plugins.execution.kubernetes.kubernetes_api import KubernetesApi

PAIR = {"nodes": 2, "processes_per_node": 1}
CLUSTER = Cluster.model_validate({"namespace": "nightshift", "image": "i"})


def partial(since: str = "") -> LaunchStatus:
    """What the trigger saw: it gave up on a gang that had one of two nodes."""
    words = "1 of 2 members run; g-1-x: no place yet: 0/1 nodes are available; gave back the nodes that it had"
    return LaunchStatus(phase="ended", code="gang.partial", words=words, waiting_since=since or ago(300))


def fire(watch: WatchLaunch, monkeypatch: pytest.MonkeyPatch) -> tuple[LaunchStatus, list[float]]:
    """Return what it saw, and how long it slept each time; no time passes."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        assert len(slept) < 50, "it never fires"

    monkeypatch.setattr(trigger.asyncio, "sleep", sleep)
    return seen_by(watch), slept


@pytest.mark.parametrize(
    ("placed", "second", "since"),
    [(400, 900, 400), (9000, 50, 50), (400, None, None)],
    ids=["one of two is placed", "one was made later", "one is missing"],
)
def test_gang_with_a_part_of_its_nodes_is_recognised(placed: int, second: int | None, since: int | None) -> None:
    times = {seconds: ago(seconds) for seconds in (placed, second, since) if seconds is not None}
    members = [member(0, running(times[placed]), created=ago(9000))]
    if second is not None:
        members.append(member(1, without_place(), node="", created=times[second]))
    seen = look_at_gang(job_of(), members)
    assert (seen.phase, seen.is_partly_placed) == ("waiting", True)
    assert seen.partly_placed_since == ("" if since is None else times[since])


@pytest.mark.parametrize(
    ("wanted", "pods"),
    [
        (2, [(running(), "n"), (running(), "n")]),
        (2, [(without_place(), ""), (without_place(), "")]),
        (1, [(without_place(), "")]),
        (1, []),
    ],
)
def test_gang_with_all_or_none_of_its_nodes_is_no_partial_one(wanted: int, pods: list[tuple[dict[str, Any], str]]) -> None:
    members = [member(number, status, node=node) for number, (status, node) in enumerate(pods)]
    assert not look_at_gang(job_of(wanted=wanted), members).is_partly_placed


def test_members_that_are_leaving_hold_no_part() -> None:
    members = [member(0, running(ago(9000)), is_deleted=True), member(1, without_place(), node="")]
    assert not look_at_gang(job_of(), members).is_partly_placed


@pytest.mark.parametrize(
    ("second", "partial_seconds", "fires"),
    [(without_place(), 300, True), (without_place(), 500, False), (running(ago(400)), 300, False), (None, -1, True), (None, 300, False)],
    ids=["for long", "not for long", "whole", "one is missing for long", "one is missing since the first look"],
)
def test_trigger_gives_back_the_nodes_of_a_partial_gang_after_partial_wait_and_not_before(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch, second: dict[str, Any] | None, partial_seconds: float, fires: bool
) -> None:
    api.objects["jobs", GANG] = job_of(created=ago(900))
    for number, status in enumerate([running(ago(400)), second]):
        if status is not None:
            node = "n" if "startTime" in status else ""
            api.objects["pods", f"{GANG}-{number}-x"] = member(number, status, node=node, created=ago(900))
    limits = LaunchTimeouts(**{**limits_of(CLUSTER, may_shrink=False).to_json(), "partial_seconds": partial_seconds})
    watch = watch_of(
        WatchedLaunch(number=1, name=GANG, kind="Job", namespace="nightshift", limits=limits, connection=None, in_cluster=None)
    )
    if fires:
        seen, _ = fire(watch, monkeypatch)
        assert (seen.phase, seen.code) == ("ended", "gang.partial")
        assert second is None or "Insufficient cpu" in seen.words
    else:
        with pytest.raises(AssertionError, match="it never fires"):
            fire(watch, monkeypatch)


@pytest.mark.usefixtures("known_names")
def test_released_gang_holds_nothing_uses_no_budget_and_asks_again_after_its_back_off(
    api: KubernetesApi, night: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = night(PAIR, infrastructure=0)
    assert work.advance().limits.partial_seconds == 300
    second = work.advance(watched=1, reported=partial())
    assert (api.names("jobs"), api.names("pods"), second.name) == ([], [], SECOND)
    assert 29 <= second.limits.begins_at - datetime.now(UTC).timestamp() <= 60
    assert "which uses no relaunch: [gang.partial] 1 of 2 members run" in "\n".join(work.said)
    # Those that look meanwhile wait too: the same task after a kill, another run.
    for task in (work.task(try_number=2), work.task(run_id="r2")):
        assert work.advance(task).limits.begins_at == second.limits.begins_at
    assert api.names("jobs") == []
    seen, slept = fire(watch_of(second), monkeypatch)
    assert seen.phase == "waiting"
    assert 25 < slept[0] <= 60
    third = work.advance(work.task(try_number=2), watched=2, reported=seen)
    assert (third.name, third.limits.begins_at, api.names("jobs")) == (SECOND, 0, [SECOND])
    assert api.objects["jobs", SECOND]["spec"]["completions"] == 2
    assert [entry.value["cause"] for entry in work.work_folder.launches().history()] == ["first", "placement"]


@pytest.mark.usefixtures("known_names")
def test_task_killed_in_the_back_off_requests_the_launch_once_that_is_over(api: KubernetesApi, night: Nights, monkeypatch: Any) -> None:
    work = night(PAIR)
    work.advance()
    work.advance(watched=1, reported=partial())
    later = datetime.now(UTC) + timedelta(seconds=61)
    monkeypatch.setattr(remote_work, "datetime", type("Later", (datetime,), {"now": classmethod(lambda cls, zone: later)}))
    assert work.advance(work.task(try_number=2)).name == SECOND
    assert api.names("jobs") == [SECOND]


@pytest.mark.usefixtures("known_names")
def test_gang_that_found_its_place_meanwhile_keeps_it(api: KubernetesApi, night: Nights) -> None:
    work = night(PAIR)
    work.advance()
    for number in range(2):
        api.objects["pods", f"{FIRST}-{number}-x"] = member(number, running(), name=FIRST)
    assert work.advance(watched=1, reported=partial()).name == FIRST
    assert api.deletes["jobs", FIRST] == 0


def release_all(work: Night, since: str, count: int) -> None:
    """Release the first launch, and those after it, as soon as each is requested."""
    first = work.advance().number
    for number in range(first, first + count):
        work.advance(watched=number, reported=partial(since))
        work.advance(watched=number + 1, reported=LaunchStatus(phase="waiting", code="gang.partial"))


@pytest.mark.usefixtures("known_names")
def test_wait_for_a_place_is_counted_over_all_releases_and_ends_with_the_schedulers_words(api: KubernetesApi, night: Nights) -> None:
    work = night(PAIR, schedule_timeout="1d")
    since = ago(86_400 - 400)
    release_all(work, since, 1)
    waiting = work.advance()
    assert waiting.limits.waiting_since == datetime.fromisoformat(since).timestamp()
    with pytest.raises(StageEndedError, match=r"no place yet: 0/1 nodes are available.*no place for all members") as caught:
        release_all(work, ago(300), 6)
    assert caught.value.end.code == "pod.unschedulable"
    assert api.names("jobs") == []
    assert 2 <= len(work.work_folder.launches().history()) <= 5


@pytest.mark.usefixtures("known_names")
def test_task_that_a_person_clears_after_its_wait_was_over_waits_from_the_beginning(api: KubernetesApi, night: Nights) -> None:
    work = night(PAIR)
    work.advance()
    with pytest.raises(StageEndedError, match="no place for all members"):
        work.advance(watched=1, reported=partial(ago(86_400)))
    with pytest.raises(StageEndedError, match="no place for all members"):
        work.advance(work.task(try_number=2))
    again = work.advance(work.task(try_number=3, generation="cleared"))
    assert (again.name, again.limits.waiting_since, api.names("jobs")) == (SECOND, 0, [SECOND])


@pytest.mark.usefixtures("known_names")
def test_launch_that_ran_ends_the_wait_before_it(api: KubernetesApi, night: Nights) -> None:
    work = night(PAIR)
    release_all(work, ago(80_000), 1)
    work.begin()
    assert work.advance().limits.waiting_since == 0
    third = work.advance(watched=2, reported=partial(ago(400)))
    assert datetime.now(UTC).timestamp() - third.limits.waiting_since < 500
    assert third.limits.begins_at - datetime.now(UTC).timestamp() <= 60, "the first back-off again"


@pytest.mark.usefixtures("known_names")
def test_elastic_gang_continues_with_fewer_after_a_loss_and_not_after_a_release(api: KubernetesApi, night: Nights) -> None:
    work = night({"nodes": 4, "processes_per_node": 1, "min_nodes": 1})
    release_all(work, ago(400), 1)
    second = work.advance()
    assert (second.limits.unplaced_seconds, second.limits.partial_seconds) == (0, 300)
    work.begin()
    api.remove(SECOND, "jobs")
    third = work.advance(watched=2)
    assert third.limits.unplaced_seconds == 300
    assert end_of_partial(third.limits, held_seconds=400) == "gang.unplaced", "to go on with fewer is better than to hold nothing"
    assert end_of_partial(once_run(third.limits), held_seconds=400) == "gang.partial", "once it has run, it does not shrink"


def end_of_partial(limits: LaunchTimeouts, *, held_seconds: float) -> str:
    """Return the code of the end of a gang that has held a part of its nodes for so long."""
    now = datetime.now(UTC)
    status = LaunchStatus(phase="waiting", code="pod.unschedulable", is_partly_placed=True)
    since = now - timedelta(seconds=held_seconds)
    late = overdue(status, limits, waited_seconds=held_seconds, bad_image_since=None, now=now, partial_since=since)
    return "" if late is None else late.code


def test_back_off_grows_to_a_quarter_of_an_hour_and_differs_by_name() -> None:
    pauses = [back_off_seconds("p-train-a-1", number) for number in range(40)]
    assert pauses == sorted(pauses)
    assert 30 <= pauses[0] <= 60
    assert 450 <= pauses[-1] <= 900
    assert back_off_seconds("p-train-a-1", 3) == pauses[3]
    assert len({round(back_off_seconds(f"p-train-{number}-1", 0)) for number in range(40)}) > 15


@pytest.mark.parametrize("seed", range(20))
def test_two_gangs_with_room_for_one_and_a_half_both_end(seed: int) -> None:
    """Both are placed member by member, in step, for ten minutes of work each; nobody holds a part for longer than the limit."""
    room, wanted, limit, work = 6, 4, 300, 600
    gangs = [{"name": f"gang-{seed}-{which}", "asks": 0, "has": 0, "since": 0, "left": work, "releases": 0} for which in "ab"]
    for second in range(24 * 3600):
        for gang in gangs if second % 2 else gangs[::-1]:
            if gang["left"] == 0 or second < gang["asks"]:
                continue
            if gang["has"] == wanted:
                gang["left"] -= 1
                gang["has"] = 0 if gang["left"] == 0 else wanted
            elif sum(each["has"] for each in gangs) < room:
                gang["since"] = gang["since"] if gang["has"] else second
                gang["has"] += 1
            elif gang["has"] and second - gang["since"] > limit:
                name = f"{gang['name']}-{gang['releases'] + 1}"
                gang |= {"has": 0, "asks": second + back_off_seconds(name, gang["releases"]), "releases": gang["releases"] + 1}
        if all(gang["left"] == 0 for gang in gangs):
            break
    assert [gang["left"] for gang in gangs] == [0, 0]
    assert max(gang["releases"] for gang in gangs) <= 4
