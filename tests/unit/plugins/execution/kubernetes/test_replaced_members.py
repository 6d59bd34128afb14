"""Members that the Job controller makes again, days after the first ones: the wait for their place begins with that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from kubernetes_asyncio import client
from kubernetes_asyncio.client.exceptions import ApiException

from nightshift.execution.kubernetes import trigger
from nightshift.execution.kubernetes.logs import LogFollower
from nightshift.execution.kubernetes.status import LaunchStatus, look_at_gang
from nightshift.execution.kubernetes.timeouts import LaunchTimeouts, overdue, waited_seconds
from nightshift.execution.kubernetes.trigger import WatchLaunch
from tests.unit.plugins.execution.kubernetes.gang_states import GANG, Json, ago, job_of, member, running, stopped, without_place
from tests.unit.plugins.execution.kubernetes.kubernetes_api import failed

DAY_SECONDS = 86_400
LIMITS = LaunchTimeouts(schedule_seconds=DAY_SECONDS, start_seconds=600, image_seconds=300)


def ended_at(seconds: float, exit_code: int = 75) -> Json:
    status = failed(exit_code)
    status["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = ago(seconds)
    return status


def overdue_now(seen: LaunchStatus) -> LaunchStatus | None:
    now = datetime.now(UTC)
    return overdue(seen, LIMITS, waited_seconds=waited_seconds(seen, LIMITS, now), bad_image_since=None, now=now)


@pytest.mark.parametrize(("made", "is_late"), [(5, False), (DAY_SECONDS + 60, True)])
def test_wait_of_a_member_that_was_made_again_is_counted_from_its_own_creation(made: float, is_late: bool) -> None:
    job = job_of(wanted=1, created=ago(3 * DAY_SECONDS))
    seen = look_at_gang(job, [member(0, without_place(), node="", created=ago(made))])
    assert seen.phase == "waiting"
    assert (overdue_now(seen) is not None) == is_late


def test_training_of_days_whose_member_is_deleted_is_not_ended_before_there_is_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(wanted=1, created=ago(3 * DAY_SECONDS))
    states: Iterator[tuple[Json, list[Json]]] = iter(
        [
            (job, [member(0, running())]),
            (job, [member(0, stopped(75), is_deleted=True)]),
            (job, []),
            (job, [member(0, running())]),
            ({**job, "status": {"conditions": [{"type": "Complete", "status": "True"}]}}, []),
        ]
    )

    async def read(_self: Any, _api: Any) -> tuple[Json, list[Json]]:
        return next(states)

    async def sleep(_seconds: float) -> None:
        return None

    monkeypatch.setattr(WatchLaunch, "_read", read)
    monkeypatch.setattr(WatchLaunch, "_hook", lambda _self: Connected())
    monkeypatch.setattr(LogFollower, "follow", lambda _self, _pods: sleep(0))
    monkeypatch.setattr(trigger.asyncio, "sleep", sleep)
    watch = WatchLaunch(number=1, name=GANG, kind="Job", namespace="n", limits=LIMITS.to_json(), connection=None, in_cluster=None)

    async def first() -> Any:
        return await anext(watch.run())

    assert LaunchStatus.from_json(asyncio.run(first()).payload["seen"]).succeeded


class Connected:
    """A hook whose connection leads nowhere: what there is to see is given."""

    def get_conn(self) -> Connected:
        return self

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, *_exc: object) -> None:
        return None


@pytest.mark.parametrize("exit_code", [75, 143])
def test_member_that_stopped_before_its_suspended_job_deleted_it_does_not_end_the_resumed_job(exit_code: int) -> None:
    """Ranks agree to stop: some end before the Job controller has come to them, and a pod that has ended it does not delete."""
    left = member(1, ended_at(60, exit_code))
    seen = look_at_gang(job_of(suspended=(False, ago(30))), [left, member(0, running())])
    assert (seen.phase, seen.words) == ("waiting", "1 of 2 members exist; `kubectl describe job g -n n` says why others do not")


def test_member_that_stopped_by_itself_after_its_job_was_resumed_ends_the_launch() -> None:
    seen = look_at_gang(job_of(suspended=(False, ago(30))), [member(1, ended_at(10)), member(0, running())])
    assert seen.phase == "ended"


def test_member_that_stopped_holds_no_part_of_the_nodes() -> None:
    pods = [member(1, ended_at(60)), *(member(number, without_place(), node="") for number in range(2))]
    assert not look_at_gang(job_of(suspended=(False, ago(30))), pods).is_partly_placed


@pytest.mark.parametrize("order", [1, -1])
def test_log_is_that_of_the_member_that_runs_in_the_place_of_one_that_stopped(order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = member(0, ended_at(60), created=ago(9000)), member(0, running(), created=ago(30))
    new["metadata"]["name"] = "g-0-y"
    read: list[str] = []

    async def read_log(_self: Any, name: str, _namespace: str, **_options: Any) -> Any:
        read.append(name)
        raise ApiException(status=400)

    async def follow() -> None:
        await LogFollower(client.ApiClient(), "n", None).follow([old, new][::order])

    monkeypatch.setattr(client.CoreV1Api, "read_namespaced_pod_log", read_log)
    asyncio.run(follow())
    assert read == ["g-0-y"]
