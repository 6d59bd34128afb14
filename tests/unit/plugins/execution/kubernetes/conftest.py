"""A task's work in a cluster that is a double: what tests of operators and triggers share."""

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tenacity

from nightshift.execution.backend import StageTask
from nightshift.execution.kubernetes import remote_work
from nightshift.execution.kubernetes.backend import KubernetesBackend
from nightshift.execution.kubernetes.client import Submitter
from nightshift.execution.kubernetes.config import Cluster
from nightshift.execution.kubernetes.remote_work import RemoteWork, WatchedLaunch
from nightshift.execution.kubernetes.status import LaunchStatus
from nightshift.execution.kubernetes.trigger import WatchLaunch
from nightshift.operators.pods import StagePodOperator, TrainingJobOperator
from nightshift.resolved_run import ResolvedRun
from nightshift.work import Work
from tests.unit.plugins.execution.kubernetes.kubernetes_api import RUNNING, KubernetesApi
from training.code.closure import Code
from training.contracts import RunIdentity, StageRequest, StageResult
from training.runtime.provenance import CHECKOUT
from training.spec import PipelineSpec, freeze, load_spec
from training.spec.reader.loader import check_values
from training.store import Store, WorkFolder
from training.store.leases import Lease
from training.store.work_folder import new_attempt_id

WORK_ID = "f" * 64
FIRST = "search-ranking-ffffffffffff-1"
"""The name of a work's first launch, with `known_names`."""
SECOND = "search-ranking-ffffffffffff-2"


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesApi]:
    """The double; KUBECONFIG leads to it, and nobody waits between two tries."""
    made = KubernetesApi()
    path = str(made.kubeconfig(tmp_path / "kubeconfig.json"))
    # Both clients read KUBECONFIG once, when they are imported.
    for library in ("kubernetes", "kubernetes_asyncio"):
        monkeypatch.setattr(f"{library}.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", path)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(tenacity.nap.time, "sleep", lambda seconds: None)
    yield made
    made.close()


@pytest.fixture
def known_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts differ by the digits that are in no name, and no name has a stage."""
    monkeypatch.setattr(remote_work, "new_attempt_id", lambda: new_attempt_id()[12:] + "f" * 12)
    monkeypatch.setattr(remote_work, "launch_name", lambda _p, _s, attempt_id, number: f"search-ranking-{attempt_id[-12:]}-{number}")


@pytest.fixture
def spec_with() -> Callable[..., PipelineSpec]:
    """Return `spec_with(placement={…}, infrastructure=…)`: search_ranking with another placement."""

    def make(placement: dict[str, Any] | None = None, infrastructure: int = 3) -> PipelineSpec:
        values = load_spec(CHECKOUT / "dags" / "pipelines" / "search_ranking.yaml").model_dump(mode="json", by_alias=True)
        values["train"]["placement"] = placement or {"nodes": 1, "processes_per_node": 1}
        values["retries"] |= {"infrastructure": infrastructure}
        return check_values(values, "test")

    return make


class Killed(BaseException):
    """A worker's death."""


class Night:
    """One piece of work, and the tasks that ask for it."""

    def __init__(self, store: Store, spec: PipelineSpec, cluster: Cluster, stage: str) -> None:
        self.store = store
        self.stage = stage
        self.spec = spec
        self.cluster = cluster
        values = {"spec_uri": store.put_json(freeze(spec)), "as_of": datetime(2026, 2, 1, 2, tzinfo=UTC).isoformat(), "force": False}
        self.resolved = ResolvedRun(values)
        self.said: list[str] = []

    @property
    def work_folder(self) -> WorkFolder:
        return self.store.work_folder(self.spec.name, self.stage, WORK_ID)

    def task(self, *, run_id: str = "r1", try_number: int = 1, generation: str = "0") -> RemoteWork:
        """Return the work as this try of this run's task sees it."""
        run = RunIdentity(dag_id=self.spec.name, run_id=run_id, task_id=self.stage, try_number=try_number)
        context: Any = {}
        kind = TrainingJobOperator if self.stage == "train" else StagePodOperator
        arguments = KubernetesBackend.arguments(SimpleNamespace(cluster=self.cluster), self.stage, self.spec)  # type: ignore[arg-type]
        operator = kind(task_id=self.stage, stage=self.stage, **arguments)
        operator.render_template_fields(context)
        task = StageTask(
            run=run,
            resolved=self.resolved,
            work=Work(
                stage=self.stage,
                id=WORK_ID,
                folder=self.work_folder,
                inputs={"dataset": "file:///d"},
                parameters={"world_size": 1},
                code=Code(version="c"),
            ),
            operator=operator,
            context=context,
            say=self.said.append,
            warn=self.said.append,
        )
        return RemoteWork(task, generation=generation, cluster=self.cluster, submitter=Submitter(self.cluster, context, operator))

    def advance(self, task: RemoteWork | None = None, **seen: Any) -> Any:
        return (task or self.task()).advance(**seen)

    def request(self) -> StageRequest:
        """The newest launch's."""
        value = self.work_folder.launches().history()[-1].value
        return self.store.read_request(value["request_uri"])

    def begin(self, request: StageRequest | None = None) -> Lease:
        """What the stage's process does first."""
        asked = request or self.request()
        return Lease.acquire(self.work_folder, owner=asked.run.owner, attempt_id=asked.attempt_id, takeover_epoch=asked.takeover_epoch)

    def commit(self, request: StageRequest | None = None) -> StageResult:
        """What the stage's process does last."""
        asked = request or self.request()
        result = StageResult(
            pipeline=asked.pipeline,
            stage=asked.stage,
            work_id=asked.work_id,
            artifact_uri="file:///model",
            digest="d" * 64,
            run=asked.run,
            attempt_id=asked.attempt_id,
            attempts=1,
            committed_at="2026-02-01T02:00:05+00:00",
            timings={"total": 1.0},
        )
        assert self.work_folder.create_result(result)
        return result


@pytest.fixture
def night(api: KubernetesApi, store: Store, spec_with: Callable[..., PipelineSpec]) -> Callable[..., Night]:
    """Return `night(placement=…, infrastructure=…, **cluster)`: a training's where a placement is given, which is a Job; else a Pod's."""

    def make(placement: dict[str, Any] | None = None, infrastructure: int = 3, **cluster: Any) -> Night:
        said = {"namespace": "nightshift", "image": "registry/stage:1", **cluster}
        stage = "train" if placement else "evaluate"
        return Night(store, spec_with(placement, infrastructure), Cluster.model_validate(said), stage)

    return make


Nights = Callable[..., Night]


def watch_of(waiting: WatchedLaunch) -> WatchLaunch:
    """Return the trigger that waits for a launch, as Airflow carries it: by its serialised form."""
    same = {name: getattr(waiting, name) for name in ("number", "name", "kind", "namespace", "connection", "in_cluster")}
    path, arguments = WatchLaunch(**same, limits=waiting.limits.to_json()).serialize()
    assert path == "nightshift.execution.kubernetes.trigger.WatchLaunch"
    return WatchLaunch(**json.loads(json.dumps(arguments)))


def seen_by(watch: WatchLaunch) -> LaunchStatus:
    """Return what the trigger saw last, once it has fired."""

    async def first() -> Any:
        return await anext(watch.run())

    event = asyncio.run(first())
    assert event.payload["number"] == watch.number
    return LaunchStatus.from_json(event.payload["seen"])


def running(api: KubernetesApi, work: Night) -> None:
    """A first launch that is under way: its process has the lease."""
    assert isinstance(work.advance(), WatchedLaunch)
    api.set_status(FIRST, RUNNING)
    work.begin()
