"""Weights that MLflow has lost are registered again: from their logged model, else from the store, else not at all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow
import pandas as pd
import pytest

from tests.unit.training.evaluation.model_files import model_folder
from tests.unit.training.registry.scenes import decide_on
from training.errors import DataError
from training.registry.ledger.alias_findings import RecordedFindings
from training.registry.ledger.decisions import find_version, holder_of
from training.registry.ledger.ledger import Ledger
from training.registry.ledger.version_weights import noted
from training.registry.mlflow import restoring
from training.registry.mlflow.mirror import differences, mirror
from training.registry.mlflow.restoring import origin_of
from training.registry.mlflow.schema import ModelSchema
from training.registry.mlflow.versions import register_candidate, run_here
from training.registry.model.rebuild import child_environment, rebuilt
from training.registry.serving import load_verified
from training.store import Store

pytestmark = pytest.mark.slow

ROWS = pd.DataFrame({"value": [1.0, 59.0]})
SHOWN = ModelSchema({"value": "double, nullable"}, ("probability of late",))


class Scene:
    """A champion in a registry; its weights are those of a small model of trees."""

    def __init__(self, folder: Path, store: Store, client: mlflow.MlflowClient) -> None:
        self.store, self.client, self.model = store, client, folder.name.replace("_", "-")
        self.ledger = Ledger(f"sqlite:///{folder}/ledger.db")
        self.files = {path.name: path.read_bytes() for path in model_folder(folder / "model").iterdir()}
        self.champion = self.night(1, "accepted")
        self.scores = self.load().predict(ROWS).tolist()

    def night(self, number: int, outcome: str, **evidence: Any) -> str:
        """Register weights and decide about them, as a run does; return their number in MLflow."""
        uri, manifest = self.store.manifests.put_files("model", self.files, {"weights_digest": f"w{number}"})
        run = run_here(self.client, evidence.get("mlflow_run_id"))
        made = register_candidate(
            self.store, self.model, manifest, inputs={"value": "float64"}, run=run, tags={}, output="binary of late", schema=SHOWN
        )
        self.ledger.note_registration(self.model, f"w{number}", made)
        named = {"model_uri": uri, "input_schema": {"value": "double"}, "pipeline": self.model, **evidence}
        decide_on(self.ledger, number, outcome, model=self.model, evidence=named)
        mirror(self.ledger, self.store, self.model)
        self.uri = uri
        return made.number

    def mirror(self) -> None:
        mirror(self.ledger, self.store, self.model)

    def alias(self) -> str | None:
        found = self.client.get_registered_model(self.model).aliases.get("champion")
        return None if found is None else str(found)

    def weights(self) -> str:
        """Return the weights behind the alias, as the store notes them."""
        facts = noted(self.store, self.client.get_model_version_by_alias(self.model, "champion").source)
        return "" if facts is None else facts.weights_digest

    def load(self) -> Any:
        holder = self.ledger.standing(self.model).champion
        assert holder is not None
        return load_verified(f"models:/{self.model}@champion", digest=holder.artifact_digest)

    def kinds(self) -> list[str]:
        return [finding.kind for finding in RecordedFindings(self.ledger.database_url).open(self.model)]

    def source(self) -> str:
        return str(self.client.get_model_version_by_alias(self.model, "champion").source)


@pytest.fixture
def scene(tmp_path: Path, store: Store, registry: mlflow.MlflowClient, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.chdir(tmp_path)
    experiment = registry.create_experiment(f"e-{tmp_path.name}", artifact_location=str(tmp_path / "artifacts"))
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", experiment)
    return Scene(tmp_path, store, registry)


def test_a_registered_model_that_was_deleted_serves_the_first_champion_after_a_rejected_night(scene: Scene) -> None:
    source = scene.source()
    scene.client.delete_registered_model(scene.model)
    # MLflow numbers from 1 again.
    assert (scene.champion, scene.night(2, "rejected")) == ("1", "1")
    assert (scene.alias(), scene.weights(), scene.source()) == ("2", "w1", source)
    standing = scene.ledger.standing(scene.model)
    assert standing.champion is not None
    assert (standing.champion.version, standing.revision) == ("2", 1)
    assert dict(scene.client.get_model_version(scene.model, "1").tags)["nightshift.decision"] == "rejected"
    assert scene.load().predict(ROWS).tolist() == scene.scores
    assert differences(scene.ledger, scene.store, scene.model) == []


def test_a_model_whose_files_are_gone_too_is_made_from_the_store_with_the_types_of_its_registration(scene: Scene) -> None:
    digest = scene.ledger.registrations(scene.model)["w1"].artifact_digest
    scene.client.delete_logged_model(scene.source().removeprefix("models:/"))
    scene.client.delete_registered_model(scene.model)
    scene.mirror()
    assert scene.weights() == "w1"
    place = scene.ledger.registrations(scene.model)["w1"]
    assert place.rebuilt_at is not None
    # MLflow writes the time into it.
    assert place.artifact_digest != digest
    assert scene.load().predict(ROWS).tolist() == scene.scores
    version = scene.client.get_model_version(scene.model, place.number)
    assert f"Registered again from the store on {place.rebuilt_at:%Y-%m-%d}, with the code of that day." in version.description
    assert "| input | value | double, nullable |" in version.description
    assert "| output | probability of late | double |" in version.description
    assert scene.client.get_logged_model(place.logged_model).params == {"input.value": "double, nullable", "output": "binary of late"}
    scene.mirror()
    assert differences(scene.ledger, scene.store, scene.model) == []


def test_a_version_whose_logged_model_was_deleted_alone_is_made_again_and_the_broken_one_goes(scene: Scene) -> None:
    scene.client.delete_logged_model(scene.source().removeprefix("models:/"))
    # MLflow still has the version and the alias, and loads neither.
    assert scene.alias() == scene.champion
    (listed,) = differences(scene.ledger, scene.store, scene.model)
    assert listed.what == "alias champion"
    scene.mirror()
    assert (scene.weights(), scene.alias() == scene.champion, scene.kinds()) == ("w1", False, [])
    assert scene.load().predict(ROWS).tolist() == scene.scores
    scene.mirror()
    assert differences(scene.ledger, scene.store, scene.model) == []
    # Nor does a candidate of the same weights get it.
    assert scene.night(1, "accepted") == scene.alias()


def test_a_logged_model_with_another_file_is_not_registered_again(scene: Scene, tmp_path: Path) -> None:
    source = scene.source()
    (changed,) = (path for path in (tmp_path / "artifacts").rglob("weights.ubj") if path.is_file())
    changed.write_bytes(changed.read_bytes() + b" ")
    scene.client.delete_registered_model(scene.model)
    scene.mirror()
    assert (scene.weights(), scene.source() == source) == ("w1", False)


def test_a_server_without_the_run_and_the_experiment_gets_the_model_without_them(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = scene.client.create_run(scene.client.create_experiment(f"p-{tmp_path.name}")).info.run_id
    scene.night(2, "accepted", mlflow_run_id=run_id)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_ID")
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
        monkeypatch.setenv(name, f"sqlite:///{tmp_path}/other.db")
    scene.client = mlflow.MlflowClient()
    scene.mirror()
    assert scene.weights() == "w2"
    assert not scene.client.get_model_version_by_alias(scene.model, "champion").run_id
    assert scene.load().predict(ROWS).tolist() == scene.scores


def test_another_manifest_of_the_same_weights_that_was_rejected_is_neither_made_again_nor_gone_back_to(scene: Scene) -> None:
    champion = scene.uri
    changed = {**scene.files, "transforms.json": scene.files["transforms.json"] + b" "}
    uri, _ = scene.store.manifests.put_files("model", changed, {"weights_digest": "w1"})
    named = {"model_uri": uri, "input_schema": {"other": "double"}, "pipeline": scene.model, "evaluation_digest": "other"}
    decide_on(scene.ledger, 1, "rejected", model=scene.model, evidence=named)
    origin = origin_of(scene.ledger, scene.model, holder_of(scene.ledger.history(scene.model)[0]))
    assert (origin.model_uri, origin.inputs) == (champion, {"value": "double"})
    lose(scene)
    scene.mirror()
    folder = mlflow.artifacts.download_artifacts(f"models:/{scene.model}@champion")
    assert (Path(folder) / "data" / "transforms.json").read_bytes() == scene.files["transforms.json"]
    assert find_version(scene.ledger, scene.ledger.outline(scene.model), "1.1.0", scene.model).model_uri == champion


def lose(scene: Scene) -> None:
    """Let MLflow lose the champion and its files."""
    scene.client.delete_logged_model(scene.source().removeprefix("models:/"))
    scene.client.delete_registered_model(scene.model)


def test_weights_that_are_nowhere_leave_no_alias_and_a_finding_until_they_are_back(scene: Scene) -> None:
    lose(scene)
    key = scene.store.bucket.key(scene.uri)
    manifest = scene.store.bucket.get(key)
    scene.store.bucket.delete(key)
    scene.mirror()
    assert scene.kinds() == ["missing"]
    scene.store.bucket.put(key, manifest)
    scene.mirror()
    assert (scene.weights(), scene.kinds()) == ("w1", [])


def test_a_model_that_cannot_be_loaded_gets_no_alias(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    lose(scene)

    def broken(*_arguments: object, inputs: Mapping[str, str]) -> str:
        raise DataError("registry.rebuild", f"it cannot be loaded with {dict(inputs)}")

    with monkeypatch.context() as patch:
        patch.setattr(restoring, "rebuilt", broken)
        scene.mirror()
    assert scene.kinds() == ["missing"]
    assert scene.client.search_model_versions(f"name = '{scene.model}'") == []


def test_the_child_refuses_a_model_that_it_makes_and_cannot_load(scene: Scene, tmp_path: Path) -> None:
    uri, _ = scene.store.manifests.put_files("model", {**scene.files, "weights.ubj": b"no model"}, {"weights_digest": "w9"})
    with pytest.raises(DataError, match=r"\[model\.unloadable\] it was made and cannot be loaded") as caught:
        rebuilt(scene.store, uri, tmp_path / "made", inputs={})
    assert caught.value.code == "registry.rebuild"


def test_the_child_sees_no_secret_of_the_process_that_starts_it(scene: Scene) -> None:
    secrets = {
        **dict.fromkeys(("NIGHTSHIFT_DATABASE", "NIGHTSHIFT_TOKEN", "NIGHTSHIFT_WEBHOOK_SECRET", "MLFLOW_TRACKING_PASSWORD"), "secret"),
        **dict.fromkeys(("AIRFLOW__CORE__FERNET_KEY", "ALERTS_URI", "AWS_SECRET_ACCESS_KEY"), "secret"),
    }
    passed = child_environment(scene.store, {"PATH": "/bin", "OMP_NUM_THREADS": "1", "NIGHTSHIFT_MODEL_PACKAGES": "mine", **secrets})
    assert passed.keys() == {"PATH", "OMP_NUM_THREADS", "NIGHTSHIFT_MODEL_PACKAGES", "PYTHONPATH"}
    in_s3: Any = SimpleNamespace(bucket=SimpleNamespace(root_uri="s3://models/nightshift"))
    assert "AWS_SECRET_ACCESS_KEY" in child_environment(in_s3, secrets)
