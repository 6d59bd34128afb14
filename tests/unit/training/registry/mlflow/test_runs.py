"""What MLflow's pages show of an evaluation and of a decision, read back from a real tracking database."""

from __future__ import annotations

import json
from pathlib import Path

import mlflow
import pytest

from tests.unit.training.registry.scenes import decide_on
from training.contracts import instant_of
from training.registry.ledger.ledger import Ledger
from training.registry.mlflow.runs import Evaluated, log_evaluation, note_decision
from training.registry.mlflow.schema import ModelSchema, schema_text
from training.registry.mlflow.versions import register_candidate
from training.store import Manifest, Store

pytestmark = pytest.mark.slow

DATASET = Manifest(
    kind="dataset",
    files={},
    meta={
        "rows": {"train": 90, "validation": 4, "test": 6},
        "bounds": {"train": ["2026-01-01", "2026-01-28"], "test": ["2026-01-29", "2026-01-30"]},
        "schema": [{"name": "price", "nulls": 0, "type": "float"}, {"name": "at", "nulls": 0, "type": "timestamp[us]"}],
        "snapshot": "s1",
    },
)
FACTS = b'{"family": "linear"}'


@pytest.fixture
def evaluated(registry: mlflow.MlflowClient, model: str, tmp_path: Path) -> Evaluated:
    experiment_id = registry.create_experiment(f"pipeline of {model}", artifact_location=str(tmp_path / "artifacts"))
    run = registry.create_run(experiment_id)
    store = Store(str(tmp_path / "store"))
    _uri, manifest = store.manifests.put_files("model", {"model.json": FACTS}, {"weights_digest": f"weights of {model}"})
    tags = {"nightshift.pipeline": "p"}
    made = register_candidate(
        store,
        f"{model}_new",
        manifest,
        inputs={"price": "float32", "odd:name@x": "int64"},
        run=run,
        tags=tags,
        output="ranking of clicked",
    )
    return Evaluated(
        **{
            "run": run,
            "logged_model": made.logged_model,
            "pipeline": "p",
            "description": "Ranks.",
            "dataset_uri": "file:///d",
        },
        as_of=instant_of("2026-02-01T02:00:00+00:00"),
        dataset=DATASET,
    )


def test_an_evaluation_is_on_the_run_on_the_logged_model_and_once_however_often_it_is_logged(
    registry: mlflow.MlflowClient, evaluated: Evaluated
) -> None:
    for _ in range(2):
        log_evaluation(evaluated, {"ndcg@10": 0.64, "mrr": 0.5}, b"<html>")
    run = registry.get_run(evaluated.run.info.run_id)
    assert {name: run.data.metrics[name] for name in ("test_ndcg_at_10", "test_mrr")} == {"test_ndcg_at_10": 0.64, "test_mrr": 0.5}
    assert len(registry.get_metric_history(evaluated.run.info.run_id, "test_mrr")) == 1
    (version,) = registry.search_model_versions(f"run_id = '{evaluated.run.info.run_id}'")
    logged = registry.get_logged_model(evaluated.logged_model)
    assert version.source == f"models:/{evaluated.logged_model}"
    assert logged.experiment_id == run.info.experiment_id, "beside the runs of its pipeline"
    assert {metric.key: (metric.value, metric.dataset_name) for metric in logged.metrics} == {
        "test_ndcg_at_10": (0.64, "p test"),
        "test_mrr": (0.5, "p test"),
    }
    assert version.description == schema_text(ModelSchema({"price": "float32", "odd:name@x": "int64"}, ()))
    assert logged.params == {"input.price": "float32", "input.odd_name_x": "int64", "output": "ranking of clicked"}


def test_a_run_names_the_parts_of_its_data_with_rows_and_columns(registry: mlflow.MlflowClient, evaluated: Evaluated) -> None:
    log_evaluation(evaluated, {}, b"")
    log_evaluation(evaluated, {}, b"")
    inputs = registry.get_run(evaluated.run.info.run_id).inputs.dataset_inputs
    parts = {part.dataset.name: part for part in inputs}
    assert len(inputs) == 3
    assert {name: part.tags[0].value for name, part in parts.items()} == {
        **{"p train": "training", "p validation": "validation", "p test": "evaluation"}
    }
    test = parts["p test"].dataset
    assert json.loads(test.profile) == {"num_rows": 6, "first": "2026-01-29", "last": "2026-01-30"}
    assert [(column["name"], column["type"]) for column in json.loads(test.schema)["mlflow_colspec"]] == [
        ("price", "float"),
        ("at", "datetime"),
    ]
    assert json.loads(test.source) == {"uri": "file:///d", "snapshot": "s1", "split": "test"}


def test_an_experiment_has_the_pipelines_description_and_a_persons_stays(registry: mlflow.MlflowClient, evaluated: Evaluated) -> None:
    def note() -> str:
        return registry.get_experiment(registry.get_run(evaluated.run.info.run_id).info.experiment_id).tags["mlflow.note.content"]

    log_evaluation(evaluated, {}, b"")
    assert note() == "Ranks."
    registry.set_experiment_tag(registry.get_run(evaluated.run.info.run_id).info.experiment_id, "mlflow.note.content", "ours")
    log_evaluation(evaluated, {}, b"")
    assert note() == "ours"


def test_a_decision_is_on_the_run_as_two_tags_and_its_headline(registry: mlflow.MlflowClient, evaluated: Evaluated, tmp_path: Path) -> None:
    entry = decide_on(Ledger(f"sqlite:///{tmp_path}/ledger.db"), 3, "needs_approval")
    note_decision(evaluated.run.info.run_id, entry)
    tags = registry.get_run(evaluated.run.info.run_id).data.tags
    assert (tags["decision"], tags["version"]) == ("needs approval", "1.3.0")
    assert tags["mlflow.note.content"] == "needs approval: gap 0.2 is above 0.1; version 1.3.0 of m"


def test_a_run_that_mlflow_does_not_have_costs_a_warning_and_no_error(
    registry: mlflow.MlflowClient, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    note_decision("0" * 32, decide_on(Ledger(f"sqlite:///{tmp_path}/ledger.db"), 3))
    assert "does not name the decision" in caplog.text
    note_decision(None, decide_on(Ledger(f"sqlite:///{tmp_path}/ledger2.db"), 3))
