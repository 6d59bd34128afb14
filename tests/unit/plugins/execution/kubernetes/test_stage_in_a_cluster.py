"""The operator of a stage where the backend is a cluster: it defers, resumes, and ends as the launch did."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from nightshift.execution.kubernetes import remote_work
from nightshift.execution.kubernetes.status import LaunchStatus
from nightshift.execution.retries import InfrastructureError
from nightshift.operators.pods import StagePodOperator
from nightshift.operators.resolve import ResolveOperator
from nightshift.operators.stage import StageFailedError
from tests.unit.plugins.execution.kubernetes.kubernetes_api import RUNNING, SUCCEEDED, KubernetesApi, failed
from training.code.closure import Code
from training.contracts import RunIdentity, StageResult
from training.runtime.provenance import CHECKOUT
from training.store import Store
from training.store.leases import COMMIT, Lease

SPEC_PATH = CHECKOUT / "dags" / "pipelines" / "search_ranking.yaml"


class Task:
    """One try of `ingest`, with what Airflow keeps of it while it is deferred."""

    def __init__(self, execute: Any, context_of: Any, store: Store) -> None:
        self.execute = execute
        self.context_of = context_of
        self.store = store
        self.operator = StagePodOperator(task_id="ingest", stage="ingest")
        self.resolved = execute(ResolveOperator(task_id="resolve", spec_path=str(SPEC_PATH)), context_of("resolve"))

    def context(self, try_number: int = 1, **run: Any) -> Any:
        made = self.context_of("ingest", try_number=try_number, results={"resolve": self.resolved}, **run)
        made["ti"].map_index = -1
        return {**made, "run_id": "r1", "dag": None}

    def start(self, try_number: int = 1) -> TaskDeferred:
        with pytest.raises(TaskDeferred) as caught:
            self.execute(self.operator, self.context(try_number))
        return caught.value

    def resume(self, deferred: TaskDeferred, seen: LaunchStatus) -> dict[str, Any]:
        """As another worker would: with nothing but what was kept."""
        self.operator = StagePodOperator(task_id="ingest", stage="ingest")
        event = {"number": deferred.trigger.number, "seen": seen.to_json()}
        method = getattr(self.operator, deferred.method_name)
        found: dict[str, Any] = method(self.context(), event=event, **(deferred.kwargs or {}))
        return found

    def request(self, deferred: TaskDeferred) -> Any:
        work_folder = self.store.work_folder("search_ranking", "ingest", deferred.kwargs["work_id"])
        return work_folder, self.store.read_request(work_folder.launches().history()[-1].value["request_uri"])


@pytest.fixture
def task(
    api: KubernetesApi, shop: Path, store: Store, execute: Any, context_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Task:
    placement = tmp_path / "placement.yaml"
    placement.write_text("namespace: nightshift\nimage: registry/stage:1\n", encoding="utf-8")
    monkeypatch.setenv("NIGHTSHIFT_BACKEND", "kubernetes")
    monkeypatch.setenv("NIGHTSHIFT_KUBERNETES", str(placement))
    monkeypatch.setattr(remote_work.time, "sleep", lambda seconds: None)
    return Task(execute, context_of, store)


def commit(task: Task, deferred: TaskDeferred) -> None:
    work_folder, request = task.request(deferred)
    Lease.acquire(work_folder, owner=request.run.owner, attempt_id=request.attempt_id).commit(COMMIT, {})
    facts = {"artifact_uri": "file:///a", "digest": "d" * 64, "attempts": 1, "committed_at": "2026-02-01T02:00:05+00:00"}
    same = {name: getattr(request, name) for name in ("pipeline", "stage", "work_id", "run", "attempt_id")}
    assert work_folder.create_result(StageResult(**facts, **same))


def test_a_stage_waits_in_the_triggerer_and_its_result_is_what_the_store_says(task: Task, api: KubernetesApi) -> None:
    deferred = task.start()
    (name,) = api.names()
    assert (deferred.trigger.name, deferred.trigger.kind) == (name, "Pod")
    commit(task, deferred)
    api.set_status(name, SUCCEEDED)
    found = StageResult.from_mapping(task.resume(deferred, LaunchStatus(phase="ended", exit_code=0)))
    assert found.reused_from is None
    assert found.run == RunIdentity(dag_id="search_ranking", run_id="r1", task_id="ingest")
    assert api.names() == []


@pytest.mark.parametrize("exit_code", [0, 65])
def test_rendered_template_has_the_launch_also_after_the_worker_that_ends_the_task(task: Task, api: KubernetesApi, exit_code: int) -> None:
    deferred = task.start()
    (name,) = api.names()
    if exit_code == 0:
        commit(task, deferred)
        api.set_status(name, SUCCEEDED)
        task.resume(deferred, LaunchStatus(phase="ended", exit_code=0))
    else:
        api.set_status(name, failed(exit_code))
        with pytest.raises(AirflowFailException):
            task.resume(deferred, LaunchStatus(phase="ended", exit_code=exit_code))
    shown: Any = task.operator
    assert (shown.image, shown.pod_template_dict["metadata"]["name"]) == ("registry/stage:1", name)


def test_a_source_that_changes_while_the_stage_runs_does_not_start_it_again(task: Task, api: KubernetesApi, shop: Path) -> None:
    deferred = task.start()
    commit(task, deferred)
    (shop / "dt=2026-01-02" / "late.parquet").write_bytes(b"more")
    task.resume(deferred, LaunchStatus(phase="ended", exit_code=0))
    assert sum(api.creates.values()) == 1


@pytest.mark.slow
def test_a_pod_that_says_success_without_a_result_is_no_success(task: Task, api: KubernetesApi) -> None:
    deferred = task.start()
    api.set_status(api.names()[0], SUCCEEDED)
    with pytest.raises(TaskDeferred) as caught:
        task.resume(deferred, LaunchStatus(phase="ended", exit_code=0))
    assert caught.value.trigger.number == 2


@pytest.mark.parametrize(
    ("exit_code", "code", "kind"),
    [(65, "data.empty", AirflowFailException), (74, "storage.unavailable", StageFailedError), (75, "lease.lost", InfrastructureError)],
)
def test_the_task_ends_as_the_stage_says(task: Task, api: KubernetesApi, exit_code: int, code: str, kind: type[Exception]) -> None:
    deferred = task.start()
    work_folder, request = task.request(deferred)
    work_folder.write_error(request.attempt_id, {"code": code, "exit_code": exit_code, "message": "what went wrong", "hint": ""})
    api.set_status(api.names()[0], failed(exit_code))
    with pytest.raises(kind, match="what went wrong"):
        task.resume(deferred, LaunchStatus(phase="ended", exit_code=exit_code))


def test_a_failed_check_in_a_pod_links_to_its_report(task: Task, api: KubernetesApi) -> None:
    work_folder, request = task.request(task.start())
    error = {"code": "checks.failed", "exit_code": 65, "message": "m", "hint": "", "details": {"report_uri": "file:///report"}}
    work_folder.write_error(request.attempt_id, error)
    api.set_status(api.names()[0], failed(65))
    with pytest.raises(AirflowFailException):
        task.execute(task.operator, task.context())
    assert task.operator.report_uri == "file:///report"


def test_a_later_try_finds_the_pod_of_the_one_that_died(task: Task, api: KubernetesApi) -> None:
    first = task.start()
    api.set_status(api.names()[0], RUNNING)
    assert task.start(try_number=2).trigger.name == first.trigger.name
    assert sum(api.creates.values()) == 1


def test_a_run_that_was_deleted_and_triggered_again_is_not_judged_by_its_earlier_launch(task: Task, api: KubernetesApi) -> None:
    deferred = task.start()
    refused = LaunchStatus(phase="ended", code="pod.image_refused", words="image registry/stage:1 cannot be used")
    with pytest.raises(AirflowFailException, match="cannot be used"):
        task.resume(deferred, refused)
    with pytest.raises(TaskDeferred) as caught:
        task.execute(task.operator, task.context(start_date=datetime(2026, 2, 2, tzinfo=UTC)))
    assert caught.value.trigger.number == 2
    assert api.names() == [caught.value.trigger.name]


def test_a_cluster_that_is_away_costs_none_of_the_users_tries(task: Task, api: KubernetesApi) -> None:
    api.faults = [503] * 30
    with pytest.raises(InfrastructureError, match=r"kubernetes.unavailable"):
        task.execute(task.operator, task.context())


def test_a_kill_while_the_task_is_at_work_ends_the_launch(task: Task, api: KubernetesApi) -> None:
    task.start()
    api.set_status(api.names()[0], RUNNING)
    task.operator.on_kill()
    assert api.names() == []


def test_the_code_that_a_pod_must_run_is_in_its_request(task: Task, api: KubernetesApi) -> None:
    _, request = task.request(task.start())
    assert request.code_version == Code.of(request.code_files).version
    assert "training/stages/ingest.py" in request.code_files
