"""What MLflow's pages show of a training beside its metrics: the evaluation, the data, what the pipeline is for, and the decision.

Everything is written in a form that a second attempt writes again without a trace: metrics have the run's `as_of` as their time, data
parts have digests, and tags have one value.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import mlflow
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, RunTag
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

from training.contracts import Instant, JsonObject, StageRequest
from training.engine.tracking.mlflow_delivery import delivered_run, quick_requests
from training.errors import UnavailableError
from training.process.scratch import scratch_folder
from training.registry.ledger.reasons import headline
from training.registry.mlflow.versions import registry_faults, run_here, set_by_two
from training.spec import PipelineSpec
from training.store import Bucket, Manifest, Store

if TYPE_CHECKING:
    # The ledger opens the database, which an evaluation has no Secret for.
    from training.registry.ledger.ledger import Entry

logger = logging.getLogger(__name__)

REPORT: Final = "evaluation.html"
NOTE_TAG: Final = "mlflow.note.content"
CONTEXT_TAG: Final = "mlflow.data.context"
CONTEXTS: Final = {"train": "training", "validation": "validation", "test": "evaluation"}
"""Split of a dataset to MLflow's name for it."""
MAX_DIGEST_CHARS: Final = 36
"""MLflow's column holds no more of a dataset's digest."""
COLUMN_TYPES: Final = {
    **dict.fromkeys(("int8", "int16", "int32", "uint8", "uint16"), "integer"),
    **dict.fromkeys(("int64", "uint32", "uint64"), "long"),
    **dict.fromkeys(("float", "halffloat"), "float"),
    **{"double": "double", "bool": "boolean", "string": "string", "large_string": "string"},
}
"""Types of Arrow to MLflow's, for its page; all others are `binary` there, timestamps `datetime`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluated:
    """Whose evaluation is logged."""

    run: Any | None
    """Of the training in MLflow, if it has one."""
    logged_model: str
    """Id of the registered version's."""
    pipeline: str
    description: str
    """Of the pipeline, for its experiment's page."""
    as_of: Instant
    dataset: Manifest
    dataset_uri: str

    @classmethod
    def of(cls, request: StageRequest, spec: PipelineSpec, store: Store, *, run: Any | None, logged_model: str) -> Evaluated:
        """Return those of a request of the stage `evaluate`."""
        return cls(
            run=run,
            logged_model=logged_model,
            pipeline=request.pipeline,
            description=spec.description,
            as_of=request.as_of,
            dataset=store.manifests.get(request.inputs["dataset"], kind="dataset"),
            dataset_uri=request.inputs["dataset"],
        )


def training_run(bucket: Bucket, parameters: JsonObject) -> Any | None:
    """Return the MLflow run of the training that a request's parameters name (`delivered_run`), None where this server has none.

    Raises:
        UnavailableError: `mlflow.unavailable`, `mlflow.denied`.
    """
    run_id = delivered_run(bucket, parameters)
    with registry_faults():
        run = run_here(mlflow.MlflowClient(), run_id)
    if run_id is not None and run is None:
        logger.warning("MLflow does not have the run %s of this training any more: its model is registered without a run", run_id)
    return run


def log_evaluation(evaluated: Evaluated, metrics: Mapping[str, float], report: bytes) -> None:
    """Add the evaluation's metrics to the training's MLflow run and to the version's logged model, the data to the run, and the report.

    Raises:
        UnavailableError: `mlflow.unavailable`, `mlflow.denied`.
    """
    if evaluated.run is None:
        return
    info = evaluated.run.info
    with registry_faults(), scratch_folder() as folder:
        client = mlflow.MlflowClient()
        inputs = _data_parts(evaluated)
        tested = next((part.dataset for part in inputs if part.tags[0].value == CONTEXTS["test"]), None)
        client.log_inputs(info.run_id, inputs)
        client.log_batch(info.run_id, metrics=list(_metrics(evaluated, metrics, tested)))
        path = folder / REPORT
        path.write_bytes(report)
        # The client's own method would ask for the run once more.
        get_artifact_repository(info.artifact_uri).log_artifact(str(path))
        _describe_experiment(client, info.experiment_id, evaluated.description)


def delete_reports(run_ids: Collection[str]) -> int:
    """Delete the evaluation's page from these MLflow runs; return how many were looked at: one that is gone is passed over.

    Raises:
        UnavailableError: `mlflow.unavailable`, `mlflow.denied`.
    """
    with registry_faults():
        client = mlflow.MlflowClient()
        found = [run for run_id in run_ids if (run := run_here(client, run_id)) is not None]
        for run in found:
            get_artifact_repository(run.info.artifact_uri).delete_artifacts(REPORT)
    return len(found)


def note_decision(run_id: str | None, entry: Entry) -> None:
    """Set the decision about a training's model on its MLflow run: two tags that fit a column, and the headline as its description.

    It is for people: where MLflow does not answer, the run stays without, with a warning.
    """
    if run_id is None:
        return
    tags = {"decision": entry.outcome.replace("_", " "), "version": entry.semantic_version or entry.version, NOTE_TAG: headline(entry)}
    try:
        with quick_requests(), registry_faults():
            mlflow.MlflowClient().log_batch(run_id, tags=[RunTag(name, value) for name, value in tags.items()])
    except UnavailableError as err:
        logger.warning("the MLflow run %s does not name the decision: %s", run_id, err)


def _metrics(evaluated: Evaluated, metrics: Mapping[str, float], tested: Dataset | None) -> Iterable[Metric]:
    at_ms = int(evaluated.as_of.timestamp() * 1000)
    on = {} if tested is None else {"dataset_name": tested.name, "dataset_digest": tested.digest}
    for name, value in metrics.items():
        # MLflow takes no @ in a metric's name.
        yield Metric(f"test_{name.replace('@', '_at_')}", value, at_ms, 0, model_id=evaluated.logged_model, **on)


def _data_parts(evaluated: Evaluated) -> list[DatasetInput]:
    meta = evaluated.dataset.meta
    columns = [
        {"name": str(column["name"]), "type": _column_type(str(column["type"])), "required": True} for column in meta.get("schema", [])
    ]
    found = []
    for split, context in CONTEXTS.items():
        rows, bounds = meta.get("rows", {}).get(split), meta.get("bounds", {}).get(split)
        if rows is None:
            continue
        profile = {"num_rows": rows, **({} if bounds is None else {"first": bounds[0], "last": bounds[1]})}
        part = Dataset(
            name=f"{evaluated.pipeline} {split}",
            digest=evaluated.dataset.digest[:MAX_DIGEST_CHARS],
            source_type="nightshift",
            source=json.dumps({"uri": evaluated.dataset_uri, "snapshot": meta.get("snapshot"), "split": split}),
            schema=json.dumps({"mlflow_colspec": columns}),
            profile=json.dumps(profile),
        )
        found.append(DatasetInput(part, [InputTag(CONTEXT_TAG, context)]))
    return found


def _column_type(arrow: str) -> str:
    return "datetime" if arrow.startswith(("timestamp", "date")) else COLUMN_TYPES.get(arrow, "binary")


def _describe_experiment(client: Any, experiment_id: str, description: str) -> None:
    """Give an experiment the pipeline's description, unless it has one: a person's stays."""
    experiment = client.get_experiment(experiment_id)
    if not description or experiment.tags.get(NOTE_TAG):
        return
    with set_by_two():
        client.set_experiment_tag(experiment.experiment_id, NOTE_TAG, description)
