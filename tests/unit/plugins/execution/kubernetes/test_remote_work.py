"""Every order of events: what a task does each time that it looks, whoever was killed before."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from nightshift.execution.attempt_end import Action, StageEndedError
from nightshift.execution.kubernetes import remote_work
from nightshift.execution.kubernetes.client import Submitter
from nightshift.execution.kubernetes.remote_work import RemoteWork
from nightshift.execution.kubernetes.status import LaunchStatus
from tests.unit.plugins.execution.kubernetes.conftest import FIRST, SECOND, Killed, Night, Nights, running
from tests.unit.plugins.execution.kubernetes.kubernetes_api import CUT, LOST, RUNNING, STALLED, SUCCEEDED, KubernetesApi, evicted, failed
from training.errors import DeniedError, SpecError, UnavailableError
from training.runtime.attempt_errors import HUNG

Placement = dict[str, Any] | None
EVICTED_MEMBER = {
    "conditions": [{"type": "Failed", "status": "True", "message": "Pod has condition DisruptionTarget matching FailJob rule at index 0"}]
}
"""The status of a Job."""
ONE, TWO = ({"nodes": nodes, "processes_per_node": 1} for nodes in (1, 2))

pytestmark = pytest.mark.usefixtures("known_names")


def test_the_first_look_submits_a_pod_and_waits_for_it(api: KubernetesApi, night: Nights) -> None:
    waiting = night().advance()
    assert (waiting.number, waiting.name, waiting.kind) == (1, FIRST, "Pod")
    assert api.names() == [FIRST]


def test_a_look_at_what_runs_starts_nothing(api: KubernetesApi, night: Nights) -> None:
    work = night()
    running(api, work)
    for _ in range(3):
        assert work.advance().name == FIRST
    assert api.creates["pods", FIRST] == 1


def test_a_training_that_succeeded_unobserved_is_not_trained_again(api: KubernetesApi, night: Nights) -> None:
    work = night()
    running(api, work)
    made = work.commit()
    api.set_status(FIRST, SUCCEEDED)
    assert work.advance(work.task(try_number=2)) == made
    assert work.advance(work.task(run_id="r2")) == made
    assert api.names() == [], "its pod does not stay behind"
    assert sum(api.creates.values()) == 1


def test_a_result_counts_although_its_pod_is_missing(api: KubernetesApi, night: Nights) -> None:
    work = night()
    running(api, work)
    made = work.commit()
    api.remove(FIRST)
    assert work.advance() == made
    assert sum(api.creates.values()) == 1


def test_finished_work_is_found_while_the_cluster_is_away(api: KubernetesApi, night: Nights) -> None:
    work = night()
    running(api, work)
    made = work.commit()
    api.faults = [503] * 50
    assert work.advance(work.task(run_id="r2")) == made
    assert "may be left behind" in work.said[-1]


def test_pod_whose_process_hung_is_launched_again_and_its_error_has_the_phase_of_the_last_heartbeat(
    api: KubernetesApi, night: Nights
) -> None:
    work = night()
    running(api, work)
    hung = work.request().attempt_id
    work.work_folder.write_heartbeat(hung, {"beat": 7, "phase": {"kind": "part", "name": "bootstrap", "limit_seconds": 3600.0}})
    api.set_status(FIRST, failed(HUNG))
    api.logs[FIRST] = b'  File "model.py", line 7 in loss\n'
    assert work.advance().name == SECOND
    assert f'[{FIRST}]   File "model.py", line 7 in loss' in work.said, "the stacks, of which the next deferral leaves no others"
    error = work.work_folder.error(hung) or {}
    assert (error["code"], error["rank"]) == ("stage.hung", 0)
    assert error["message"] == "rank 0: no progress in part (bootstrap) within the limit of 3600 s"


def test_a_worker_killed_between_claim_and_create_leaves_one_launch(
    api: KubernetesApi, night: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = night()
    with monkeypatch.context() as patched:
        patched.setattr(Submitter, "submit", lambda self, launch: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            work.advance()
    assert api.names() == []
    assert work.advance(work.task(try_number=2)).name == FIRST
    assert len(work.work_folder.launches().history()) == 1
    assert api.creates["pods", FIRST] == 1


def test_two_workers_at_once_submit_once(api: KubernetesApi, night: Nights) -> None:
    work = night()
    tasks = [work.task(try_number=number) for number in (1, 2, 3, 4)]
    barrier, found = threading.Barrier(len(tasks)), []

    def look(task: Any) -> None:
        barrier.wait()
        found.append(work.advance(task).name)

    threads = [threading.Thread(target=look, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [FIRST] * 4
    assert sum(api.creates.values()) == 1
    assert len(work.work_folder.launches().history()) == 1


def test_an_api_that_is_away_for_a_while_costs_nothing(api: KubernetesApi, night: Nights) -> None:
    work = night()
    api.faults = [503, 500, 503, 503]
    assert work.advance().name == FIRST
    assert sum(api.creates.values()) == 1


def test_an_api_that_stays_away_is_unavailable_and_says_so(api: KubernetesApi, night: Nights) -> None:
    work = night()
    api.faults = [503] * 20
    with pytest.raises(UnavailableError, match="the server is not well") as caught:
        work.advance()
    assert caught.value.code == "kubernetes.unavailable"


@pytest.mark.parametrize("fault", [LOST, 504], ids=["closed", "by a gateway"])
@pytest.mark.parametrize("placement", [None, ONE, TWO], ids=["pod", "job of one", "gang"])
def test_a_create_whose_answer_was_lost_is_found_and_not_repeated(
    api: KubernetesApi, night: Nights, placement: Placement, fault: int
) -> None:
    work = night(placement)
    original, posts = api.serve, []

    def serve(method: str, *rest: Any) -> Any:
        answer = original(method, *rest)
        posts.append(answer[0]) if method == "POST" else None
        return (504, {"message": "gateway timeout"}) if posts == [201] and method == "POST" and fault == 504 else answer

    api.serve = serve  # type: ignore[method-assign]
    # What is asked first is whether it is there: a pod, or a Job and its pods.
    api.faults = [*[None] * (2 if placement else 1), fault] if fault != 504 else []
    assert work.advance().name == FIRST
    assert posts[:2] == [201, 409], "the first answer was lost"
    assert set(api.creates.values()) == {1}


def test_an_api_that_never_answers_is_unavailable(api: KubernetesApi, night: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow.providers.cncf.kubernetes.kube_client.API_TIMEOUT", 0.02)
    api.faults = [STALLED] * 50
    with pytest.raises(UnavailableError, match="the cluster does not answer"):
        night().advance()


@pytest.mark.parametrize("fault", [410, 429, CUT], ids=["gone", "throttled", "cut"])
def test_an_answer_that_is_none_is_requested_again(api: KubernetesApi, night: Nights, fault: int) -> None:
    work = night()
    api.faults = [fault, fault, None, fault]
    assert work.advance().name == FIRST
    assert sum(api.creates.values()) == 1


def test_a_namespace_that_is_not_there_is_reported(api: KubernetesApi, night: Nights) -> None:
    api.faults = [404, 404]
    with pytest.raises(DeniedError, match="kubectl apply -k docker/kubernetes/") as caught:
        night().advance()
    assert caught.value.code == "kubernetes.missing"


def late(work: Night, task: RemoteWork, meanwhile: Callable[[], None]) -> Any:
    """Advance as a worker that stands still between its look, which found nothing, and its create."""
    submitter = task._submitter
    submit = submitter.submit

    def submit_late(launch: Any) -> None:
        meanwhile()
        submit(launch)

    submitter.submit = submit_late  # type: ignore[method-assign]
    return work.advance(task)


@pytest.mark.parametrize("placement", [None, ONE, TWO], ids=["pod", "job of one", "gang"])
def test_a_worker_that_wakes_up_a_launch_later_leaves_nothing_of_the_old_one(
    api: KubernetesApi, night: Nights, placement: Placement
) -> None:
    work = night(placement)
    plural = "jobs" if placement else "pods"

    def meanwhile() -> None:
        work.advance(work.task(try_number=2))
        work.begin()
        api.remove(FIRST, plural)
        assert work.advance(work.task(try_number=2), watched=1).name == SECOND

    assert late(work, work.task(), meanwhile).name == SECOND
    assert api.creates[plural, FIRST] == 2, "it did come late"
    assert api.names(plural) == api.names("services" if placement == TWO else plural) == [SECOND]


def test_a_worker_that_wakes_up_when_the_work_is_done_finds_the_result_and_leaves_nothing(api: KubernetesApi, night: Nights) -> None:
    work = night()

    def meanwhile() -> None:
        running(api, work)
        work.commit()
        work.advance(work.task(try_number=2))
        assert api.names() == []

    task = work.task()
    waiting = late(work, task, meanwhile)
    # Its process finds the result, and ends.
    api.set_status(FIRST, SUCCEEDED)
    assert work.advance(task, watched=waiting.number, reported=LaunchStatus(phase="ended", exit_code=0)) == work.work_folder.result()
    assert api.names() == []


def test_nothing_of_any_launch_is_left_when_the_work_is_done(api: KubernetesApi, night: Nights) -> None:
    work = night()
    running(api, work)
    left = api.objects["pods", FIRST]
    api.remove(FIRST)
    assert work.advance().name == SECOND
    api.objects["pods", FIRST] = left
    work.begin()
    work.commit()
    work.advance()
    assert api.names() == []


def test_a_pod_that_was_deleted_and_still_saves_is_waited_for(api: KubernetesApi, night: Nights) -> None:
    api.is_graceful = True
    work = night()
    running(api, work)
    work.task().stop()
    assert "deletionTimestamp" in api.objects["pods", FIRST]["metadata"]
    assert work.advance(work.task(try_number=2)).name == FIRST
    api.finish_deletions()
    assert work.advance(work.task(try_number=2), watched=1).name == SECOND
    assert api.alive_together == 1


def test_a_pod_that_vanished_before_it_began_is_submitted_again_as_the_same_launch(api: KubernetesApi, night: Nights) -> None:
    work = night()
    work.advance()
    api.remove(FIRST)
    assert work.advance().name == FIRST
    assert len(work.work_folder.launches().history()) == 1


def test_a_pod_that_vanished_in_the_middle_is_relaunched_out_of_the_infrastructure_budget(api: KubernetesApi, night: Nights) -> None:
    work = night(infrastructure=1)
    running(api, work)
    api.remove(FIRST)
    assert work.advance().name == SECOND
    assert "relaunch 1 of 1" in " ".join(work.said)
    assert work.request().takeover_epoch == 1, "the lost one's lease is free to take"
    api.set_status(SECOND, RUNNING)
    work.begin()
    api.remove(SECOND)
    with pytest.raises(StageEndedError, match=r"relaunched 1 times already \(retries.infrastructure\)") as caught:
        work.advance()
    assert caught.value.end.action is Action.FAIL


def test_a_cleared_task_has_its_whole_budget_again(api: KubernetesApi, night: Nights) -> None:
    work = night(infrastructure=1)
    running(api, work)
    for name in (FIRST, SECOND):
        api.remove(name)
        if name == FIRST:
            work.advance()
            work.begin()
    with pytest.raises(StageEndedError):
        work.advance()
    cleared = work.task(generation="2")
    third = work.advance(cleared)
    assert third.number == 3
    work.begin()
    api.remove(third.name)
    assert work.advance(cleared).number == 4


def test_out_of_memory_is_tried_once_more_and_then_told(api: KubernetesApi, night: Nights) -> None:
    work = night()
    running(api, work)
    killed = failed(137, "OOMKilled")
    api.objects["pods", FIRST]["status"] = killed
    # A peer that lost the killed process reports first, and knows nothing of memory.
    peer = {"code": "peer.lost", "exit_code": 75, "message": "another rank is lost", "hint": ""}
    work.work_folder.write_error(work.request().attempt_id, peer)
    assert work.advance().name == SECOND
    api.set_status(SECOND, killed)
    with pytest.raises(StageEndedError, match="out of memory: killed at its limit of 2GiB"):
        work.advance()


@pytest.mark.parametrize(
    ("exit_code", "action"), [(64, Action.FAIL), (65, Action.FAIL), (70, Action.FAIL), (76, Action.FAIL), (74, Action.RETRY)]
)
def test_the_stages_own_word_decides(api: KubernetesApi, night: Nights, exit_code: int, action: Action) -> None:
    work = night()
    running(api, work)
    work.work_folder.write_error(
        work.request().attempt_id, {"code": "some.code", "exit_code": exit_code, "message": "what went wrong", "hint": "h"}
    )
    api.set_status(FIRST, failed(1))
    with pytest.raises(StageEndedError, match=r"\[some.code\] what went wrong \(h\)") as caught:
        work.advance()
    assert caught.value.end.action is action
    assert api.names() == [], "nothing stays behind"
    assert work.advance(work.task(try_number=2)).name == SECOND, "another try starts the work again"


def test_an_evicted_training_continues_and_leaves_spot_nodes_after_two(api: KubernetesApi, night: Nights) -> None:
    placement = {"nodes": 1, "processes_per_node": 1, "spot": True}
    work = night(
        placement, spot={"node_selector": {"life": "spot"}, "fallback_after": 2}, on_demand={"node_selector": {"life": "on-demand"}}
    )
    lives = []
    for number in (1, 2, 3):
        waiting = work.advance()
        assert waiting.number == number
        lives.append(api.objects["jobs", waiting.name]["spec"]["template"]["spec"]["nodeSelector"]["life"])
        work.begin()
        api.set_status(waiting.name, EVICTED_MEMBER, "jobs")
    assert lives == ["spot", "spot", "on-demand"]


def test_an_image_that_cannot_be_pulled_fails_for_good(api: KubernetesApi, night: Nights) -> None:
    work = night()
    waiting = work.advance()
    given_up = LaunchStatus(phase="ended", code="pod.image", words="image x cannot be pulled; tried for 5m")
    with pytest.raises(StageEndedError, match="image x cannot be pulled") as caught:
        work.advance(watched=waiting.number, reported=given_up)
    assert caught.value.end.action is Action.FAIL
    assert api.names() == []


def test_another_run_watches_the_launch_that_is_there_and_reuses_its_result(api: KubernetesApi, night: Nights) -> None:
    work = night()
    running(api, work)
    other = work.task(run_id="r2")
    assert work.advance(other).name == FIRST
    made = work.commit()
    api.remove(FIRST)
    assert work.advance(other, watched=1, reported=LaunchStatus(phase="ended", exit_code=0)) == made
    assert made.run.run_id == "r1"
    assert sum(api.creates.values()) == 1


def test_another_run_continues_by_itself_when_the_one_that_it_watched_was_cancelled(api: KubernetesApi, night: Nights) -> None:
    work = night()
    running(api, work)
    other = work.task(run_id="r2")
    work.advance(other)
    work.task().stop()
    assert api.names() == []
    assert work.advance(other, watched=1, reported=LaunchStatus(phase="absent")).name == SECOND
    assert work.request().run.run_id == "r2"


def test_only_the_task_that_started_a_launch_ends_it(api: KubernetesApi, night: Nights) -> None:
    work = night()
    running(api, work)
    work.task(run_id="r2").stop()
    assert api.names() == [FIRST]


def test_a_right_that_is_missing_is_named(api: KubernetesApi, night: Nights) -> None:
    api.denied = "POST pods"
    with pytest.raises(DeniedError, match=r"could not create pod .*in namespace nightshift: pods is forbidden") as caught:
        night().advance()
    assert caught.value.code == "kubernetes.denied"


def test_a_manifest_that_the_cluster_refuses_is_reported_in_its_words(api: KubernetesApi, night: Nights) -> None:
    api.faults = [404, 422]
    with pytest.raises(SpecError, match="the server is not well") as caught:
        night().advance()
    assert caught.value.code == "kubernetes.invalid"


def test_stop_in_the_pause_before_a_relaunch_starts_no_other_pod(
    api: KubernetesApi, night: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = night()
    running(api, work)
    api.set_status(FIRST, evicted())
    task = work.task()
    monkeypatch.setattr(remote_work.time, "sleep", lambda _seconds: task.stop())
    with pytest.raises(StageEndedError, match="stopped") as caught:
        work.advance(task)
    assert caught.value.end.action is Action.GIVE_UP
    assert api.names() == []
    assert sum(api.creates.values()) == 1
