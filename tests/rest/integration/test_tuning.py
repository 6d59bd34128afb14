"""A study on a real Airflow: two trials at a time, their runs in MLflow below the study's, the best settings in the model."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import mlflow
import pytest

from tests.integration.installation import Installation
from training.tuning.records import StudyStore

pytestmark = [pytest.mark.integration, pytest.mark.slow]

NIGHT = {"as_of": "2026-02-01T02:00:00+00:00"}
TRIALS = 4
TUNE = """
tune:
  trials: 4
  parallel: 2
  pruner: none
  space:
    learning_rate: {float: [1e-3, 1e-1], log: true}
    settings.dropout: {float: [0.0, 0.4]}
"""


def with_study(installation: Installation, name: str) -> str:
    """Add a small pipeline that searches before it trains, in a pool with room for two."""
    installation.add_pipeline(name)
    path = installation.dags / "pipelines" / f"{name}.yaml"
    text = path.read_text(encoding="utf-8").replace("processes_per_node: 1}", "processes_per_node: 1, pool: studies}")
    assert "pool: studies" in text
    path.write_text(text + TUNE, encoding="utf-8")
    if installation.api.find("/pools/studies") is None:
        installation.api.post("/pools", {"name": "studies", "slots": 2, "description": "For trials", "include_deferred": False})
    return name


def workers(installation: Installation, dag_id: str, run_id: str) -> list[dict[str, Any]]:
    found = installation.api.get(f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances", limit=100)["task_instances"]
    return [task for task in found if task["task_id"] == "trials"]


@pytest.fixture(scope="module")
def night(installation: Installation) -> tuple[str, str]:
    """A night with a study; return its pipeline and its run."""
    name = with_study(installation, "tuned_shop")
    run_id = installation.trigger(name, NIGHT)
    assert installation.wait(name, run_id, timeout_seconds=400) == "success", installation.why(name, run_id)
    return name, run_id


def test_two_workers_share_a_study_and_the_best_settings_are_the_models(installation: Installation, night: tuple[str, str]) -> None:
    name, run_id = night
    tune = installation.result(name, run_id, "tune")
    tuning = installation.store.manifests.get(tune.artifact_uri, kind="tuning")
    assert tune.scalars["trials"] == tuning.meta["trials"]["complete"] == TRIALS
    records = StudyStore(installation.store, name, tuning.meta["study"]).records()
    assert [record.slot for record in records] == list(range(TRIALS))
    trained = installation.result(name, run_id, "train")
    model = installation.store.manifests.get(trained.artifact_uri, kind="model")
    assert model.meta["settings"]["learning_rate"] == tuning.meta["settings"]["learning_rate"]
    assert model.meta["settings"]["settings"]["dropout"] == tuning.meta["settings"]["settings.dropout"]
    assert trained.scalars["validation_loss"] == pytest.approx(
        min(record.value for record in records if record.value is not None), abs=1e-6
    )
    assert "Report" in installation.links(name, run_id, "tune")

    at_once = workers(installation, name, run_id)
    assert [task["map_index"] for task in at_once] == [0, 1]
    begun, ended = ([datetime.fromisoformat(task[key]) for task in at_once] for key in ("start_date", "end_date"))
    assert max(begun) < min(ended), "the workers ran at the same time"


def test_every_trial_is_a_run_below_the_studys(installation: Installation, night: tuple[str, str]) -> None:
    name, run_id = night
    client = mlflow.MlflowClient(installation.mlflow_uri)
    experiment = client.get_experiment_by_name(name)
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    (study,) = [run for run in runs if run.info.run_name.startswith("study ")]
    nested = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == study.info.run_id]
    assert sorted(run.info.run_name for run in nested) == [f"trial {slot}" for slot in range(TRIALS)]
    assert all("validation_loss" in run.data.metrics for run in nested)
    best = installation.result(name, run_id, "tune").scalars["best_value"]
    assert study.data.metrics["best_value"] == pytest.approx(best)
    assert study.info.status == "FINISHED"


def test_the_same_night_again_finds_the_study_done(installation: Installation, night: tuple[str, str]) -> None:
    name, first = night
    again = installation.trigger(name, NIGHT)
    assert installation.wait(name, again, timeout_seconds=200) == "success", installation.why(name, again)
    for stage in ("tune", "train"):
        assert installation.result(name, again, stage).attempt_id == installation.result(name, first, stage).attempt_id


def test_a_study_alone_has_a_space_and_an_objective_of_its_own(installation: Installation, night: tuple[str, str]) -> None:
    dag_id = f"{night[0]}.tune"
    conf = {**NIGHT, "tune": {"trials": 2, "objective": "ndcg@10", "space": {"settings.embedding_dim": {"int": [4, 16]}}}}
    run_id = installation.trigger(dag_id, conf)
    assert installation.wait(dag_id, run_id, timeout_seconds=200) == "success", installation.why(dag_id, run_id)
    tune = installation.result(dag_id, run_id, "tune")
    tuning = installation.store.manifests.get(tune.artifact_uri, kind="tuning")
    assert list(tuning.meta["settings"]) == ["settings.embedding_dim"]
    assert tuning.meta["objective"] == "ndcg@10"
    assert "train" not in installation.tasks(dag_id, run_id)
    assert list(Path(installation.home / "tuning").glob("*.journal")), "on one machine the storage is a file"
