"""A queue that takes the nodes of a gang: the same Job waits and goes on, no relaunch is used, and a member that failed still ends it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from nightshift.execution.kubernetes import trigger
from nightshift.execution.kubernetes.status import LaunchStatus, look_at_gang
from nightshift.execution.kubernetes.timeouts import LaunchTimeouts, waited_seconds
from nightshift.execution.kubernetes.trigger import WatchLaunch
from tests.unit.plugins.execution.kubernetes.conftest import FIRST, Nights, seen_by, watch_of
from tests.unit.plugins.execution.kubernetes.gang_states import Json, ago, job_of, member, running, stopped
from tests.unit.plugins.execution.kubernetes.kubernetes_api import SUCCEEDED, KubernetesApi, evicted, failed
from training.errors import LeaseLostError

LIMITS = LaunchTimeouts(schedule_seconds=3600, start_seconds=600, image_seconds=300)


@pytest.mark.parametrize("num_members", [1, 2])
@pytest.mark.parametrize("exit_code", [75, 143, 137, 1])
def test_members_that_end_in_a_suspended_job_end_nothing(num_members: int, exit_code: int) -> None:
    members = [member(number, stopped(exit_code), is_deleted=True) for number in range(num_members)]
    seen = look_at_gang(job_of(wanted=num_members, suspend=True, suspended=(True, ago(5))), members)
    assert (seen.phase, seen.code) == ("waiting", "gang.queued")
    what = "suspended: its members save what they have and end; then waiting for admission by queue team; what it lacks: "
    assert seen.words == what + "`kubectl describe workloads -n n -l kueue.x-k8s.io/job-uid=u`"


@pytest.mark.parametrize("num_members", [1, 2])
@pytest.mark.parametrize("exit_code", [75, 143])
def test_job_that_is_resumed_while_earlier_members_end_waits_for_new_ones(num_members: int, exit_code: int) -> None:
    members = [member(number, stopped(exit_code), is_deleted=True) for number in range(num_members)]
    seen = look_at_gang(job_of(wanted=num_members, suspended=(False, ago(1))), members)
    assert (seen.phase, seen.code) == ("waiting", "gang.forming")


@pytest.mark.parametrize(
    ("status", "is_deleted"),
    [(stopped(75), False), (stopped(143), False), (failed(137), True), (failed(1), True), (evicted(), True)],
    ids=["lost its peer", "ended by a signal", "killed", "failed", "evicted"],
)
@pytest.mark.parametrize("num_members", [1, 2])
def test_member_that_failed_ends_a_launch_that_is_not_suspended(num_members: int, status: Json, is_deleted: bool) -> None:
    """The Job controller would start a member again that ended with 75 by itself, without the others, and as often as that happens."""
    members = [member(0, status, is_deleted=is_deleted), *(member(number, running()) for number in range(1, num_members))]
    assert look_at_gang(job_of(wanted=num_members), members).phase == "ended"


def test_suspended_job_that_failed_because_a_member_did_not_end_in_time_was_preempted() -> None:
    job = job_of(suspend=True, suspended=(True, ago(90)))
    said = "Container stage for pod nightshift/g-0-x failed with exit code 137 matching FailJob rule at index 2"
    job["status"]["conditions"].append({"type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": said})
    seen = look_at_gang(job, [])
    assert (seen.phase, seen.code) == ("ended", "pod.preempted")
    assert said in seen.words


def test_member_that_was_killed_is_the_cause_and_not_those_that_lost_it() -> None:
    members = [member(0, stopped(75)), member(1, failed(1))]
    assert look_at_gang(job_of(), members).member == "g-1-x"


@pytest.mark.parametrize(
    ("job", "seconds"),
    [
        ({"created": 500}, 500),
        ({"created": 500, "suspend": True}, 500),
        ({"created": 9000, "suspend": True, "suspended": (True, 40)}, 40),
        ({"created": 9000, "suspended": (False, 30)}, 30),
        ({"created": 9000, "suspend": True, "suspended": (False, 8000)}, 0),
        ({"created": 9000, "suspended": (True, 8000)}, 0),
    ],
    ids=["never suspended", "new", "suspended", "resumed", "being suspended", "being resumed"],
)
def test_wait_is_counted_from_the_last_suspension_or_resumption(job: dict[str, Any], seconds: int) -> None:
    suspended = (job["suspended"][0], ago(job["suspended"][1])) if "suspended" in job else None
    seen = look_at_gang(job_of(**{**job, "created": ago(job["created"]), "suspended": suspended}), [])
    assert seen.phase == "waiting"
    assert waited_seconds(seen, LIMITS, datetime.now(UTC)) == pytest.approx(seconds, abs=20)


@pytest.mark.parametrize(
    ("job", "seconds"),
    [
        ({"created": 500, "suspend": True, "suspended": (True, 500), "generation": 1}, 3000),
        ({"created": 500, "suspended": (False, 30), "generation": 2}, 3000),
        ({"created": 500, "suspend": True, "suspended": (True, 40), "generation": 3}, 40),
        ({"created": 500, "suspended": (False, 30), "generation": 4}, 30),
    ],
    ids=["new", "admitted", "preempted", "admitted again"],
)
def test_wait_of_launches_that_were_released_ends_with_a_preemption_also_for_a_new_trigger(job: dict[str, Any], seconds: int) -> None:
    limits = replace(LIMITS, waiting_since=datetime.now(UTC).timestamp() - 3000)
    suspended = (job["suspended"][0], ago(job["suspended"][1]))
    seen = look_at_gang(job_of(**{**job, "created": ago(job["created"]), "suspended": suspended}), [])
    assert waited_seconds(seen, limits, datetime.now(UTC)) == pytest.approx(seconds, abs=20)


class Queue:
    """Kueue and the Job controller, step by step: they run the gang, suspend it while it runs, and resume it, so often."""

    def __init__(self, api: KubernetesApi, name: str, times: int, start: Callable[[], None]) -> None:
        self._api = api
        self._name = name
        self._start = start
        self.steps = self._steps(times)

    def _steps(self, times: int) -> Iterator[None]:
        for _ in range(times):
            yield from self._run()
            self._set(suspend=True, suspended=(False, ago(9000)))
            yield
            self._members(stopped(75), is_deleted=True)
            self._set(suspend=True, suspended=(True, ago(1)))
            yield
            self._members(None)
            yield
        yield from self._run()

    def _run(self) -> Iterator[None]:
        self._set(suspend=False, suspended=(False, ago(1)))
        yield
        self._members(running(ago(1)))
        self._start()
        yield

    def _set(self, *, suspend: bool, suspended: tuple[bool, str]) -> None:
        job = self._api.objects["jobs", self._name]
        changed = job_of(name=self._name, suspend=suspend, suspended=suspended)
        job["spec"]["suspend"], job["status"] = suspend, changed["status"]

    def complete(self) -> None:
        self._members(SUCCEEDED)
        self._api.objects["jobs", self._name]["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}

    def _members(self, status: Json | None, *, is_deleted: bool = False) -> None:
        for number in range(2):
            key = ("pods", f"{self._name}-{number}-x")
            self._api.objects.pop(key, None)
            if status is not None:
                self._api.objects[key] = member(number, status, name=self._name, is_deleted=is_deleted)


@pytest.mark.usefixtures("known_names")
def test_gang_that_is_preempted_nine_times_is_one_job_and_uses_no_relaunch(
    api: KubernetesApi, night: Nights, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(WatchLaunch, "log", logging.getLogger("tests.watch"), raising=False)
    caplog.set_level(logging.INFO)
    work = night({"nodes": 2, "processes_per_node": 1}, infrastructure=0, queues={"default": "team"}, schedule_timeout="3650d")
    waiting = work.advance()
    leases: list[Any] = []
    queue = Queue(api, FIRST, 9, lambda: leases.append(work.begin()))

    async def sleep(_seconds: float) -> None:
        if next(queue.steps, "over") == "over":
            work.commit()
            queue.complete()
        # A worker that looks at any moment, for this task or for another one, notes no end and starts nothing.
        elif api.objects["jobs", FIRST]["spec"]["suspend"]:
            assert work.advance(work.task(try_number=2)).name == FIRST

    monkeypatch.setattr(trigger.asyncio, "sleep", sleep)
    seen = seen_by(watch_of(waiting))
    assert seen.succeeded
    assert work.advance(watched=1, reported=seen).digest == "d" * 64
    assert api.creates["jobs", FIRST] == 1
    assert len(work.work_folder.launches().history()) == 1
    assert caplog.text.count("[pod.preempted] its queue took the nodes of Job") == 9
    assert caplog.text.count("runs again, from its last commit") == 9
    assert [lease.epoch for lease in leases] == list(range(1, 11)), "each start is the next attempt of the chain"
    for lease in leases[:-1]:
        with pytest.raises(LeaseLostError):
            lease.commit("commit", {})
    leases[-1].commit("commit", {})


@pytest.mark.usefixtures("known_names")
def test_gang_in_its_queue_again_waits_as_long_as_a_new_one_and_does_not_shrink(
    api: KubernetesApi, night: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = night({"nodes": 4, "processes_per_node": 1, "min_nodes": 1}, queues={"default": "team"})
    work.advance()
    work.begin()
    api.remove(FIRST, "jobs")
    second = work.advance(watched=1)
    assert second.limits.unplaced_seconds > 0
    states = iter(
        [
            (job_of(name=second.name, wanted=2, suspended=(False, ago(10))), [member(number, running()) for number in range(2)]),
            (job_of(name=second.name, wanted=2, suspend=True, suspended=(True, ago(7200))), []),
        ]
    )
    slept: list[float] = []

    async def look(_self: Any, _api: Any) -> tuple[Json, list[Json]]:
        nonlocal state
        state = next(states, state)
        return state

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        assert len(slept) < 20, "it waits"

    state: tuple[Json, list[Json]] = ({}, [])
    monkeypatch.setattr(WatchLaunch, "_read", look)
    monkeypatch.setattr(trigger.asyncio, "sleep", sleep)
    with pytest.raises(AssertionError, match="it waits"):
        seen_by(watch_of(second))


@pytest.mark.usefixtures("known_names")
def test_gang_that_ran_does_not_shrink_in_its_queue_when_its_triggerer_is_started_again(api: KubernetesApi, night: Nights) -> None:
    """The trigger is made again from its arguments, which are of the time before the gang ran."""
    work = night({"nodes": 4, "processes_per_node": 1, "min_nodes": 1}, queues={"default": "team"})
    work.advance()
    work.begin()
    api.remove(FIRST, "jobs")
    second = work.advance(watched=1)
    work.begin()
    api.objects["jobs", second.name]["status"] = job_of(suspend=True, suspended=(True, ago(7200)))["status"]
    reported = LaunchStatus(phase="ended", code="gang.unplaced", words="no place for all members", waiting_since=ago(7200))
    third = work.advance(watched=2, reported=reported)
    assert (third.number, third.limits.unplaced_seconds, third.limits.partial_seconds) == (2, 0, 300)
    assert api.deletes["jobs", second.name] == 0
