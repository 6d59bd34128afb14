"""Train: fits the spec's model on a dataset, resuming from the newest checkpoint.

python -m training.stages.train REQUEST_URI
torchrun --nproc-per-node=2 --max-restarts=0 -m training.stages.train REQUEST_URI
"""

from __future__ import annotations

import logging
import time
from typing import Any

from training.contracts import canonical_json
from training.engine.checkpoint import Checkpoints
from training.engine.distributed import Gang
from training.engine.tracking import Tracker
from training.models import FitContext, FitResult, load_family
from training.models.predictor import FORMAT_VERSION
from training.provenance import code_version, environment
from training.stages.runner import Outcome, StageContext, main
from training.store import Manifest, point_run_at

logger = logging.getLogger(__name__)

FETCHED = ("shards/", "transforms.json")


def work(context: StageContext) -> Outcome:
    """Train `request.inputs["dataset"]`; on ranks other than the first the outcome is of no account."""
    train = context.spec.train
    dataset = context.store.manifests.get(context.request.inputs["dataset"], kind="dataset")
    with context.timed("fetch"):
        names = [name for name in sorted(dataset.files) if name.startswith(FETCHED)]
        context.store.manifests.fetch(dataset, context.folder, names)
    gang = Gang.join()
    identity = {"world_size": gang.world_size, "batch_size": train.batch_size, "dataset": dataset.digest}
    checkpoints = Checkpoints(context, every_seconds=train.checkpoint.every.total_seconds(), identity=identity)
    tracker = Tracker(context, tags=_tags(context, dataset), parameters=_parameters(context))
    fit = FitContext(
        spec=context.spec,
        dataset_path=context.folder,
        dataset_meta=dataset.meta,
        dataset_digest=dataset.digest,
        gang=gang,
        checkpoints=checkpoints,
        tracker=tracker,
        stop=context.stop,
        stage=context,
    )
    status = "FAILED"
    started_at = time.monotonic()
    try:
        with context.timed("fit"):
            result = load_family(train.model).fit(fit)
        seconds = time.monotonic() - started_at
        status = "FINISHED"
    finally:
        try:
            checkpoints.close()
        finally:
            is_tracked = tracker.close()
            tracker.finish(status, {})
    if not gang.is_first:
        return Outcome(artifact_uri="", digest="")
    return _store(context, dataset, result, seconds, tracker, is_tracked=is_tracked)


def _store(context: StageContext, dataset: Manifest, result: FitResult, seconds: float, tracker: Tracker, *, is_tracked: bool) -> Outcome:
    world_size = context.world_size
    facts = {
        "format_version": FORMAT_VERSION,
        "family": context.spec.train.model,
        "task": context.spec.evaluate.task,
        "architecture": dict(result.architecture),
        "code_version": code_version(),
        "environment": environment(),
    }
    files: dict[str, Any] = {
        result.weights_name: result.weights,
        "model.json": canonical_json(facts),
        "transforms.json": (context.folder / "transforms.json").read_bytes(),
        "history.json": canonical_json(list(result.history)),
    }
    _, weights = context.store.manifests.put_files("weights", {result.weights_name: result.weights}, {})
    weights_digest = weights.files[result.weights_name].digest
    meta = {
        "family": context.spec.train.model,
        "weights_digest": weights_digest,
        "dataset": dataset.digest,
        "seed": context.spec.train.seed,
        "world_size": world_size,
        "best_epoch": result.best_epoch,
        "bounds": dataset.meta["bounds"],
    }
    uri, manifest = context.store.manifests.put_files("model", files, meta)
    point_run_at(context.store, context.request, "model", uri)
    rows = dataset.meta["rows"]["train"] * len(result.history)
    logger.info("best epoch %d, validation loss %.5f, weights %s", result.best_epoch, result.validation_loss, weights_digest)
    return Outcome(
        artifact_uri=uri,
        digest=manifest.digest,
        scalars={
            "weights_digest": weights_digest,
            "best_epoch": result.best_epoch,
            "validation_loss": round(result.validation_loss, 6),
            "steps": result.num_steps,
            "rows": rows,
            "rows_per_second": round(rows / max(seconds, 1e-9)),
            "world_size": world_size,
            "mlflow_run_id": tracker.run_id,
            "tracking": "complete" if is_tracked else "delayed",
            **result.scalars,
        },
    )


def _tags(context: StageContext, dataset: Manifest) -> dict[str, str]:
    return {
        "nightshift.dataset": dataset.digest,
        "nightshift.snapshot": str(context.request.parameters.get("snapshot_digest", dataset.meta["snapshot"])),
        "nightshift.code_version": code_version(),
    }


def _parameters(context: StageContext) -> dict[str, Any]:
    train = context.spec.train.model_dump(mode="json", by_alias=True)
    flat: dict[str, Any] = {}
    for name, value in train.items():
        if isinstance(value, dict):
            flat.update({f"{name}.{key}": inner for key, inner in value.items()})
        else:
            flat[name] = value
    return flat


if __name__ == "__main__":
    main(work, polls_stop=True)
