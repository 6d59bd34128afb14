"""MLflow loses what retention has let go, files included, and nothing else; a death in between costs nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import mlflow
import pytest
from mlflow.exceptions import MlflowException

from tests.unit.training.evaluation.model_files import model_folder
from tests.unit.training.registry.scenes import decide_on
from training.contracts import RunIdentity, StageRequest
from training.engine.tracking.mlflow_journal import ID_TAG, Backlog, RunJournal
from training.process import liveness
from training.registry.ledger.ledger import Ledger
from training.registry.ledger.retention import LedgerRoots
from training.registry.ledger.version_weights import noted
from training.registry.mlflow.retention import forget, forget_notes
from training.registry.mlflow.versions import register_candidate
from training.store import Store

pytestmark = pytest.mark.slow
FUTURE = datetime.now(UTC) + timedelta(days=1)
PAST = FUTURE - timedelta(days=30)


class Scene:
    """Three versions of a model with runs; the third is champion, the weights of the first are deleted."""

    def __init__(self, folder: Path, client: mlflow.MlflowClient, name: str) -> None:
        self.store, self.name, self.client = Store(str(folder / "store")), name, client
        url = f"sqlite:///{folder}/ledger.db"
        self.ledger = Ledger(url)
        files = {path.name: path.read_bytes() for path in model_folder(folder / "model").iterdir()}
        experiment = client.create_experiment(name, artifact_location=str(folder / "artifacts"))
        self.runs, uris = [], []
        for number in (1, 2, 3):
            uri, manifest = self.store.manifests.put_files("model", files, {"weights_digest": f"w{number}"})
            uris.append(uri)
            run = client.create_run(experiment, tags={ID_TAG: "t"})
            client.log_text(run.info.run_id, "page", "evaluation.html")
            client.set_terminated(run.info.run_id)
            self.runs.append(run.info.run_id)
            made = register_candidate(self.store, name, manifest, inputs={"value": "double"}, run=run, tags={})
            self.ledger.note_registration(name, f"w{number}", made)
            decide_on(self.ledger, number, model=name, evidence={"model_uri": uri})
        self.files = folder / "artifacts"
        assert LedgerRoots(url, champions=0).release([uris[0]]) == set()

    def forget(self, before: datetime) -> None:
        forget(self.store, self.ledger, self.name, experiment=self.name, before=before)

    def versions(self) -> set[str]:
        return {str(found.version) for found in self.client.search_model_versions(f"name = '{self.name}'")}

    def stages(self) -> list[str]:
        return [self.client.get_run(run_id).info.lifecycle_stage for run_id in self.runs]


@pytest.fixture
def scene(tmp_path: Path, registry: mlflow.MlflowClient, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.chdir(tmp_path)
    # Logged models are made in the experiment of the environment.
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", f"m-{tmp_path.name}")
    return Scene(tmp_path, registry, f"m-{tmp_path.name}")


def test_version_without_weights_goes_with_its_files_its_run_and_its_note(scene: Scene) -> None:
    gone = scene.client.get_model_version(scene.name, "1")
    location = Path(scene.client.get_logged_model(str(gone.source).removeprefix("models:/")).artifact_location.removeprefix("file://"))
    assert any(location.rglob("*"))
    notes = len(scene.store.bucket.folders("refs/registered"))
    scene.forget(PAST)
    assert scene.versions() == {"2", "3"}
    assert [path for path in location.rglob("*") if path.is_file()] == []
    assert scene.stages() == ["deleted", "active", "active"]
    assert len(list(scene.files.rglob("evaluation.html"))) == 2
    assert len(scene.store.bucket.folders("refs/registered")) == notes - 1
    assert mlflow.pyfunc.load_model(f"models:/{scene.name}/3")


def test_note_without_its_logged_model_goes_once_its_weights_are_deleted_and_not_before(scene: Scene) -> None:
    sources = {number: str(scene.client.get_model_version(scene.name, number).source) for number in ("1", "2")}
    # By a person: retention finds no version any more.
    for number, source in sources.items():
        scene.client.delete_model_version(scene.name, number)
        forget_notes(scene.store, scene.ledger)
        assert noted(scene.store, source) is not None, "its logged model is there"
        scene.client.delete_logged_model(source.removeprefix("models:/"))
    forget_notes(scene.store, scene.ledger)
    assert {number: noted(scene.store, source) is not None for number, source in sources.items()} == {"1": False, "2": True}


def test_old_runs_go_unless_a_version_that_stays_is_of_them(scene: Scene) -> None:
    experiment = scene.client.get_experiment_by_name(scene.name)
    assert experiment is not None
    trial, alive = (scene.client.create_run(experiment.experiment_id, tags={ID_TAG: "t"}).info.run_id for _ in range(2))
    # A person's own run in the pipeline's experiment.
    own = scene.client.create_run(experiment.experiment_id).info.run_id
    for run_id in (trial, own):
        scene.client.set_terminated(run_id)
    scene.forget(FUTURE)
    assert scene.client.get_run(own).info.lifecycle_stage == "active"
    assert scene.client.get_run(trial).info.lifecycle_stage == "deleted"
    assert scene.client.get_run(alive).info.lifecycle_stage == "active"
    assert scene.stages() == ["deleted", "active", "active"]


def test_old_run_of_a_version_of_another_model_stays(scene: Scene) -> None:
    experiment = scene.client.get_experiment_by_name(scene.name)
    assert experiment is not None
    run_id = scene.client.create_run(experiment.experiment_id, tags={ID_TAG: "t"}).info.run_id
    scene.client.set_terminated(run_id)
    other = f"{scene.name}-before"
    scene.client.create_registered_model(other)
    scene.client.create_model_version(other, f"{scene.files}/model", run_id=run_id)
    scene.forget(FUTURE)
    assert scene.client.get_run(run_id).info.lifecycle_stage == "active"


def test_each_run_that_is_looked_at_is_a_movement(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    moves: list[None] = []
    monkeypatch.setattr(liveness, "moved", lambda: moves.append(None))
    experiment = scene.client.get_experiment_by_name(scene.name)
    assert experiment is not None
    for _ in range(5):
        scene.client.set_terminated(scene.client.create_run(experiment.experiment_id, tags={ID_TAG: "t"}).info.run_id)
    scene.forget(FUTURE)
    assert len(moves) >= 5


def test_version_with_an_alias_that_a_user_set_stays_with_its_run(scene: Scene) -> None:
    scene.client.set_registered_model_alias(scene.name, "shadow", "1")
    scene.forget(FUTURE)
    assert scene.versions() == {"1", "2", "3"}
    assert scene.stages() == ["active"] * 3
    assert mlflow.pyfunc.load_model(f"models:/{scene.name}@shadow")
    scene.client.delete_registered_model_alias(scene.name, "shadow")
    scene.forget(PAST)
    assert scene.versions() == {"2", "3"}


@pytest.mark.parametrize("step", ["delete_logged_model", "delete_run", "delete_model_version"])
def test_deletion_that_was_interrupted_is_finished_by_the_next(scene: Scene, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(mlflow.MlflowClient, step, dies)
        with pytest.raises(KeyboardInterrupt):
            scene.forget(PAST)
    scene.forget(PAST)
    scene.forget(PAST)
    assert scene.versions() == {"2", "3"}
    with pytest.raises(MlflowException):
        mlflow.pyfunc.load_model(f"models:/{scene.name}/1")


def request_of(store: Store, stage: str, work_id: str, **parameters: object) -> None:
    """Begin a piece of work, and leave it without a result."""
    request = StageRequest(
        pipeline="p",
        stage=stage,
        work_id=work_id,
        attempt_id="a",
        store_uri=store.root_uri,
        spec_uri=store.put_json({}),
        as_of=datetime(2026, 1, 1, tzinfo=UTC),
        inputs={},
        parameters=parameters,
        run=RunIdentity(dag_id="p", run_id="r", task_id=stage),
    )
    store.work_folder("p", stage, work_id).write_request(request)


def other_version(scene: Scene) -> None:
    other = f"{scene.name}-shared"
    scene.client.create_registered_model(other)
    scene.client.create_model_version(other, f"{scene.files}/model", run_id=scene.runs[0])


def run_under_way(scene: Scene) -> None:
    scene.client.update_run(scene.runs[0], status="RUNNING")


def waiting_metrics(scene: Scene) -> None:
    journal = RunJournal(scene.store.bucket, f"stages/p/train/{'a' * 64}")
    journal.settle(scene.runs[0])
    journal.note("000001-r", Backlog())


def evaluation_under_way(scene: Scene) -> None:
    work_folder = scene.store.work_folder("p", "train", "b" * 64)
    RunJournal(scene.store.bucket, scene.store.bucket.key(work_folder.uri)).settle(scene.runs[0])
    # As a store that was moved has it: with the root of its earlier place.
    request_of(scene.store, "evaluate", "c" * 64, training_uri=work_folder.uri.replace(scene.store.root_uri, "s3://earlier/place"))


def promotion_under_way(scene: Scene) -> None:
    request_of(scene.store, "promote", "d" * 64, mlflow_run_id=scene.runs[0])


@pytest.mark.parametrize(
    "user",
    [other_version, run_under_way, waiting_metrics, evaluation_under_way, promotion_under_way],
    ids=lambda user: user.__name__,
)
def test_run_of_a_deleted_version_stays_while_something_else_uses_it(scene: Scene, user: Callable[[Scene], None]) -> None:
    user(scene)
    scene.forget(FUTURE)
    assert scene.versions() == {"2", "3"}, "the version goes all the same"
    assert scene.stages() == ["active"] * 3
    assert len(list(scene.files.rglob("evaluation.html"))) == 3


def test_run_of_finished_work_goes_with_its_version(scene: Scene) -> None:
    """The same records as above, with a result: nothing will write to the run any more."""
    evaluation_under_way(scene)
    scene.store.bucket.put(f"stages/p/evaluate/{'c' * 64}/_RESULT.json", b"{}")
    scene.store.bucket.put(f"stages/p/train/{'b' * 64}/_RESULT.json", b"{}")
    scene.forget(PAST)
    assert scene.stages() == ["deleted", "active", "active"]


def test_old_run_of_no_version_stays_while_unfinished_work_uses_it(scene: Scene) -> None:
    experiment = scene.client.get_experiment_by_name(scene.name)
    assert experiment is not None
    run_id = scene.client.create_run(experiment.experiment_id).info.run_id
    scene.client.set_terminated(run_id)
    request_of(scene.store, "evaluate", "c" * 64, mlflow_run_id=run_id)
    scene.forget(FUTURE)
    assert scene.client.get_run(run_id).info.lifecycle_stage == "active"
