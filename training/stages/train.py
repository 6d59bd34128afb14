"""Train: fits the spec's model on a dataset, resuming from the newest checkpoint; with a study's best settings where there was one.

python -m training.stages.train REQUEST_URI
torchrun --nproc-per-node=2 --max-restarts=0 -m training.stages.train REQUEST_URI
"""

from __future__ import annotations

import functools
import json
import logging
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from training.code.carried import check_own_class
from training.contracts import JsonObject, JsonValue, Scalar, StageRequest, canonical_json, sha256_hex
from training.data.dataset.manifest import meta_of, sample_order_digest, with_validation
from training.data.features.classes import Classes
from training.data.features.transforms_file import serving_inputs
from training.engine.checkpoint.checkpoints import Checkpoints, MakeWriter
from training.engine.checkpoint.format import CheckpointIdentity
from training.engine.checkpoint.writer import CheckpointWriter, Interval
from training.engine.devices import check_expected, device_words
from training.engine.node_cache import fetch_for_node
from training.engine.parallel.single_process import Alone
from training.engine.tracking.tracker import Tracker
from training.models.base import FitContext, FitResult, hint_of_last_epoch, load_family
from training.models.predictor import FORMAT_VERSION
from training.process import liveness
from training.runtime import preemption
from training.runtime.provenance import environment
from training.runtime.runner import StageContext, StageOutput, main
from training.spec import PipelineSpec
from training.spec.descriptors.families import FAMILIES
from training.spec.layout import Layout
from training.spec.registration import registered_words
from training.spec.rules.tuning import with_settings
from training.spec.sections.train import SaveInterval, Train
from training.stage_table import REFIT, TRIAL
from training.store import Manifest

if TYPE_CHECKING:
    from training.engine.loop import Judge
    from training.engine.parallel.gang import Gang

logger = logging.getLogger(__name__)

TRANSFORMS = "transforms.json"
FETCHED = ("shards/", TRANSFORMS)
HISTORY = "history.json"
ARTIFACT = "artifact"
"""Parameter of a run that judges a model from outside: the URI of its files' manifest."""


def work(context: StageContext) -> StageOutput:
    """Train on `request.inputs["dataset"]`; on ranks other than the first the output is of no account."""
    # Before hours of training, not when the model is registered.
    check_own_class(context.spec.train.model)
    if ARTIFACT in context.request.parameters:
        return _imported(context)
    return fitted_model(context)


def fitted_model(context: StageContext, found: Manifest | None = None) -> StageOutput:
    """Fit the model of the run's spec on `inputs["dataset"]`, and store it; on ranks other than the first the output is of no account.

    Args:
        found: of a refit, the model that the training found. It is fitted for as many epochs, on the validation rows too.
    """
    gang = join_gang(context.spec.train, context.request.parameters.get("device"), num_processes=context.world_size)
    dataset = fetch_dataset(context, gang)
    spec = context.spec
    if "tuning" in context.request.inputs:
        tuning = context.input("tuning")
        logger.info("with the settings of trial %s: %s", tuning.meta["slot"], tuning.meta["settings"])
        spec = tuned(spec, tuning.meta["settings"])
    layout = layout_of(spec, gang, context.folder, dataset)
    tags = {**tags_of(context.request, dataset, gang), "nightshift.layout": layout.words()}
    tracker = Tracker(context, tags=tags, parameters=parameters_of(spec))
    started_at = time.monotonic()
    epochs = None if found is None else int(found.meta["best_epoch"])
    result = fit_dataset(context, spec, dataset, gang, tracker, layout=layout, refit_epochs=epochs)
    if not gang.is_first:
        return StageOutput(artifact_uri="", digest="")
    learned = meta_of(dataset) if found is None else with_validation(meta_of(dataset))
    rows = learned["rows"]["train"] * len(result.history)
    rows_per_second = round(rows / max(time.monotonic() - started_at, 1e-9))
    transforms = (context.folder / TRANSFORMS).read_bytes()
    if found is not None:
        # Its own validation losses are of rows that it has learned from.
        result = replace(result, history=json.loads(context.store.manifests.read(found, HISTORY)))
    label_center = 0.0 if result.whole_labels else meta_of(dataset).get("label_center", 0.0)
    files, meta = model_files(
        spec, dataset, gang, result, transforms=transforms, code_version=context.request.code_version, label_center=label_center
    )
    # What a later study begins with, as this model's successor.
    meta = {**meta, "settings": parameters_as_made(spec), "bounds": learned["bounds"]}
    of_stage = _found_scalars(spec, result) if found is None else _refit_scalars(context, result, until=learned["bounds"]["train"][1])
    logger.info("%s, weights %s", ", ".join(f"{name} {value}" for name, value in of_stage.items()), meta["weights_digest"])
    scalars: dict[str, Scalar] = {
        "weights_digest": str(meta["weights_digest"]),
        **of_stage,
        "steps": result.num_steps,
        "rows": rows,
        "rows_per_second": rows_per_second,
        "world_size": gang.world_size,
        **({} if spec.train.parallel is None else {"layout": layout.words()}),
        "device": gang.device.type,
        **tracker.scalars(),
        **result.scalars,
    }
    return context.store_artifact("model", files, meta, scalars, ref="model")


def _found_scalars(spec: PipelineSpec, result: FitResult) -> dict[str, Scalar]:
    if hint := hint_of_last_epoch(result.best_epoch, spec.train.epochs):
        logger.warning("%s", hint)
    begun = {} if spec.train.from_checkpoint is None else {"resumed_from": spec.train.from_checkpoint}
    return {"best_epoch": result.best_epoch, "validation_loss": round(result.validation_loss, 6), **begun}


def _refit_scalars(context: StageContext, result: FitResult, *, until: str) -> dict[str, Scalar]:
    # What a run costs is the time of both.
    return {"epochs": result.best_epoch, "learned_until": until, "trained_seconds": context.request.parameters["trained_seconds"]}


def _imported(context: StageContext) -> StageOutput:
    """Take in a model from outside instead of training one."""
    # Imported here: a training needs none of it.
    from training.stages.external_model import import_model

    dataset, gang = context.input("dataset"), Alone()
    found = import_model(context, dataset)
    registered = found.registered
    claims = {f"claimed.{name}": value for name, value in registered.get("metrics", {}).items()}
    tags = {**tags_of(context.request, dataset, gang), "nightshift.registered": registered_words(registered)}
    tracker = Tracker(context, tags=tags, parameters={**claims, "artifact_uri": registered["artifact_uri"]})
    code_version = context.request.code_version
    files, meta = model_files(context.spec, dataset, gang, found.result, transforms=found.transforms, code_version=code_version)
    with liveness.phase("mlflow", "metrics"):
        tracker.close()
        tracker.finish("FINISHED")
    weights_digest = str(meta["weights_digest"])
    logger.info("%s, weights %s", registered_words(registered), weights_digest)
    scalars = {"weights_digest": weights_digest, "registered": registered["format"], "world_size": 1, "device": gang.device.type}
    return context.store_artifact("model", files, {**meta, "registered": dict(registered)}, {**scalars, **tracker.scalars()}, ref="model")


def layout_of(spec: PipelineSpec, gang: Gang | Alone, dataset_path: Path, dataset: Manifest) -> Layout:
    """Return how the gang shares the model: see `training.models.base.Family.layout`. All ranks must call it."""
    return load_family(spec.train.model).layout(spec, gang, dataset_path, meta_of(dataset))


def fetch_dataset(context: StageContext, gang: Gang | Alone) -> Manifest:
    """Fetch what trainings read of `inputs["dataset"]`, once per node: the shards of its training and validation rows, no test rows."""
    dataset = context.input("dataset")
    with context.timed("fetch"):
        names = [name for name in sorted(dataset.files) if name.startswith(FETCHED)]
        fetch_for_node(context.store.manifests, dataset, context.folder, names, gang)
    return dataset


def join_gang(train: Train, expected: str | None, *, num_processes: int) -> Gang | Alone:
    """Join the gang with the threads that the spec gives each process, on the kind of device that the work is named after.

    Args:
        expected: that kind of device; None: a CPU.

    Raises:
        SpecError: `device.missing`, `device.mixed`, `settings.number`.
        PeerLostError: another rank does not come.
    """
    facts = FAMILIES.get(train.model)
    use_gpus = facts is None or (facts.uses_gpus and (expected is not None or not facts.gpus_on_request))
    gang: Gang | Alone
    if facts is not None and not facts.uses_torch and num_processes == 1 and not (use_gpus and expected):
        gang = Alone()
    else:
        with liveness.phase("start", "import of torch"):
            from training.engine.parallel.gang import Gang
        gang = Gang.join(threads_per_process=train.threads_per_process, use_gpus=use_gpus)
    check_expected(gang.device, expected)
    if gang.is_first:
        device = device_words(gang.device)
        logger.info("processes: %d, threads of each: %d, device: %s", gang.world_size, train.threads_per_process, device)
    return gang


def tuned(spec: PipelineSpec, settings: JsonObject) -> PipelineSpec:
    """Return the spec with a study's settings in its section `train`."""
    return spec.model_copy(update={"train": with_settings(spec.train, settings)})


def fit_dataset(
    context: StageContext,
    spec: PipelineSpec,
    dataset: Manifest,
    gang: Gang | Alone,
    tracker: Tracker,
    *,
    layout: Layout,
    judge: Judge | None = None,
    refit_epochs: int | None = None,
) -> FitResult:
    """Fit the spec's model on the dataset that `fetch_dataset` fetched, and close the tracker. All ranks must call it.

    Args:
        spec: with the settings to train with.
        layout: how the gang shares the model.
        judge: of a trial, called after each epoch by rank 0.
        refit_epochs: of a refit; see `FitContext`.
    """
    train = spec.train
    # The checkpoints of trials and refits are for themselves alone.
    is_training = context.request.stage not in (TRIAL, REFIT)
    checkpoints = Checkpoints(
        context,
        interval=_interval(train.checkpoint.every),
        identity=_identity(train, dataset.digest, gang, layout),
        by_name=is_training,
        keep=train.checkpoint.keep,
        make_writer=_writer_of(gang, layout),
    )
    fit = FitContext(
        spec=spec,
        dataset_path=context.folder,
        dataset_meta=meta_of(dataset) if refit_epochs is None else with_validation(meta_of(dataset)),
        dataset_digest=sample_order_digest(dataset),
        gang=gang,
        checkpoints=checkpoints,
        tracker=tracker,
        stop=context.stop,
        progress=context.progress,
        note_straggler=functools.partial(context.work_folder.write_straggler, context.request.attempt_id),
        layout=layout,
        judge=judge,
        refit_epochs=refit_epochs,
    )
    status = "FAILED"
    try:
        if train.from_checkpoint is not None and is_training:
            checkpoints.begin_at(train.from_checkpoint)
        with context.timed("fit"), preemption.watching(context.stop):
            result = load_family(train.model).fit(fit)
        status = "FINISHED"
    finally:
        try:
            checkpoints.close()
        finally:
            with liveness.phase("mlflow", "metrics"):
                tracker.close()
                tracker.finish(status)
    return result


def _identity(train: Train, dataset_digest: str, gang: Gang | Alone, layout: Layout) -> CheckpointIdentity:
    """Return what a checkpoint must agree on for a training to resume from it."""
    identity: CheckpointIdentity = {"world_size": gang.world_size, "batch_size": train.batch_size, "dataset": dataset_digest}
    if train.placement.threads_per_process is not None:
        identity["threads"] = train.placement.threads_per_process
    if gang.device.type != "cpu":
        identity["device"] = gang.device.type
    if not layout.is_replicated:
        identity["layout"] = layout.sizes()
    return identity


def _interval(every: SaveInterval) -> Interval:
    return Interval(seconds=math.inf if every.time is None else every.time.total_seconds(), steps=every.steps)


def _writer_of(gang: Gang | Alone, layout: Layout) -> MakeWriter:
    """Return what makes the writer: one process saves the whole model, or all save their parts together. All ranks must call it."""
    if layout.is_replicated or isinstance(gang, Alone) or gang.world_size == 1:
        return CheckpointWriter
    # Imported here: a training of whole models needs none of it.
    from training.large.checkpoint.savers import Savers
    from training.large.checkpoint.sharded_writer import ShardedWriter

    return functools.partial(ShardedWriter, savers=Savers.of(gang))


def model_files(
    spec: PipelineSpec,
    dataset: Manifest,
    gang: Gang | Alone,
    result: FitResult,
    *,
    transforms: bytes,
    code_version: str,
    label_center: float = 0.0,
) -> tuple[dict[str, bytes], JsonObject]:
    """Return a model's files by name, and the meta of its manifest.

    Args:
        transforms: of raw rows to the model's input, as JSON.
        code_version: of the stage.
        label_center: what is added to the model's scores.
    """
    family, named = FAMILIES.get(spec.train.model), Classes.of(meta_of(dataset))
    # Labels without names have none.
    classes = {} if named is None else {"classes": list(named.learned)}
    types, inputs = spec.data.declared_types(), serving_inputs(transforms)
    center = {"label_center": label_center} if label_center else {}
    description = {
        "format_version": FORMAT_VERSION if center else 1,
        "family": spec.train.model,
        "task": spec.evaluate.task,
        "architecture": dict(result.architecture),
        "code_version": code_version,
        "environment": environment(() if family is None else family.libraries),
        "device": device_words(gang.device),
        "inputs": {name: types[name] for name in inputs},
        **({"source_names": source_names} if (source_names := spec.data.source_names(inputs)) else {}),
        **({"requirements": list(result.requirements)} if result.requirements else {}),
        **classes,
        **center,
    }
    files = {
        result.weights_name: result.weights,
        TRANSFORMS: transforms,
        "model.json": canonical_json(description),
        HISTORY: canonical_json(list(result.history)),
    }
    meta: JsonObject = {
        "family": spec.train.model,
        "weights_digest": _weights_digest(spec.train.model, result, transforms, {**classes, **center}),
        "dataset": dataset.digest,
        "seed": spec.train.seed,
        "world_size": gang.world_size,
        "best_epoch": result.best_epoch,
        "bounds": dataset.meta["bounds"],
        **({"split": dataset.meta["split"]} if "split" in dataset.meta else {}),
        **classes,
    }
    return files, meta


def _weights_digest(family: str, result: FitResult, transforms: bytes, answer: Mapping[str, object]) -> str:
    """Return the SHA-256 that names a model: over the weights, and over all that makes an answer of a raw row with them.

    The same bytes score otherwise in another model class, behind other transforms or activations, and mean something else under other
    names of classes.

    Args:
        answer: the names of classes, and what is added to a score.
    """
    weights, architecture = sha256_hex(result.weights), dict(result.architecture)
    parts = {"family": family, "weights": weights, "architecture": architecture, "transforms": sha256_hex(transforms)}
    return sha256_hex(canonical_json({**parts, **answer}))


def tags_of(request: StageRequest, dataset: Manifest, gang: Gang | Alone) -> dict[str, str]:
    return {
        "nightshift.dataset": dataset.digest,
        "nightshift.snapshot": str(request.parameters.get("snapshot_digest", dataset.meta["snapshot"])),
        "nightshift.code_version": request.code_version,
        "nightshift.device": device_words(gang.device),
    }


def parameters_as_made(spec: PipelineSpec) -> dict[str, JsonValue]:
    """Return the section `train` without what makes no other training: where it ran, how often it was saved, and what follows it."""
    values = spec.train.model_dump(mode="json", by_alias=True)
    left_out = ("placement", "checkpoint", "replica_check_steps", "straggler_ratio", REFIT)
    return {key: value for key, value in values.items() if key not in left_out}


def parameters_of(spec: PipelineSpec) -> dict[str, JsonValue]:
    """Return the section `train` as MLflow's flat parameters."""
    train = spec.train.model_dump(mode="json", by_alias=True)
    flat: dict[str, JsonValue] = {}
    for name, value in train.items():
        if isinstance(value, dict):
            flat.update({f"{name}.{key}": inner for key, inner in value.items()})
        else:
            flat[name] = value
    return flat


if __name__ == "__main__":
    main(work, polls_stop=True)
