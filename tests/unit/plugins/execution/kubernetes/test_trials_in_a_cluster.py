"""A worker of a study where the backend is a cluster: one Job at a time, each waited for in the triggerer."""

import os
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from nightshift.execution.kubernetes.status import LaunchStatus
from nightshift.operators.pods import TrialsJobOperator
from tests.unit.plugins.execution.kubernetes.kubernetes_api import KubernetesApi
from training.contracts import RunIdentity, StageResult
from training.runtime.provenance import CHECKOUT
from training.spec import freeze, parse_spec, resolve_uris
from training.store import Store
from training.store.leases import COMMIT, Lease
from training.tuning.records import StudyStore, TrialRecord

SPEC_PATH = CHECKOUT / "dags" / "pipelines" / "search_ranking.yaml"
TUNE = "\ntune:\n  trials: 2\n  space: {learning_rate: {float: [1e-5, 1e-2]}}\n"
COMPLETE = {"conditions": [{"type": "Complete", "status": "True"}]}
CLUSTER = "namespace: nightshift\nimage: registry/stage:1\nsecrets: {trial: [database]}\nresources: {train: {cpus: 3, memory: 5GiB}}\n"


class StudyWorker:
    """One worker's task, with what Airflow keeps of it while it is deferred."""

    def __init__(self, execute: Any, context_of: Any, store: Store) -> None:
        spec = resolve_uris(parse_spec(SPEC_PATH.read_bytes() + TUNE.encode()), os.environ)
        resolved = {"spec_uri": store.put_json(freeze(spec)), "as_of": "2026-02-01T02:00:00+00:00", "force": False}
        prepared = StageResult(
            pipeline=spec.name,
            stage="prepare",
            work_id="f" * 64,
            artifact_uri="file:///dataset",
            digest="1",
            run=RunIdentity(dag_id=spec.name, run_id="r1", task_id="prepare"),
            attempt_id="a1",
            attempts=1,
            committed_at="2026-02-01T02:00:05+00:00",
        )
        context = context_of("trials", results={"resolve": resolved, "prepare": prepared.to_xcom()})
        context["ti"].map_index = 0
        self.context = {**context, "run_id": "r1", "dag": None}
        self.execute, self.store = execute, store

    def start(self) -> TaskDeferred:
        with pytest.raises(TaskDeferred) as caught:
            self.execute(TrialsJobOperator(task_id="trials", worker=0), self.context)
        return caught.value

    def finish(self, deferred: TaskDeferred) -> int:
        """Do as the trial in the pod would; return its slot."""
        work_folder = self.store.work_folder("search_ranking", "trial", deferred.kwargs["work_id"])
        request = self.store.read_request(work_folder.launches().history()[-1].value["request_uri"])
        slot = int(request.parameters["slot"])
        assert request.parameters["shared"] is True, "pods share no disk"
        record = TrialRecord(slot=slot, state="complete", value=1.0, settings={"learning_rate": 1e-3}, epochs=1, steps=1)
        StudyStore(self.store, request.pipeline, request.parameters["study"]).add(record)
        Lease.acquire(work_folder, owner=request.run.owner, attempt_id=request.attempt_id).commit(COMMIT, {})
        facts = {"artifact_uri": "file:///a", "digest": "d" * 64, "attempts": 1, "committed_at": "2026-02-01T02:00:05+00:00"}
        same = {name: getattr(request, name) for name in ("pipeline", "stage", "work_id", "run", "attempt_id")}
        assert work_folder.create_result(StageResult(**facts, **same))
        return slot

    def resume(self, deferred: TaskDeferred) -> Any:
        event = {"number": deferred.trigger.number, "seen": LaunchStatus(phase="ended", exit_code=0, words="done").to_json()}
        task = TrialsJobOperator(task_id="trials", worker=0)
        return getattr(task, deferred.method_name)(self.context, event=event, **(deferred.kwargs or {}))


@pytest.fixture
def worker(
    api: KubernetesApi, shop: Path, store: Store, execute: Any, context_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> StudyWorker:
    placement = tmp_path / "placement.yaml"
    placement.write_text(CLUSTER, encoding="utf-8")
    monkeypatch.setenv("NIGHTSHIFT_BACKEND", "kubernetes")
    monkeypatch.setenv("NIGHTSHIFT_KUBERNETES", str(placement))
    return StudyWorker(execute, context_of, store)


def test_a_worker_has_one_trial_in_the_cluster_at_a_time_until_the_study_is_full(worker: StudyWorker, api: KubernetesApi) -> None:
    deferred = worker.start()
    (first,) = api.names("jobs")
    assert first.startswith("search-ranking-trial-")
    assert worker.finish(deferred) == 0
    api.set_status(first, COMPLETE, "jobs")
    with pytest.raises(TaskDeferred) as caught:
        worker.resume(deferred)
    (second,) = api.names("jobs")
    assert second != first, "the first one's pod is gone before the second one's is made"
    assert worker.finish(caught.value) == 1
    api.set_status(second, COMPLETE, "jobs")
    assert worker.resume(caught.value)["worker"] == 0
    assert api.names("jobs") == []


def test_a_trial_is_placed_as_the_training_is(worker: StudyWorker, api: KubernetesApi) -> None:
    worker.start()
    (name,) = api.names("jobs")
    container = api.objects["jobs", name]["spec"]["template"]["spec"]["containers"][0]
    assert "training.runtime.torchrun" in container["command"]
    assert "training.stages.trial" in container["command"]
    assert container["resources"]["requests"]["cpu"] == "3000m"
    assert container["envFrom"] == [{"secretRef": {"name": "database"}}]
