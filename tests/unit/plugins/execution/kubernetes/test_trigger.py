"""The trigger against recorded states: when it fires, what it says, and that losing it loses nothing."""

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nightshift.execution.kubernetes import logs, trigger
from nightshift.execution.kubernetes.launch_request import Kind
from nightshift.execution.kubernetes.remote_work import WatchedLaunch
from nightshift.execution.kubernetes.status import LaunchStatus
from nightshift.execution.kubernetes.timeouts import LaunchTimeouts
from nightshift.execution.kubernetes.trigger import WatchLaunch
from tests.unit.plugins.execution.kubernetes.conftest import seen_by, watch_of
from tests.unit.plugins.execution.kubernetes.gang_states import job_of, member
from tests.unit.plugins.execution.kubernetes.gang_states import running as placed
from tests.unit.plugins.execution.kubernetes.kubernetes_api import CUT, LOST, RUNNING, STALLED, SUCCEEDED, KubernetesApi, failed, pod_status

FOLDER = Path(__file__).with_name("recordings")
LIMITS = LaunchTimeouts(schedule_seconds=1e9, start_seconds=1e9, image_seconds=1e9)


class Fast:
    """Time that passes only when the trigger sleeps; each sleep lets the cluster go on by a step."""

    def __init__(self, step: Callable[[], None]) -> None:
        self.step = step
        self.sleeps = 0

    async def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        assert self.sleeps < 200, "it never fires"
        self.step()


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    monkeypatch.setattr(WatchLaunch, "log", logging.getLogger("tests.watch"), raising=False)
    caplog.set_level(logging.INFO)
    return lambda: "\n".join(record.getMessage() for record in caplog.records)


def watcher_of(name: str, kind: Kind = "Pod", **limits: float) -> WatchLaunch:
    limited = replace(LIMITS, **limits)
    return watch_of(WatchedLaunch(number=1, name=name, kind=kind, namespace="nightshift", limits=limited, connection=None, in_cluster=None))


def fire(watcher: WatchLaunch, step: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> LaunchStatus:
    monkeypatch.setattr(trigger.asyncio, "sleep", Fast(step).sleep)
    return seen_by(watcher)


def play(api: KubernetesApi, name: str) -> Callable[[], None]:
    """Put the first state of a recording into the cluster; return what moves on to the next one."""
    recorded = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    frames = iter(recorded["frames"])

    def step() -> None:
        frame = next(frames, None)
        if frame is None:
            return
        api.objects.clear()
        api.objects |= {("pods", pod["metadata"]["name"]): pod for pod in frame["pods"]}
        if frame.get("job"):
            api.objects["jobs", name] = frame["job"]

    step()
    return step


@pytest.mark.parametrize(
    ("name", "code", "exit_code"),
    [
        ("pod-succeeds", "", 0),
        ("pod-fails", "pod.failed", 70),
        ("pod-out-of-memory", "pod.oom", 137),
        ("pod-evicted", "pod.preempted", 137),
        ("pod-without-program", "pod.config", 128),
        ("gang-succeeds", "", 0),
        ("gang-loses-a-member", "pod.failed", 137),
        ("gang-member-out-of-memory", "pod.oom", 137),
        ("gang-suspended", "", 0),
    ],
)
def test_it_fires_at_the_end_that_a_recording_has(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch, name: str, code: str, exit_code: int
) -> None:
    seen = fire(watcher_of(name, "Job" if name.startswith("gang") else "Pod"), play(api, name), monkeypatch)
    assert (seen.phase, seen.code, seen.exit_code) == ("ended", code, exit_code)


def test_an_evicted_member_is_the_reason_also_when_it_is_missing(api: KubernetesApi, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = fire(watcher_of("gang-member-evicted", "Job"), play(api, "gang-member-evicted"), monkeypatch)
    assert seen.code == "pod.preempted"


def test_it_says_why_a_pod_waits_and_gives_up_with_that_reason(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch, said: Callable[[], str]
) -> None:
    seen = fire(watcher_of("pod-without-place", schedule_seconds=1), play(api, "pod-without-place"), monkeypatch)
    assert seen.code == "pod.unschedulable"
    assert said().count("no place yet: 0/1 nodes are available: 1 Insufficient cpu") == 1


def test_an_image_that_does_not_come_is_given_up(api: KubernetesApi, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = fire(watcher_of("pod-without-image", image_seconds=-1), play(api, "pod-without-image"), monkeypatch)
    assert (seen.phase, seen.code) == ("ended", "pod.image")


def test_it_fires_when_the_pod_disappears_between_two_looks(api: KubernetesApi, monkeypatch: pytest.MonkeyPatch) -> None:
    api.objects["pods", "p"] = pod(RUNNING)
    assert fire(watcher_of("p"), lambda: api.remove("p"), monkeypatch).phase == "absent"


def pod(status: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "p", "creationTimestamp": "2026-02-01T02:00:00Z"}, "spec": {"containers": []}, "status": status}


def test_each_line_of_the_log_is_said_once_and_in_order(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch, said: Callable[[], str]
) -> None:
    lines = [f"2026-02-01T02:00:0{number}.{number}Z line {number}" for number in range(6)]
    api.objects["pods", "p"] = pod(RUNNING)
    shown = iter(range(1, 7))

    def step() -> None:
        count = next(shown, 7)
        api.logs["p"] = "\n".join(lines[:count]).encode()
        if count == 7:
            api.set_status("p", SUCCEEDED)

    assert fire(watcher_of("p"), step, monkeypatch).succeeded
    assert [line for line in said().splitlines() if line.startswith("line")] == [f"line {number}" for number in range(6)]


@pytest.mark.parametrize("words", ["unable to retrieve container logs for containerd://c13fc7", "2026-02-01T02:0"], ids=["removed", "cut"])
def test_words_of_the_kubelet_in_place_of_a_log_hide_no_line_after_them(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch, said: Callable[[], str], words: str
) -> None:
    """A container that was removed while its pod was deleted; the Job controller then makes another pod."""
    api.objects["pods", "p"] = pod(RUNNING)
    answers = iter([b"2026-02-01T02:00:01Z before", words.encode(), b"2026-02-01T02:00:02Z after"])

    def step() -> None:
        answer = next(answers, None)
        if answer is None:
            api.set_status("p", SUCCEEDED)
        else:
            api.logs["p"] = answer

    assert fire(watcher_of("p"), step, monkeypatch).succeeded
    assert said().splitlines() == ["before", "after"]


def test_a_log_that_cannot_be_read_does_not_decide_anything(api: KubernetesApi, monkeypatch: pytest.MonkeyPatch) -> None:
    api.objects["pods", "p"] = pod(RUNNING)

    async def broken(*_arguments: Any, **_more: Any) -> Any:
        raise logs.ApiException(status=500, reason="no log here")

    monkeypatch.setattr(logs.client.CoreV1Api, "read_namespaced_pod_log", broken)
    assert fire(watcher_of("p"), lambda: api.set_status("p", SUCCEEDED), monkeypatch).succeeded


def test_a_forged_line_stays_one_line(api: KubernetesApi, monkeypatch: pytest.MonkeyPatch, said: Callable[[], str]) -> None:
    api.objects["pods", "p"] = pod(SUCCEEDED)
    api.logs["p"] = b"2026-02-01T02:00:00Z x\x1b[31m\xe2\x80\xa8forged"
    fire(watcher_of("p"), lambda: None, monkeypatch)
    assert "x\\x1b[31m\\u2028forged" in said()


def test_an_api_that_is_away_is_asked_again(api: KubernetesApi, monkeypatch: pytest.MonkeyPatch, said: Callable[[], str]) -> None:
    api.objects["pods", "p"] = pod(RUNNING)
    api.faults = [503, 500, LOST, 410, 429]
    assert fire(watcher_of("p"), lambda: None if api.faults else api.set_status("p", SUCCEEDED), monkeypatch).succeeded
    assert "the cluster does not answer" in said()


@pytest.mark.parametrize("spared", [0, 1], ids=["of the pod", "of its log"])
def test_an_answer_that_breaks_off_is_requested_again(api: KubernetesApi, monkeypatch: pytest.MonkeyPatch, spared: int) -> None:
    api.objects["pods", "p"] = pod(RUNNING)
    api.logs["p"] = b"2026-02-01T02:00:00Z a line"
    api.faults = [*[None] * spared, CUT]
    assert fire(watcher_of("p"), lambda: None if api.faults else api.set_status("p", SUCCEEDED), monkeypatch).succeeded


def test_an_api_that_takes_the_question_and_never_answers_is_asked_again(api: KubernetesApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow.providers.cncf.kubernetes.kube_client.API_TIMEOUT", 0.3)
    api.objects["pods", "p"] = pod(SUCCEEDED)
    api.faults = [STALLED]
    assert fire(watcher_of("p"), lambda: None, monkeypatch).succeeded


def test_a_log_that_it_may_not_read_does_not_end_the_wait(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch, said: Callable[[], str]
) -> None:
    api.objects["pods", "p"] = pod(RUNNING)
    api.denied = "GET pods/log"
    assert fire(watcher_of("p"), lambda: api.set_status("p", SUCCEEDED), monkeypatch).succeeded
    assert said().count("the log of p cannot be read: 403") == 1


def test_a_right_that_comes_back_ends_nothing(api: KubernetesApi, monkeypatch: pytest.MonkeyPatch) -> None:
    api.objects["pods", "p"] = pod(SUCCEEDED)
    api.faults = [401, 403]
    assert fire(watcher_of("p"), lambda: None, monkeypatch).succeeded


def test_a_right_that_is_missing_ends_the_wait(api: KubernetesApi, monkeypatch: pytest.MonkeyPatch) -> None:
    api.denied = "GET pods"
    seen = fire(watcher_of("p"), lambda: None, monkeypatch)
    assert (seen.phase, seen.code) == ("ended", "kubernetes.denied")


def test_what_is_counted_from_the_first_look_is_counted_over_new_connections(api: KubernetesApi, monkeypatch: pytest.MonkeyPatch) -> None:
    read, looks = WatchLaunch._read, iter(range(20))

    async def look(watch: WatchLaunch, connection: Any) -> Any:
        assert next(looks, None) is not None, "it never fires"
        return await read(watch, connection)

    monkeypatch.setattr(WatchLaunch, "_read", look)
    monkeypatch.setattr(trigger, "RECONNECT_SECONDS", -1.0)
    api.objects["pods", "p"] = pod(pod_status("Pending", waiting={"reason": "ImagePullBackOff"}))
    assert fire(watcher_of("p", image_seconds=0.0), lambda: None, monkeypatch).code == "pod.image"
    api.objects["jobs", "g"] = job_of(name="g")
    api.objects["pods", "g-0-x"] = member(0, placed(), name="g")
    assert fire(watcher_of("g", "Job", partial_seconds=1e-9), lambda: None, monkeypatch).code == "gang.partial"


def test_the_last_members_of_a_broken_gang_have_time_to_save_and_every_log_is_shown(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch, said: Callable[[], str]
) -> None:
    names = {"nightshift.io/launch": "g"}
    job = {"metadata": {"name": "g", "creationTimestamp": "2026-02-01T02:00:00Z"}, "spec": {"completions": 2}, "status": {}}
    api.objects["jobs", "g"] = job
    for number, status in enumerate((RUNNING, failed(137))):
        member = pod(status)
        member["metadata"] |= {"name": f"g-{number}", "labels": {**names, "batch.kubernetes.io/job-completion-index": str(number)}}
        api.objects["pods", f"g-{number}"] = member
    api.logs = {"g-0": b"2026-02-01T02:00:00Z first", "g-1": b"2026-02-01T02:00:00Z what the second said"}
    steps = iter(range(100))

    def step() -> None:
        if next(steps) == 3:
            api.set_status("g-0", failed(75))
            # As the Job controller does with a member whose log nobody has read yet.
            api.logs.pop("g-1")

    seen = fire(watcher_of("g", "Job"), step, monkeypatch)
    assert seen.member == "g-1"
    assert set(seen.failed) == {"g-0", "g-1"}, "it fired after the first member had ended by itself"
    assert "[g-1] what the second said" in said()


@pytest.mark.parametrize(("kind", "plural"), [("Pod", "pods"), ("Job", "jobs")])
def test_a_task_that_a_user_ends_takes_its_launch_along(api: KubernetesApi, kind: str, plural: str) -> None:
    api.objects[plural, "p"] = pod(RUNNING)
    asyncio.run(watcher_of("p", kind).on_kill())
    assert api.names(plural) == []
    asyncio.run(watcher_of("p", kind).on_kill())
