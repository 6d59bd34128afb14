"""What the operators of a cluster keep of Airflow's provider, and what of it they override: each test fails without the override."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.cncf.kubernetes.operators import pod as provider
from airflow.providers.cncf.kubernetes.operators.job import KubernetesJobOperator
from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.sdk.exceptions import TaskDeferred

from nightshift.execution.kubernetes.launch_request import launch_of
from nightshift.execution.kubernetes.manifests import Manifest, job_manifest, pod_manifest
from nightshift.execution.kubernetes.remote_work import RemoteWork
from nightshift.execution.kubernetes.status import LaunchStatus
from nightshift.execution.kubernetes.trigger import WatchLaunch
from nightshift.operators.pods import JobTask, PodTask
from tests.unit.plugins.execution.kubernetes.conftest import FIRST, Night, Nights, running
from tests.unit.plugins.execution.kubernetes.kubernetes_api import SUCCEEDED, KubernetesApi
from training.errors import DeniedError

pytestmark = pytest.mark.usefixtures("known_names")
GANG = {"nodes": 2, "processes_per_node": 1}


def operator_of(task: RemoteWork) -> Any:
    return task._submitter._operator


def launch(work: Night, attempt_id: str = "a1") -> Any:
    nodes = work.spec.train.placement.nodes if work.stage == "train" else 1
    return launch_of(
        work.spec, work.cluster, stage=work.stage, name=FIRST, attempt_id=attempt_id, request_uri="file:///r", nodes=nodes, spot=False
    )


def submit(work: Night, operator: Any, attempt_id: str = "a1") -> None:
    manifest = job_manifest if isinstance(operator, JobTask) else pod_manifest
    operator.submit(manifest(launch(work, attempt_id), work.cluster), {})


def test_installations_pod_mutation_hook_changes_the_pod_and_the_members(
    api: KubernetesApi, night: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hook(pod: Any) -> None:
        pod.metadata.labels["cost-centre"] = "ml"
        pod.spec.scheduler_name = "volcano"

    monkeypatch.setattr(provider, "pod_mutation_hook", hook)
    night().advance()
    night(GANG).advance()
    made: list[Manifest] = [api.objects["pods", FIRST], api.objects["jobs", FIRST]["spec"]["template"]]
    assert [(pod["metadata"]["labels"]["cost-centre"], pod["spec"]["schedulerName"]) for pod in made] == [("ml", "volcano")] * 2


@pytest.mark.parametrize("placement", [None, GANG], ids=["pod", "job"])
def test_connection_of_the_clusters_file_says_where_the_pod_is_made(
    api: KubernetesApi, night: Nights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, placement: Any
) -> None:
    extra = {"kube_config_path": str(tmp_path / "kubeconfig.json")}
    monkeypatch.setenv("AIRFLOW_CONN_TEAM_CLUSTER", json.dumps({"conn_type": "kubernetes", "extra": extra}))
    # Without the connection there is no cluster.
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    night(placement, connection="team_cluster").advance()
    assert api.creates["jobs" if placement else "pods", FIRST] == 1


@pytest.mark.parametrize("placement", [None, GANG], ids=["pod", "job"])
def test_task_policy_of_the_installation_changes_the_pod(api: KubernetesApi, night: Nights, placement: Any) -> None:
    work = night(placement, queues={"default": "shared"})
    task = work.task()
    operator = operator_of(task)
    # As a `task_policy` does when Airflow has read the DAG file.
    operator.labels["cost-centre"] = "ml"
    operator.annotations["audit"] = "yes"
    work.advance(task)
    made = api.objects["jobs" if placement else "pods", FIRST]
    pod = made["spec"]["template"] if placement else made
    assert (pod["metadata"]["labels"]["cost-centre"], pod["metadata"]["annotations"]["audit"]) == ("ml", "yes")
    assert ("kueue.x-k8s.io/queue-name" in pod["metadata"]["labels"]) is (placement is None), "of a Job, the Job is in the queue"
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "shared"


def test_task_policy_starts_no_job_before_its_queue_admits_it(api: KubernetesApi, night: Nights) -> None:
    work = night(GANG, queues={"default": "shared"})
    task = work.task()
    # The provider takes False for a value that is not set.
    operator_of(task).suspend = False
    work.advance(task)
    assert api.objects["jobs", FIRST]["spec"]["suspend"] is True


def differences(asked: Any, made: Any, path: str = "") -> list[str]:
    """Return the paths at which `made` lacks a value of `asked`; what is added does not count."""
    if isinstance(asked, dict) and isinstance(made, dict):
        return [found for key, value in asked.items() for found in differences(value, made.get(key), f"{path}.{key}")]
    if isinstance(asked, list) and isinstance(made, list) and len(asked) == len(made):
        return [found for number, value in enumerate(asked) for found in differences(value, made[number], f"{path}.{number}")]
    return [] if asked == made or not (asked or made) else [path]


@pytest.mark.parametrize("placement", [None, GANG], ids=["pod", "job"])
def test_all_that_the_manifest_of_a_launch_has_is_in_what_the_provider_builds(api: KubernetesApi, night: Nights, placement: Any) -> None:
    work = night(placement, queues={"default": "shared"}, secrets={"all": ["nightshift-store"]})
    submit(work, operator_of(work.task()))
    manifest, plural = (job_manifest, "jobs") if placement else (pod_manifest, "pods")
    assert differences(manifest(launch(work), work.cluster), api.objects[plural, FIRST]) == []


@pytest.mark.parametrize("placement", [None, GANG], ids=["pod", "job"])
def test_pod_mutation_hook_that_renames_moves_or_relabels_pods_does_not_hide_the_launch(
    api: KubernetesApi, night: Nights, monkeypatch: pytest.MonkeyPatch, placement: Any
) -> None:
    """A pod that is not found by its name is requested again for ever, and members without the label are none."""

    def hook(pod: Any) -> None:
        pod.metadata.name, pod.metadata.namespace, pod.metadata.labels = "pod-1", "teams", {"cost-centre": "ml"}

    monkeypatch.setattr(provider, "pod_mutation_hook", hook)
    work = night(placement)
    work.advance()
    plural = "jobs" if placement else "pods"
    assert api.creates[plural, FIRST] == 1
    metadata = api.objects[plural, FIRST]["metadata"]
    assert metadata["namespace"] == "nightshift"
    labels = (api.objects["jobs", FIRST]["spec"]["template"]["metadata"] if placement else metadata)["labels"]
    assert labels == {"cost-centre": "ml", "nightshift.io/launch": FIRST, "nightshift.io/attempt": work.request().attempt_id}


def test_callbacks_of_the_provider_see_the_pod_before_and_after_it_is_made(api: KubernetesApi, night: Nights) -> None:
    work, seen = night(), []

    class Noting(provider.KubernetesPodOperatorCallback):
        @staticmethod
        def on_pod_manifest_created(*, pod_request: Any, **_named: Any) -> None:
            seen.append(("manifest", pod_request.metadata.name, api.names()))

        @staticmethod
        def on_pod_creation(*, pod: Any, **_named: Any) -> None:
            seen.append(("made", pod.metadata.name, api.names()))

    task = work.task()
    operator_of(task).callbacks = [Noting]
    work.advance(task)
    assert seen == [("manifest", FIRST, []), ("made", FIRST, [FIRST])]


@pytest.mark.parametrize("placement", [None, GANG], ids=["pod", "job"])
def test_manifest_of_the_launch_is_what_airflow_renders_after_each_part_of_the_task(
    api: KubernetesApi, night: Nights, placement: Any
) -> None:
    """After a deferral the operator is a new one, and what it has last is what Airflow keeps."""
    work = night(placement)
    before = work.task()
    work.advance(before)
    work.begin()
    work.commit()
    after = work.task()
    work.advance(after, watched=1, reported=LaunchStatus(phase="ended", exit_code=0))
    for operator in (operator_of(before), operator_of(after)):
        assert operator.overwrite_rtif_after_execution
        assert operator.pod_template_dict["metadata"]["name"] == operator.name == FIRST
        container = operator.pod_template_dict["spec"]["containers"][0]
        assert operator.container_resources.requests == container["resources"]["requests"]


def test_training_whose_accelerator_has_left_the_clusters_file_still_ends(api: KubernetesApi, night: Nights) -> None:
    accelerators = {"h100": {"node_selector": {"gpu": "h100"}}}
    work = night({**GANG, "gpus": 1, "accelerator": "h100"}, accelerators=accelerators)
    work.advance()
    work.begin()
    work.commit()
    work.cluster = night(GANG).cluster
    assert work.advance(watched=1, reported=LaunchStatus(phase="ended", exit_code=0)).digest == "d" * 64


def test_dry_run_prints_the_pod_without_a_cluster(night: Nights, capsys: pytest.CaptureFixture[str]) -> None:
    operator_of(night(GANG).task()).dry_run()
    assert "image: registry/stage:1" in capsys.readouterr().out


@pytest.mark.parametrize("placement", [None, GANG], ids=["pod", "job"])
def test_result_is_pushed_and_no_sidecar_waits_for_it(api: KubernetesApi, night: Nights, placement: Any) -> None:
    work = night(placement)
    task = work.task()
    assert operator_of(task).do_xcom_push
    work.advance(task)
    pod = api.objects["jobs", FIRST]["spec"]["template"] if placement else api.objects["pods", FIRST]
    assert [container["name"] for container in pod["spec"]["containers"]] == ["stage"]
    assert operator_of(task).do_xcom_push


@pytest.mark.parametrize("placement", [None, GANG], ids=["pod", "job"])
def test_object_of_the_launchs_name_and_attempt_is_adopted_at_once(api: KubernetesApi, night: Nights, placement: Any) -> None:
    work = night(placement)
    for _ in range(2):
        operator = operator_of(work.task())
        assert not operator.durable, "the record of launches is the identity, not the state of one task"
        submit(work, operator)
    assert api.creates["jobs" if placement else "pods", FIRST] == 1


@pytest.mark.parametrize("placement", [None, GANG], ids=["pod", "job"])
def test_object_of_another_attempt_under_the_name_is_refused(api: KubernetesApi, night: Nights, placement: Any) -> None:
    work = night(placement)
    submit(work, operator_of(work.task()))
    with pytest.raises(DeniedError, match="has the attempt 'a1' and not 'a2'") as caught:
        submit(work, operator_of(work.task()), attempt_id="a2")
    assert caught.value.code == "kubernetes.name_taken"


def test_pod_that_has_ended_is_neither_deleted_nor_run_again(api: KubernetesApi, night: Nights) -> None:
    work = night()
    submit(work, operator_of(work.task()))
    api.set_status(FIRST, SUCCEEDED)
    submit(work, operator_of(work.task()))
    assert (api.creates["pods", FIRST], api.deletes["pods", FIRST]) == (1, 0)


def test_pod_is_found_by_the_launchs_name_by_every_run_that_waits_for_the_work(api: KubernetesApi, night: Nights) -> None:
    work = night()
    running(api, work)
    other = operator_of(work.task(run_id="r2"))
    other.name = FIRST
    assert other.find_pod("nightshift", {}).metadata.name == FIRST
    api.remove(FIRST)
    assert other.find_pod("nightshift", {}) is None


def test_job_keeps_its_name_its_members_and_its_policies(api: KubernetesApi, night: Nights) -> None:
    work = night(GANG, queues={"default": "shared"})
    work.advance()
    spec = api.objects["jobs", FIRST]["spec"]
    assert (spec["parallelism"], spec["completions"], spec["suspend"], spec["completionMode"]) == (2, 2, True, "Indexed")
    assert spec["podFailurePolicy"]["rules"]
    assert spec["successPolicy"] == {"rules": [{"succeededIndexes": "0"}]}
    assert spec["template"]["spec"]["subdomain"] == FIRST


def test_suspended_job_has_no_members_and_that_is_no_error(api: KubernetesApi, night: Nights) -> None:
    work = night(GANG, queues={"default": "shared"})
    task = work.task()
    work.advance(task)
    operator = operator_of(task)
    assert operator.get_pods(operator.pod_request_obj, {}) == []


@pytest.mark.parametrize("placement", [None, GANG], ids=["pod", "job"])
def test_task_waits_for_the_launch_and_not_for_a_pod_by_the_providers_triggers(night: Nights, placement: Any) -> None:
    work = night(placement)
    operator = operator_of(work.task())
    trigger = WatchLaunch(number=1, name=FIRST, kind="Pod", namespace="nightshift", limits={}, connection=None, in_cluster=None)
    operator._waits_for = (trigger, "f" * 64)
    wait = operator.execute_deferrable if placement else operator.invoke_defer_method
    with pytest.raises(TaskDeferred) as caught:
        wait()
    assert (caught.value.trigger, caught.value.method_name) == (trigger, "trigger_reentry")
    assert caught.value.kwargs == {"work_id": "f" * 64}


def test_end_of_a_pod_is_judged_by_no_method_of_the_provider(api: KubernetesApi, night: Nights) -> None:
    work = night()
    task = work.task()
    work.advance(task)
    operator = operator_of(task)
    pod = operator.find_pod("nightshift", {})
    pod.status.phase = "Failed"
    operator.cleanup(pod=pod, remote_pod=pod, xcom_result=None, context={})
    operator.post_complete_action(pod=pod, remote_pod=pod, context={}, result=None)
    assert api.names() == [FIRST], "what a launch left is deleted once its end is noted"


@pytest.mark.parametrize("placement", [None, GANG], ids=["pod", "job"])
def test_methods_of_the_task_are_the_stages_own(night: Nights, placement: Any) -> None:
    kind = type(operator_of(night(placement).task()))
    for name in ("execute", "trigger_reentry", "invoke_defer_method", "on_kill"):
        inherited = {getattr(other, name, None) for other in (PodTask, JobTask, KubernetesPodOperator, KubernetesJobOperator)}
        assert getattr(kind, name) not in inherited, name
