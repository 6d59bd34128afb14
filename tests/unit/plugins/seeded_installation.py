"""An api-server's application over a seeded installation: two pipelines, runs, a model, snapshots; and users with rights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.api_fastapi.app import create_auth_manager, get_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.models import DagRun, TaskInstance  # noqa: TID251 - what the api-server reads
from airflow.models.serialized_dag import SerializedDagModel  # noqa: TID251 - as above
from airflow.models.xcom import XComModel  # noqa: TID251 - as above
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from fastapi.testclient import TestClient
from sqlalchemy import delete
from sqlalchemy.orm import Session

from nightshift.api.application import app
from nightshift.queries.studies import tune_dag_id
from nightshift.run_refs import settled_ref, study_ref
from nightshift.settings import Settings
from tests.unit.plugins.airflow_dags import PIPELINES, STUDY
from training.contracts import RunIdentity, StageRequest, StageResult, instant_of
from training.database import connect
from training.database.schema import DatasetVersionRow
from training.registry.ledger.decisions import record_candidate
from training.registry.ledger.ledger import AliasHolder, Ledger
from training.registry.ledger.reasons import Reason
from training.runtime.provenance import CHECKOUT
from training.spec import freeze, parse_spec
from training.store import Manifest, Store
from training.store.leases import Lease
from training.store.manifests import FileEntry
from training.tuning.records import StudyStore, TrialRecord

API = "/api/v1"
DONE = "manual__2026-02-01T02:00:00+00:00"
AS_OF = "2026-02-01T02:00:00+00:00"
STUDY_RUN = "manual__study"
STUDY_DIGEST = "5" * 64
BOUNDS = {"test": ["2026-01-30T00:00:00+00:00", "2026-02-01T00:00:00+00:00"]}
OLD, NEW = "0a1b2c3d4e5f6071", "1" * 16
NUM_EPOCHS = 5
STEPS_PER_EPOCH = 100


@dataclass(frozen=True)
class Seeded:
    """The application and its users."""

    client: TestClient
    headers: Callable[..., dict[str, str]]

    def get(self, path: str, user: str = "ada", role: str | None = "viewer", **options: Any) -> Any:
        return self.client.get(API + path, headers={**self.headers(user, role), **options.pop("headers", {})}, **options)

    def put(self, path: str, body: Any, user: str = "bob", role: str | None = "user") -> Any:
        return self.client.put(API + path, json=body, headers=self.headers(user, role))

    def post(self, path: str, body: Any, user: str = "bob", role: str | None = "user", **options: Any) -> Any:
        return self.client.post(API + path, json=body, headers={**self.headers(user, role), **options.pop("headers", {})}, **options)


@contextmanager
def seeded_installation() -> Iterator[Seeded]:
    """Yield the application over an installation with runs, models and data."""
    create_auth_manager()
    _seed_runs()
    for name in PIPELINES:
        _seed_study(name)
        seed_model(name, ("1", "accepted"), ("2", "rejected"), ("3", "needs_approval"))
        _seed_datasets(name)
        seed_checkpoints(name)

    def headers(user: str, role: str | None) -> dict[str, str]:
        if role is None:
            return {}
        token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username=user, role=role))
        return {"Authorization": f"Bearer {token}"}

    yield Seeded(TestClient(app, raise_server_exceptions=False), headers)
    with create_session() as session:
        session.execute(delete(DagRun))


def _seed_runs() -> None:
    start = datetime(2026, 2, 1, 2, tzinfo=UTC)
    with create_session() as session:
        session.execute(delete(DagRun))
        for name in PIPELINES:
            dag = SerializedDagModel.get_dag(name, session=session)
            assert dag is not None
            for number in range(3):
                run = dag.create_dagrun(
                    run_id=DONE if number == 0 else f"manual__2026-02-0{number + 1}T02:00:00+00:00",
                    run_after=start + timedelta(days=number),
                    logical_date=None,
                    data_interval=None,
                    run_type=DagRunType.MANUAL,
                    triggered_by=DagRunTriggeredByType.REST_API,
                    triggering_user_name="ada",
                    conf={"train": {"learning_rate": 0.01}} if number == 0 else {},
                    state=DagRunState.SUCCESS if number == 0 else DagRunState.FAILED,
                    session=session,
                )
                session.flush()
                if number == 0:
                    _seed_results(session, run)


def _seed_results(session: Session, run: DagRun) -> None:
    settled = {"spec_uri": "store://spec", "as_of": AS_OF, "force": False, "overrides": {"train.learning_rate": 0.01}}
    values: dict[str, Any] = {"resolve": settled}
    result = StageResult(
        pipeline=run.dag_id,
        stage="train",
        work_id="f" * 64,
        artifact_uri=f"file:///store/{run.dag_id}",
        digest="d" * 64,
        run=RunIdentity(dag_id=run.dag_id, run_id=run.run_id, task_id="train"),
        attempt_id="a",
        attempts=2,
        committed_at=AS_OF,
        scalars={"rows": 1000, "validation_loss": 0.5},
        timings={"total": 12.5},
    )
    values["train"] = result.to_xcom()
    values["prepare"] = {"forged": True}
    for task_id, value in values.items():
        task = session.get(TaskInstance, _task_id(session, run, task_id))
        assert task is not None
        task.state = "success"
        XComModel.set(key="return_value", value=value, dag_id=run.dag_id, task_id=task_id, run_id=run.run_id, session=session)


def _seed_study(pipeline: str) -> None:
    """Record a study of three trials that has done two, by a run of the helper DAG."""
    with create_session() as session:
        dag = SerializedDagModel.get_dag(tune_dag_id(pipeline), session=session)
        assert dag is not None
        dag.create_dagrun(
            run_id=STUDY_RUN,
            run_after=datetime(2026, 2, 5, tzinfo=UTC),
            logical_date=None,
            data_interval=None,
            run_type=DagRunType.MANUAL,
            triggered_by=DagRunTriggeredByType.REST_API,
            triggering_user_name="ada",
            conf={},
            state=DagRunState.RUNNING,
            session=session,
        )
    store = Store(Settings.from_environment().store_uri)
    if settled_ref(store, tune_dag_id(pipeline), STUDY_RUN).read() is not None:
        return
    spec = parse_spec((CHECKOUT / "dags" / "pipelines" / f"{pipeline}.yaml").read_bytes() + STUDY)
    settled = {"spec_uri": store.put_json(freeze(spec)), "as_of": AS_OF, "force": False, "overrides": {}}
    settled_ref(store, tune_dag_id(pipeline), STUDY_RUN).move(settled, expected=0)
    study_ref(store, tune_dag_id(pipeline), STUDY_RUN).move({"study": STUDY_DIGEST}, expected=0)
    study = StudyStore(store, pipeline, STUDY_DIGEST)
    for slot, value in enumerate((0.5, 0.25)):
        study.add(TrialRecord(slot=slot, state="complete", value=value, settings={"learning_rate": 0.001 * (slot + 1)}, epochs=3, steps=30))


def _task_id(session: Session, run: DagRun, task_id: str) -> Any:
    found = run.get_task_instance(task_id, session=session)
    assert found is not None
    return found.id


def seed_model(pipeline: str, *outcomes: tuple[str, str]) -> None:
    """Record a decision about each version."""
    ledger = Ledger()
    for number, outcome in outcomes:
        revision = ledger.standing(pipeline).revision
        holder = AliasHolder(
            version=number,
            weights_digest=number * 64,
            model_uri=f"file:///model/{number}",
            as_of=instant_of(AS_OF),
            bounds=BOUNDS,
            semantic_version=f"1.{number}.0",
        )
        record_candidate(
            ledger,
            holder,
            model=pipeline,
            outcome=outcome,
            reasons=[Reason(gate="gain", passed=outcome == "accepted", words="gain 0.1", severity="fail")],
            evidence={
                "pipeline": pipeline,
                "weights_digest": number * 64,
                "evaluation_digest": number * 64,
                "revision": revision,
                "has_canary": False,
            },
            decided_by=f"{pipeline}/{DONE}/promote/1",
        )
    ledger.end_mirror(pipeline, None, revision=ledger.standing(pipeline).revision, decisions=len(outcomes))


def seed_checkpoints(pipeline: str) -> list[str]:
    """Record a training of five epochs of the run DONE, which keeps the names of the last four; return the URIs of its checkpoints."""
    store = Store(Settings.from_environment().store_uri)
    work_folder = store.work_folder(pipeline, "train", "f" * 64)
    work_folder.write_request(
        StageRequest(
            pipeline=pipeline,
            stage="train",
            work_id="f" * 64,
            attempt_id="a1",
            store_uri=store.root_uri,
            spec_uri="",
            as_of=instant_of(AS_OF),
            inputs={},
            run=RunIdentity(dag_id=pipeline, run_id=DONE, task_id="train"),
        )
    )
    lease, found = Lease.acquire(work_folder, owner="seeded", attempt_id="a1"), []
    for epoch in range(1, NUM_EPOCHS + 1):
        data = bytes([epoch] * 8)
        files = {"block-00000": FileEntry(digest=store.objects.put_bytes(data), size_bytes=len(data))}
        tensors = {"module/weight": {"dtype": "float32", "shape": [2], "offset": 0}}
        meta = {"tensors": tensors, "identity": {"world_size": 1, "dataset": pipeline}, "step": STEPS_PER_EPOCH * epoch, "epoch": epoch}
        uri = store.manifests.put(Manifest(kind="checkpoint", files=files, meta=meta))
        lease.commit("checkpoint", {"uri": uri, "step": STEPS_PER_EPOCH * epoch, "epoch": epoch, "keep": NUM_EPOCHS - 1})
        if epoch > 1:
            store.run_ref(pipeline, DONE, f"checkpoints/epoch_{epoch}").move(uri, expected=0)
        found.append(uri)
    return found


def _seed_datasets(pipeline: str) -> None:
    with Session(connect()) as session, session.begin():
        for number, version in enumerate((OLD, NEW)):
            session.add(
                DatasetVersionRow(
                    name=pipeline,
                    version=version,
                    storage_uri=f"file:///store/{pipeline}/{version}",
                    row_count=1000 + number,
                    size_bytes=2000,
                    schema_hash="s" * 64,
                    split_config={},
                    split_config_hash="c" * 64,
                    created_at=datetime(2026, 2, 1 + number, tzinfo=UTC),
                    created_by=f"{pipeline}/{DONE}/ingest/1",
                )
            )
