"""Rules about the sections `train` and `evaluate`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from training.installation import MODEL_PACKAGES
from training.spec.descriptors.families import FAMILIES, is_allowed, is_own, own_packages, trained_families
from training.spec.descriptors.metrics import is_lower_better, is_metric, is_zero_best, metrics_of
from training.spec.key_types import AUTO
from training.spec.reader.yaml import Path
from training.spec.rules.rule_problems import Violation
from training.spec.scalar_types import in_yaml
from training.spec.sections.data import Data
from training.spec.sections.evaluation import Evaluate
from training.spec.sections.train import DEFAULT_BATCH_SIZE, Parallel, Train

MODEL: Path = ("train", "model")


def family_fits(train: Train) -> Iterator[Violation]:
    """Yield a violation where there is no such model, or it lacks a key, or has one that would do nothing."""
    if not is_allowed(train.model):
        own = own_packages()
        allowed = (
            f"; or package.module:Class of {', '.join(own)}"
            if own
            else f"; a class of your own: name its package in {MODEL_PACKAGES.name}, docs/extending.md"
        )
        yield Violation(
            MODEL, "model.unknown", f"there is no model {in_yaml(train.model)}", f"known: {', '.join(trained_families())}{allowed}"
        )
    yield from _refit_fits(train)
    facts = FAMILIES.get(train.model)
    if facts is not None and not facts.is_trained:
        message = f"models of {train.model} are not trained here: they come from outside"
        hint = f"known: {', '.join(trained_families())}; docs/promotion.md has models from outside"
        yield Violation(MODEL, "model.imported", message, hint)
    for key in ("epochs", "learning_rate"):
        is_given = key in train.model_fields_set and getattr(train, key) is not None
        if not is_given and (facts is None or key not in facts.ignored_keys):
            yield Violation(("train", key), "field.missing", f"the key {key} is missing: {train.model} needs it")
    if facts is None:
        return
    for key in facts.needs:
        if getattr(train, key) is None:
            yield Violation(("train", key), "field.missing", f"the key {key} is missing: {train.model} needs it")
    for key in facts.ignored_keys:
        if getattr(train, key) != Train.model_fields[key].get_default(call_default_factory=True):
            yield Violation(("train", key), "field.conflict", f"{key} has no effect on {train.model}", "leave it out")


def _refit_fits(train: Train) -> Iterator[Violation]:
    if train.refit != "none" and train.from_checkpoint is not None:
        message = "the weights that are served are those of the refit, which begins at the start and not at the checkpoint"
        hint = "set train.refit: none in the YAML and trigger the run again, or leave from_checkpoint out"
        yield Violation(("train", "from_checkpoint"), "field.conflict", message, hint)


def optimizer_fits(train: Train) -> Iterator[Violation]:
    """Yield a violation for each key of the optimizer that another key leaves without effect."""
    if train.momentum is not None and train.optimizer == "adamw":
        message = "momentum has no effect on adamw, whose two moments have fixed decay rates"
        yield Violation(("train", "momentum"), "field.conflict", message, "set optimizer to sgd or muon, or leave it out")
    if train.warmup_share is not None and train.warmup_steps is not None:
        message = "the warm-up is given in steps (warmup_steps) and as a share (warmup_share)"
        yield Violation(("train", "warmup_share"), "field.conflict", message, "keep one of the two")


def compression_fits(train: Train) -> Iterator[Violation]:
    """Yield a violation where gradients cannot be compressed as the file says."""
    kind, path = train.gradient_compression, ("train", "gradient_compression")
    if train.powersgd_rank is not None and kind != "powersgd":
        message = f"powersgd_rank has no effect: gradient_compression is {kind}"
        yield Violation(("train", "powersgd_rank"), "field.conflict", message, "set gradient_compression to powersgd, or leave it out")
    if kind == "none":
        return
    if train.parallel == AUTO:
        message = f"gradient_compression {kind} is for processes that have the whole model; parallel: auto may divide it"
        yield Violation(path, "field.conflict", message, "remove gradient_compression, or set parallel: {shard: 1}")
    elif isinstance(train.parallel, Parallel) and (dividing := _dividing(train.parallel)):
        message = f"gradient_compression {kind} is for processes that have the whole model; parallel.{next(iter(dividing))} divides it"
        yield Violation(path, "field.conflict", message, "remove one of the two")
    if kind == "powersgd" and train.precision == "fp16":
        message = "gradient_compression powersgd adds what a step leaves out to the next one, and precision fp16 has steps that overflow"
        yield Violation(path, "field.conflict", message, "set gradient_compression to fp16, or precision to bf16 or fp32")
    if kind == "bf16" and not train.placement.gpus:
        message = "gradient_compression bf16 needs GPUs (train.placement.gpus is 0): processes without them use gloo, which adds up no bf16"
        yield Violation(path, "field.conflict", message, "set fp16 or powersgd, or placement.gpus")


def placement_fits(train: Train) -> Iterator[Violation]:
    """Yield a violation where the processes cannot share the batch, the family or the GPUs."""
    placement, facts = train.placement, FAMILIES.get(train.model)
    path: Path = ("train", "placement")
    world_size = placement.world_size
    if facts is not None and not facts.distributed and world_size > 1:
        message = f"{train.model} trains in one process, placement requests {placement.nodes} * {placement.processes_per_node}"
        yield Violation(path, "resources.processes", message, "set nodes and processes_per_node to 1")
    sizes, shares = _alike(train), num_shares(train)
    if train.batch_size is not None and train.batch_size % shares:
        below = train.batch_size // shares * shares
        fitting = f"{below} or {below + shares}" if below else str(shares)
        by, divisor = ("".join(f" / {key}" for key in sizes), "".join(f" / {size}" for size in sizes.values()))
        message = (
            f"batch_size ({train.batch_size}) must be divisible by nodes * processes_per_node{by} "
            f"({placement.nodes} * {placement.processes_per_node}{divisor} = {shares})"
        )
        yield Violation(("train", "batch_size"), "batch.indivisible", message, f"set batch_size to {fitting}")
    if placement.gpus % placement.processes_per_node:
        message = f"gpus ({placement.gpus}) must be divisible by processes_per_node ({placement.processes_per_node})"
        yield Violation((*path, "gpus"), "resources.gpus", message, "both count per node; each process has as many GPUs as any other")
    if facts is not None and not facts.uses_gpus and placement.gpus:
        message = f"{train.model} uses no GPU, placement requests {placement.gpus}"
        yield Violation((*path, "gpus"), "resources.gpus", message, "remove gpus and accelerator")
    elif placement.gpus > placement.processes_per_node:
        message = f"gpus ({placement.gpus}) must be at most processes_per_node ({placement.processes_per_node}): a process uses one GPU"
        yield Violation((*path, "gpus"), "resources.gpus", message, f"set processes_per_node to {placement.gpus}, or gpus to fewer")
    if placement.accelerator is not None and not placement.gpus:
        message = f"accelerator ({in_yaml(placement.accelerator)}) without gpus: the node would have a GPU that the training is not given"
        yield Violation((*path, "accelerator"), "resources.accelerator", message, "set gpus, or remove accelerator")


def num_shares(train: Train) -> int:
    """Return into how many shares a batch is divided, unless `parallel` is auto."""
    return train.placement.world_size // math.prod(_alike(train).values())


def _alike(train: Train) -> dict[str, int]:
    """Return the sizes, by key, of processes that compute the same rows and get one share of the batch; empty where they cannot be."""
    if not isinstance(train.parallel, Parallel):
        return {}
    sizes = {key: size for key, size in _dividing(train.parallel).items() if key != "shard"}
    return {} if train.placement.world_size % math.prod(sizes.values()) else sizes


def layout_fits(train: Train) -> Iterator[Violation]:
    """Yield a violation where the processes cannot share the model as `train.parallel` says."""
    parallel, placement = train.parallel, train.placement
    if parallel is None or parallel == AUTO:
        return
    world_size = placement.world_size
    processes = f"nodes * processes_per_node ({placement.nodes} * {placement.processes_per_node} = {world_size})"
    dividing = _dividing(parallel)
    product = math.prod(dividing.values())
    if world_size % product:
        message = f"{processes} must be divisible by {_multiplied(dividing)}"
        hint = "each replica of the model is divided over `shard` times `tensor` times `pipeline` processes"
        yield Violation(("train", "parallel", next(iter(dividing))), "parallel.processes", message, hint)
    elif parallel.data is not None and parallel.data * product != world_size:
        sizes = {"data": parallel.data, "shard": parallel.shard, **dividing}
        message = f"{_multiplied(sizes)} must be {processes}"
        hint = f"set data to {world_size // product}, or remove it: it follows from the number of processes"
        yield Violation(("train", "parallel", "data"), "parallel.processes", message, hint)


def pipeline_fits(train: Train) -> Iterator[Violation]:
    """Yield a violation where a pipeline cannot be, or would wait more than it computes."""
    parallel = train.parallel
    if not isinstance(parallel, Parallel):
        return
    path: Path = ("train", "parallel")
    stages = parallel.pipeline
    if stages == 1:
        if parallel.schedule != Parallel.model_fields["schedule"].default:
            message = f"schedule {parallel.schedule} has no effect: there is one stage"
            yield Violation((*path, "schedule"), "field.conflict", message, "set pipeline, or remove schedule")
        return
    for key in ("shard", "tensor"):
        if getattr(parallel, key) > 1:
            message = f"pipeline ({stages}) cannot be used with {key} ({getattr(parallel, key)}): a stage's layers are whole in its process"
            yield Violation((*path, key), "field.conflict", message, f"use data with pipeline, or {key} without pipeline")
    if train.micro_batch_size is None:
        message = f"the key micro_batch_size is missing: the stages of a pipeline ({stages}) compute different micro-batches at a time"
        hint = f"set micro_batch_size so that a share of the batch has {stages} micro-batches or more"
        yield Violation(("train", "micro_batch_size"), "field.missing", message, hint)
    elif (batch_size := _batch_size(train)) is not None and train.placement.world_size % stages == 0:
        rows = batch_size // max(1, train.placement.world_size // (stages * parallel.shard * parallel.tensor) * parallel.shard)
        number = -(-rows // train.micro_batch_size)
        if number < stages:
            message = (
                f"a share of the batch has {number} micro-batches ({rows} rows of {train.micro_batch_size}), fewer than pipeline ({stages})"
            )
            hint = f"set micro_batch_size to {rows // stages} or less: with fewer micro-batches than stages, some would always wait"
            yield Violation(("train", "micro_batch_size"), "parallel.micro_batches", message, hint)


def _batch_size(train: Train) -> int | None:
    """Return the rows of a step; None: the family must be given them."""
    return DEFAULT_BATCH_SIZE if train.batch_size is None and FAMILIES.get(train.model) is None else train.batch_size


def _dividing(parallel: Parallel) -> dict[str, int]:
    """Return the sizes above 1 that divide the model, by key."""
    return {key: size for key in ("shard", "tensor", "pipeline") if (size := getattr(parallel, key)) > 1}


def _multiplied(sizes: Mapping[str, int]) -> str:
    """Return `data * shard (2 * 4 = 8)`."""
    product = f" = {math.prod(sizes.values())}" if len(sizes) > 1 else ""
    return f"{' * '.join(sizes)} ({' * '.join(map(str, sizes.values()))}{product})"


def elastic_fits(train: Train) -> Iterator[Violation]:
    """Yield a violation where fewer nodes than all would not be fewer, or could not share the batch."""
    placement = train.placement
    fewest = placement.min_nodes
    path: Path = ("train", "placement", "min_nodes")
    if fewest is None:
        return
    if fewest >= placement.nodes:
        yield Violation(
            path, "resources.elastic", f"min_nodes ({fewest}) must be below nodes ({placement.nodes})", "leave it out for a fixed size"
        )
    elif not _sizes_that_hold_the_layout(train):
        dividing = _dividing(train.parallel) if isinstance(train.parallel, Parallel) else {}
        message = f"no number of nodes from {fewest} to {placement.nodes - 1} has processes for whole replicas of the model"
        hint = f"nodes * processes_per_node of some smaller size must be divisible by {_multiplied(dividing)}; or remove min_nodes"
        yield Violation(path, "resources.elastic", message, hint)
    elif not smaller_sizes(train):
        message = f"no number of nodes from {fewest} to {placement.nodes - 1} divides batch_size ({_batch_size(train)}) evenly"
        alike = _multiplied({key: size for key, size in _alike(train).items() if size > 1})
        shares = "nodes * processes_per_node" + (f" / {alike}" if math.prod(_alike(train).values()) > 1 else "")
        yield Violation(path, "resources.elastic", message, f"batch_size must be divisible by {shares} of some smaller size")


def smaller_sizes(train: Train) -> list[int]:
    """Return the numbers of nodes below all of them that an elastic training may continue with, largest first.

    With these, each process has no more of the model than planned, and each share of a batch as many rows as any other.
    """
    batch_size, per_node, alike = _batch_size(train), train.placement.processes_per_node, math.prod(_alike(train).values())
    return [nodes for nodes in _sizes_that_hold_the_layout(train) if not batch_size or batch_size % (nodes * per_node // alike) == 0]


def _sizes_that_hold_the_layout(train: Train) -> list[int]:
    """Return the numbers of nodes below all of them whose processes make up replicas of the model; `auto` finds its layout for any."""
    placement = train.placement
    if placement.min_nodes is None:
        return []
    replica = math.prod(_dividing(train.parallel).values()) if isinstance(train.parallel, Parallel) else 1
    sizes = range(placement.nodes - 1, placement.min_nodes - 1, -1)
    return [nodes for nodes in sizes if nodes * placement.processes_per_node % replica == 0]


def metrics_exist(evaluate: Evaluate) -> Iterator[Violation]:
    """Yield a violation for each metric that the task does not have, or that a gate cannot be read from."""
    named: list[tuple[Path, str]] = [(("evaluate", "primary"), evaluate.primary)]
    named += [(("evaluate", "minimum", name), name) for name in evaluate.minimum]
    named += [(("evaluate", "maximum", name), name) for name in evaluate.maximum]
    for path, name in named:
        yield from _can_judge(evaluate, path, name)
    for name, place in evaluate.metrics.items():
        path = ("evaluate", "metrics", name)
        if is_metric(evaluate.task, name) or is_lower_better(name) or is_zero_best(name):
            yield Violation(path, "metric.clash", f"there is a metric {name} already", "give your metric another name")
        if not is_own(place):
            own = ", ".join(own_packages()) or "none"
            message = f"{in_yaml(place)} is not a package.module:function of an allowed package"
            yield Violation(path, "metric.place", message, f"allowed packages ({MODEL_PACKAGES.name}): {own}")
    if evaluate.improvement.absolute is not None and evaluate.improvement.relative is not None:
        message = "improvement is absolute or relative, not both"
        yield Violation(("evaluate", "improvement"), "field.conflict", message, "keep one of the two")


def _can_judge(evaluate: Evaluate, path: Path, name: str) -> Iterator[Violation]:
    if not evaluate.is_metric(name):
        known = ", ".join([*metrics_of(evaluate.task), *evaluate.metrics])
        yield Violation(path, "metric.unknown", f"the task {evaluate.task} has no metric {in_yaml(name)}", f"known: {known}")
    elif is_zero_best(name):
        if path[1] == "primary":
            yield no_direction(path, name)
    elif is_lower_better(name) and path[1] == "minimum":
        hint = "write it under evaluate.maximum"
        yield Violation(path, "metric.direction", f"lower is better for {name}: a minimum would pass bad models", hint)
    elif not is_lower_better(name) and path[1] == "maximum":
        hint = "write it under evaluate.minimum"
        yield Violation(path, "metric.direction", f"higher is better for {name}: a maximum would pass bad models", hint)


def no_direction(path: Path, name: str) -> Violation:
    """Return the violation of a metric of both signs by which models would be chosen."""
    message = f"neither more nor less is better for {name}, which is best at 0: models cannot be chosen by it"
    return Violation(path, "metric.direction", message, "bound it by evaluate.minimum and evaluate.maximum")


def task_fits(data: Data, train: Train, evaluate: Evaluate) -> Iterator[Violation]:
    """Yield a violation where the family does not train for the task, or the task needs what the data does not have."""
    facts = FAMILIES.get(train.model)
    if facts is not None and evaluate.task not in facts.tasks:
        message = f"{train.model} does not train for the task {evaluate.task}"
        yield Violation(("evaluate", "task"), "model.task", message, _hint_for_task(evaluate.task))
        return
    if data.group is None and evaluate.task == "ranking":
        message = "the key group is missing: the task ranking needs it"
        yield Violation(("data", "group"), "field.missing", message, "the column whose rows are ranked together")
    if data.group is not None and evaluate.task != "ranking":
        message = f"the task {evaluate.task} knows no groups"
        yield Violation(("data", "group"), "field.conflict", message, "take data.group out, or set evaluate.task to ranking")


def _hint_for_task(task: str) -> str:
    able = [name for name, facts in trained_families().items() if task in facts.tasks]
    if not able:
        return f"no family of Nightshift does; train.model can be a class of your own: see {MODEL_PACKAGES.name}"
    return f"train.model: {' or '.join(able)}"
