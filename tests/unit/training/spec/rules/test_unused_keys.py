# ruff: noqa: E501 - the tables show whole messages
"""Keys that would have no effect: refused, or accepted with a warning that gives the reason."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from training.contracts import ExitCode
from training.errors import Problem
from training.models.boosted_trees.family import DESCRIPTOR
from training.runtime.provenance import CHECKOUT
from training.spec import PipelineSpec, check
from training.spec.descriptors.families import trained_families
from training.spec.reader.loader import check_file

R, F = "search_ranking", "flight_delay"
BINARY = " or ".join(name for name, family in trained_families().items() if "binary" in family.tasks)
SHIPPED = sorted([*CHECKOUT.glob("dags/pipelines/*.yaml"), *CHECKOUT.glob("docs/examples/*/*.yaml")])
PLACEMENT = "nodes: 1, processes_per_node: 2"
STUDY = "train:\n  model"

WARNINGS: list[tuple[str, str, str, str]] = [
    # pipeline, text, its replacement, the warning as shown
    (R, "on: [failure, deadline]", "on: [failure]", 'deadline: [key.unused] no alert is sent at the deadline: alerts.on does not list it (add deadline to alerts.on)'),
    (R, 'schedule: "0 2 * * *"', "start: 2026-01-01", "start: [key.unused] start is the first day of the schedule, and there is no schedule (add schedule, or remove start)"),
    (R, "approval: automatic", "approvers: [ann]", "promote.approvers: [key.unused] approvers has no effect: approval is automatic, and neither a gate nor validate.drift has approve (set approval: required, or remove the key)"),
    (R, "approval: automatic", "approve_own: true", "promote.approve_own: [key.unused] approve_own has no effect: approval is automatic, and neither a gate nor validate.drift has approve (set approval: required, or remove the key)"),
    (R, "approval: automatic", "approve_within: 7d", "promote.approve_within: [key.unused] approve_within has no effect: approval is automatic, and neither a gate nor validate.drift has approve (set approval: required, or remove the key)"),
    (R, "batch_size: 4096", "batch_size: 4096\n  micro_batch_size: 2048", "train.micro_batch_size: [key.unused] micro_batch_size (2048) has no effect: a process's share of a batch has 2048 rows (set it below that, or remove it)"),
    (R, "batch_size: 4096", "batch_size: 4096\n  micro_batch_size: 4096\n  parallel: {tensor: 2}", "train.micro_batch_size: [key.unused] micro_batch_size (4096) has no effect: a process's share of a batch has 4096 rows (set it below that, or remove it)"),
    (R, PLACEMENT + "}\n  precision: auto", "nodes: 1}\n  gradient_compression: fp16", "train.gradient_compression: [key.unused] gradient_compression has no effect on one process, which sends no gradients (remove it, or set nodes or processes_per_node)"),
    (R, PLACEMENT, PLACEMENT + ", topology: zone", "train.placement.topology: [key.unused] topology has no effect on one node: it is the domain that several nodes share (remove it)"),
    (F, "early_stopping: 20", "placement: {shared_memory: 1GiB}", "train.placement.shared_memory: [key.unused] shared_memory has no effect on boosted_trees, which does not train by torch (remove it: it counts as memory)"),
    (F, "train:\n  model", "timeout: {step: 1h, validation: 1h}\ntrain:\n  model", "timeout.validation: [key.unused] validation has no effect on boosted_trees, which validates within a boosting round (set timeout.step, or remove the key)"),
    (R, STUDY, "tune:\n  trials: 2\n  gpus: 4\n  space: {epochs: {int: [1, 3]}}\n\ntrain:\n  model", "tune.gpus: [key.unused] gpus limits nothing: a trial has no GPUs (train.placement.gpus is 0) (remove it; tune.parallel limits trials at a time)"),
    (R, "promote:", "costs: {currency: EUR}\npromote:", "costs.currency: [key.unused] currency has no effect without an amount (set costs.run or costs.hour)"),
    (R, "suite: search_ranking/clicks", "memory: 1GiB", "validate.memory: [key.unused] memory has no effect: no table has a suite (add a suite, or remove the key)"),
    (R, "freshness: 36h", "freshness: 36h\n  drift: {action: off, psi: 0.5}", "validate.drift.psi: [key.unused] psi judges nothing: the action is off (remove it, or set action: warn)"),
    (R, "freshness: 36h", "freshness: 36h\n  drift: {columns: {price: {action: off, psi: 0.5}}}", "validate.drift.columns.price.psi: [key.unused] psi judges nothing: the action is off (remove it, or set action: warn)"),
    (R, "freshness: 36h", "freshness: 36h\n  drift: {action: off, columns: {price: {psi: 0.5}}}", "validate.drift.columns.price.psi: [key.unused] psi judges nothing: the action is off (remove it, or set action: warn)"),
]  # fmt: skip

REFUSALS: list[tuple[str, str, str, str]] = [
    # pipeline, text, its replacement, the problem as shown
    (F, "early_stopping: 20", "precision: bf16", "train.precision: [field.conflict] precision has no effect on boosted_trees (leave it out)"),
    (F, "early_stopping: 20", "optimizer: sgd", "train.optimizer: [field.conflict] optimizer has no effect on boosted_trees (leave it out)"),
    (F, "early_stopping: 20", "activation_checkpointing: full", "train.activation_checkpointing: [field.conflict] activation_checkpointing has no effect on boosted_trees (leave it out)"),
    (R, "weight_decay: 0.5", "activation_checkpointing: full", "train.activation_checkpointing: [field.conflict] activation_checkpointing has no effect on ranker (leave it out)"),
    (F, "early_stopping: 20", "schedule: constant", "train.schedule: [field.conflict] schedule has no effect on boosted_trees (leave it out)"),
    (F, "early_stopping: 20", "warmup_share: 0.1", "train.warmup_share: [field.conflict] warmup_share has no effect on boosted_trees (leave it out)"),
    (F, "early_stopping: 20", "gradient_compression: fp16", "train.gradient_compression: [field.conflict] gradient_compression has no effect on boosted_trees (leave it out)"),
    (R, "weight_decay: 0.5", "powersgd_rank: 2", "train.powersgd_rank: [field.conflict] powersgd_rank has no effect: gradient_compression is none (set gradient_compression to powersgd, or leave it out)"),
    (R, "weight_decay: 0.5", "gradient_compression: bf16", "train.gradient_compression: [field.conflict] gradient_compression bf16 needs GPUs (train.placement.gpus is 0): processes without them use gloo, which adds up no bf16 (set fp16 or powersgd, or placement.gpus)"),
    (R, "weight_decay: 0.5", "gradient_compression: fp16\n  parallel: {shard: 2}", "train.gradient_compression: [field.conflict] gradient_compression fp16 is for processes that have the whole model; parallel.shard divides it (remove one of the two)"),
    (R, "weight_decay: 0.5", "gradient_compression: fp16\n  parallel: auto", "train.gradient_compression: [field.conflict] gradient_compression fp16 is for processes that have the whole model; parallel: auto may divide it (remove gradient_compression, or set parallel: {shard: 1})"),
    (R, "weight_decay: 0.5", "gradient_compression: fp16\n  parallel: {tensor: 2}", "train.gradient_compression: [field.conflict] gradient_compression fp16 is for processes that have the whole model; parallel.tensor divides it (remove one of the two)"),
    (R, PLACEMENT + "}\n  precision: auto", PLACEMENT + "}\n  precision: fp16\n  gradient_compression: powersgd", "train.gradient_compression: [field.conflict] gradient_compression powersgd adds what a step leaves out to the next one, and precision fp16 has steps that overflow (set gradient_compression to fp16, or precision to bf16 or fp32)"),
    (R, "weight_decay: 0.5", "momentum: 0.9", "train.momentum: [field.conflict] momentum has no effect on adamw, whose two moments have fixed decay rates (set optimizer to sgd or muon, or leave it out)"),
    (R, "weight_decay: 0.5", "warmup_share: 0.1\n  warmup_steps: 7", "train.warmup_share: [field.conflict] the warm-up is given in steps (warmup_steps) and as a share (warmup_share) (keep one of the two)"),
    (R, STUDY, "tune:\n  trials: 2\n  space: {warmup_steps: {int: [1, 3]}}\n\ntrain:\n  warmup_share: 0.1\n  model", "tune.space.warmup_steps: [tune.value] 1 is not a value of train.warmup_steps: the warm-up is given in steps (warmup_steps) and as a share (warmup_share) (keep one of the two)"),
    (R, PLACEMENT, "gpus: 4, processes_per_node: 2", "train.placement.gpus: [resources.gpus] gpus (4) must be at most processes_per_node (2): a process uses one GPU (set processes_per_node to 4, or gpus to fewer)"),
    (R, PLACEMENT, PLACEMENT + ", accelerator: a100", "train.placement.accelerator: [resources.accelerator] accelerator ('a100') without gpus: the node would have a GPU that the training is not given (set gpus, or remove accelerator)"),
    (F, "distance: {transform: number}", "distance: {transform: number, max_categories: 9}", "prepare.features.distance.max_categories: [field.conflict] max_categories has no effect on the transform number (only category counts its values; leave it out)"),
    (F, "distance: {transform: number}", "distance: {transform: number, top: 9}", "prepare.features.distance.top: [field.conflict] top has no effect on the transform number (only category pools its rare values; leave it out)"),
    (F, "distance: {transform: number}", "distance: {transform: category, top: 9, max_categories: 9}", "prepare.features.distance.top: [field.conflict] top pools the rare values, max_categories refuses them (keep one of the two)"),
    (F, "distance: {transform: number}", "distance: {transform: number, smoothing: 9}", "prepare.features.distance.smoothing: [field.conflict] smoothing has no effect on the transform number (only target_encode has it; leave it out)"),
    (F, "distance: {transform: number}", "distance: {transform: number, folds: 9}", "prepare.features.distance.folds: [field.conflict] folds has no effect on the transform number (only target_encode has it; leave it out)"),
    (F, "distance: {transform: number}", "distance: {transform: target_encode, fill: keep}", "prepare.features.distance.fill: [field.conflict] the transform target_encode gives missing values the mean of all training rows (leave it out)"),
    (F, "distance: {transform: number}", "distance: {transform: number, tokens: words}", "prepare.features.distance.tokens: [field.conflict] tokens has no effect on the transform number (only text has it; leave it out)"),
    (F, "distance: {transform: number}", "distance: {transform: number, ngrams: [1, 2]}", "prepare.features.distance.ngrams: [field.conflict] ngrams has no effect on the transform number (only text has it; leave it out)"),
    (F, "distance: {transform: number}", "distance: {transform: number, lowercase: false}", "prepare.features.distance.lowercase: [field.conflict] lowercase has no effect on the transform number (only text has it; leave it out)"),
    (F, "distance: {transform: number}", "distance: {transform: number, scale: share}", "prepare.features.distance.scale: [field.conflict] scale has no effect on the transform number (only text has it; leave it out)"),
    (F, "origin: {transform: category}", "origin: {transform: text, buckets: 2000}", "prepare.features.origin.buckets: [field.range] must be at most 1,024 for text, whose buckets are inputs of the model; got 2,000 (use fewer)"),
    (F, "origin: {transform: category}", "origin: {transform: text, ngrams: [3, 2]}", "prepare.features.origin.ngrams: [field.range] the smallest n (3) is above the largest (2) ([2, 3])"),
    (F, "origin: {transform: category}", "origin: {transform: text, fill: keep}", "prepare.features.origin.fill: [field.conflict] a missing text has no n-grams: its cells are 0 (leave it out)"),
    (F, "origin: {transform: category}", "origin: {transform: text, serve_as: a}", "prepare.features.origin.serve_as: [field.conflict] serve_as cannot stand for a text (derive what the model may see of it)"),
    (F, "distance: {transform: number}", "distance: {transform: text}", "prepare.features.distance: [field.conflict] the transform text takes a string, the column has the type int64 (correct its type, or derive a string)"),
    (F, "distance: {transform: number}", "distance: {transform: number, parts: [hour]}", "prepare.features.distance.parts: [field.conflict] parts has no effect on the transform number (only datetime has parts; leave it out)"),
    (F, "distance: {transform: number}", "distance: {transform: number, form: id}", "prepare.features.distance.form: [field.conflict] form has no effect on the transform number (only datetime has parts; leave it out)"),
    (F, "distance: {transform: number}", "distance: {transform: datetime, parts: [hour]}", "prepare.features.distance: [field.conflict] the transform datetime takes a timestamp or a date, the column has the type int64 (correct its type, or derive a timestamp)"),
    (F, "distance: {transform: number}", "distance: {transform: number}\n    scheduled_departure: {transform: datetime}", "prepare.features.scheduled_departure.parts: [field.missing] the transform datetime needs parts (such as [hour, day_of_week])"),
    (F, "distance: {transform: number}", "distance: {transform: number}\n    scheduled_departure: {transform: datetime, parts: [hour, hour]}", "prepare.features.scheduled_departure.parts: [field.conflict] hour occurs twice (remove one)"),
    (F, "distance: {transform: number}", "distance: {transform: number}\n    scheduled_departure: {transform: datetime, parts: [is_weekend], form: cyclic}", "prepare.features.scheduled_departure.parts: [field.conflict] is_weekend has no place in a period (leave it out, or use the form number)"),
    (F, "distance: {transform: number}", "distance: {transform: number}\n    scheduled_departure: {transform: datetime, parts: [hour], serve_as: 3}", "prepare.features.scheduled_departure.serve_as: [field.conflict] serve_as cannot stand for an instant (derive the part as a number, and give that feature a serve_as)"),
    (F, "task: binary\n  primary: auc\n  minimum: {auc: 0.55}", "task: language\n  primary: loss", "evaluate.task: [model.task] boosted_trees does not train for the task language (no family of Nightshift does; train.model can be a class of your own: see NIGHTSHIFT_MODEL_PACKAGES)"),
    (R, "task: ranking\n  primary: ndcg@10\n  minimum: {ndcg@10: 0.3}", "task: binary\n  primary: auc", f"evaluate.task: [model.task] ranker does not train for the task binary (train.model: {BINARY})"),
]  # fmt: skip

USED: list[tuple[str, tuple[tuple[str, str], ...]]] = [
    # pipeline, changes after which a key has its effect
    (R, (("approval: automatic", "approval: required, approvers: [ann], approve_within: 1d"),)),
    (R, (("approval: automatic", "approve_own: true"), ("slice_support: 500", "severity: {drift: approve}"))),
    (R, ((PLACEMENT, "nodes: 2, processes_per_node: 2, topology: zone, shared_memory: 1GiB, gpus: 2, accelerator: a100"),)),
    (R, (("promote:", "costs: {currency: EUR, hour: 2}\npromote:"),)),
    (R, (("freshness: 36h", "freshness: 36h\n  memory: 1GiB\n  drift: {action: off, psi: 0.5, columns: {price: {action: warn}}}"),)),
    (F, (("early_stopping: 20", "placement: {nodes: 2, min_nodes: 1, processes_per_node: 2, gpus: 2, accelerator: a100}"),)),
    (R, (("timezone: UTC", "timezone: UTC\nstart: 2026-01-01"),)),
    (R, (("timezone: UTC", "timezone: UTC\ntimeout: {validation: 1h, step: 90s}"),)),
    (R, (("batch_size: 4096", "batch_size: 4096\n  micro_batch_size: 2048\n  parallel: {tensor: 2}"),)),
    (R, (("batch_size: 4096", "batch_size: 4096\n  micro_batch_size: 2048\n  parallel: {pipeline: 2}"),)),
    (R, (("batch_size: 4096", "batch_size: 4096\n  micro_batch_size: 2048\n  parallel: auto"),)),
    (R, (("weight_decay: 0.5", "gradient_compression: powersgd\n  powersgd_rank: 2"),)),
    (R, (("weight_decay: 0.5", "optimizer: sgd\n  momentum: 0.8\n  warmup_share: 0.1\n  schedule: linear"),)),
    (R, (("price: {transform: log}", "price: {transform: category, max_categories: 9}"),)),
    (R, ((STUDY, "tune:\n  trials: 2\n  sampler: grid\n  seed: 7\n  space: {epochs: {choices: [1, 2, 3]}}\n\ntrain:\n  model"),)),
]


def checked(tmp_path: Path, text: bytes, pipeline: str) -> tuple[PipelineSpec, list[str]]:
    path = tmp_path / f"{pipeline}.yaml"
    path.write_bytes(text)
    spec, warnings = check_file(path)
    lines = text.decode().splitlines()
    # The place is that of the key: whatever line it has in the shipped file of today.
    assert all(lines[(warning.line or 0) - 1].count(warning.field.rpartition(".")[2]) for warning in warnings)
    return spec, [warning.render("").partition(": ")[2] for warning in warnings]


@pytest.mark.parametrize(("pipeline", "old", "new", "shown"), WARNINGS, ids=[case[2][-40:] for case in WARNINGS])
def test_key_without_effect_is_accepted_with_a_warning(
    tmp_path: Path, changed: Callable[..., bytes], pipeline: str, old: str, new: str, shown: str
) -> None:
    _, warnings = checked(tmp_path, changed(pipeline, (old, new)), pipeline)
    assert warnings == [shown]


@pytest.mark.parametrize(("pipeline", "old", "new", "shown"), REFUSALS, ids=[case[3].split("]")[0] for case in REFUSALS])
def test_key_that_can_have_no_effect_is_refused(
    refuse: Callable[..., tuple[Problem, ...]], pipeline: str, old: str, new: str, shown: str
) -> None:
    (problem,) = refuse(pipeline, (old, new))
    assert problem.render("p").split(": ", 1)[1] == shown


@pytest.mark.parametrize(
    ("facts", "placement", "shown"),
    [
        ({"distributed": False}, "processes_per_node: 2", "train.placement: [resources.processes] boosted_trees trains in one process, placement requests 1 * 2 (set nodes and processes_per_node to 1)"),
        ({"uses_gpus": False}, "gpus: 1", "train.placement.gpus: [resources.gpus] boosted_trees uses no GPU, placement requests 1 (remove gpus and accelerator)"),
    ],
    ids=["processes", "gpus"],
)  # fmt: skip
def test_placement_that_the_family_cannot_use_is_refused(
    refuse: Callable[..., tuple[Problem, ...]], monkeypatch: pytest.MonkeyPatch, facts: dict[str, bool], placement: str, shown: str
) -> None:
    limited = replace(DESCRIPTOR, **facts)  # type: ignore[arg-type]
    monkeypatch.setattr("training.models.boosted_trees.family.DESCRIPTOR", limited)
    (problem,) = refuse(F, ("early_stopping: 20", f"placement: {{{placement}}}"))
    assert problem.render("p").split(": ", 1)[1] == shown


@pytest.mark.parametrize(("pipeline", "changes"), USED, ids=[case[1][0][1][-40:] for case in USED])
def test_key_with_an_effect_gives_no_warning(
    tmp_path: Path, changed: Callable[..., bytes], pipeline: str, changes: tuple[tuple[str, str], ...]
) -> None:
    assert checked(tmp_path, changed(pipeline, *changes), pipeline)[1] == []


@pytest.mark.parametrize("path", SHIPPED, ids=[path.stem for path in SHIPPED])
def test_shipped_pipelines_give_no_warning(path: Path) -> None:
    assert check_file(path).warnings == ()


def test_check_prints_warnings_and_ends_with_success(
    tmp_path: Path, changed: Callable[..., bytes], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "search_ranking.yaml"
    path.write_bytes(changed(R, ("on: [failure, deadline]", "on: []")))
    assert check.main([str(path)]) == ExitCode.DONE
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert [re.sub(r":\d+:\d+:", "", line.partition("]")[0]) for line in warnings] == [
        f"warning: {path} deadline: [key.unused",
        f"warning: {path} alerts.webhook: [key.unused",
    ]


def test_class_of_an_allowed_package_trains_for_any_task(accept: Callable[..., PipelineSpec], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_MODEL_PACKAGES", "acme")
    language = ("task: binary\n  primary: auc\n  minimum: {auc: 0.55}", "task: language\n  primary: loss")
    spec = accept(F, ("model: boosted_trees", "model: acme.text:Model"), language)
    assert spec.evaluate.task == "language"


@pytest.mark.parametrize(
    ("pipeline", "placement", "threads"),
    [
        (R, PLACEMENT, 1),
        (R, PLACEMENT + ", cpus: 8", 4),
        (R, PLACEMENT + ", cpus: 0.5", 1),
        (F, "nodes: 1", 2),
        (F, "cpus: 1", 1),
        (F, "cpus: 6.9", 6),
    ],
)
def test_cpus_set_the_threads_of_each_process(accept: Callable[..., PipelineSpec], pipeline: str, placement: str, threads: int) -> None:
    change = (PLACEMENT, placement) if pipeline == R else ("early_stopping: 20", f"placement: {{{placement}}}")
    assert accept(pipeline, change).train.threads_per_process == threads
