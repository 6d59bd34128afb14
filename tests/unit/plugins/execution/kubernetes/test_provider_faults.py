"""Faults that users report of Airflow's Kubernetes provider, which these tasks do not have although they are its operators."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nightshift.execution.attempt_end import Action, StageEndedError
from nightshift.execution.kubernetes.remote_work import WatchedLaunch
from nightshift.execution.kubernetes.status import LaunchStatus
from tests.unit.plugins.execution.kubernetes.conftest import FIRST, SECOND, Night, Nights, running, watch_of
from tests.unit.plugins.execution.kubernetes.kubernetes_api import RUNNING, SUCCEEDED, KubernetesApi, failed

pytestmark = pytest.mark.usefixtures("known_names")
GANG = {"nodes": 2, "processes_per_node": 1}
COMPLETE = {"conditions": [{"type": "Complete", "status": "True"}], "succeeded": 2}


def test_pod_that_is_gone_when_its_task_resumes_is_no_success(api: KubernetesApi, night: Nights) -> None:
    """apache/airflow #73117: trigger_reentry returned success, without a result, where the pod could not be found any more."""
    work = night()
    running(api, work)
    api.remove(FIRST)
    found = work.advance(watched=1, reported=LaunchStatus(phase="ended", exit_code=0))
    assert isinstance(found, WatchedLaunch), "what left no result is done again"
    assert (found.name, api.names()) == (SECOND, [SECOND])


def test_job_whose_pods_were_removed_after_its_completion_has_succeeded(api: KubernetesApi, night: Nights) -> None:
    """apache/airflow #56693: a Job that had completed failed its task where its pods were gone by then."""
    work = night(GANG)
    work.advance()
    work.begin()
    made = work.commit()
    api.set_status(FIRST, COMPLETE, "jobs")
    assert api.names() == []
    assert work.advance(watched=1, reported=LaunchStatus(phase="ended", exit_code=0)) == made
    assert api.names("jobs") == []


@pytest.mark.parametrize(("placement", "plural"), [(None, "pods"), (GANG, "jobs")])
def test_deferred_task_that_was_marked_by_hand_leaves_nothing_running(
    api: KubernetesApi, night: Nights, placement: Any, plural: str
) -> None:
    """apache/airflow #62398 and #44014: the pod of a deferred task that a user marked as failed or success ran on."""
    trigger = watch_of(night(placement).advance())
    assert api.names(plural) == [FIRST]
    # What the triggerer calls when a user has ended the task.
    asyncio.run(trigger.on_kill())
    assert api.names(plural) == []


@pytest.mark.parametrize("seen", [LaunchStatus(phase="ended", exit_code=0), LaunchStatus(phase="ended", exit_code=1)])
def test_failed_pod_is_no_success_whatever_the_trigger_saw_of_it(api: KubernetesApi, night: Nights, seen: LaunchStatus) -> None:
    """apache/airflow #41867: a pod that was seen between two states of its container, and failed, made its task a success."""
    work = night(infrastructure=0)
    running(api, work)
    api.set_status(FIRST, failed(1))
    error = {"code": "data.empty", "exit_code": 65, "message": "no rows", "hint": ""}
    work.work_folder.write_error(work.request().attempt_id, error)
    with pytest.raises(StageEndedError, match="no rows") as caught:
        work.advance(watched=1, reported=seen)
    assert caught.value.end.action is Action.FAIL


def test_two_runs_that_need_the_same_work_wait_for_one_pod(api: KubernetesApi, night: Nights) -> None:
    """The provider searches a pod by DAG, task and run: the second run would start another one."""
    work = night()
    first = work.advance()
    api.set_status(FIRST, RUNNING)
    assert work.advance(work.task(run_id="r2")).name == first.name
    assert sum(api.creates.values()) == 1


def test_pod_that_ended_while_no_task_looked_is_not_run_again(api: KubernetesApi, night: Nights) -> None:
    """The provider deletes a pod that has ended when the task is tried again, and starts another one."""
    work: Night = night()
    running(api, work)
    made = work.commit()
    api.set_status(FIRST, SUCCEEDED)
    assert work.advance(work.task(try_number=2)) == made
    assert sum(api.creates.values()) == 1
