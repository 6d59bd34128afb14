"""The plan of a spec's training: its model as `TorchFamily.build` makes it, its section `train`, and some devices."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from training.data.dataset.shard_format import FeatureEntry
from training.data.features.datetime_parts import PERIODS
from training.data.features.fitting import DEFAULT_BUCKETS, DEFAULT_HASH_BUCKETS, DEFAULT_MAX_CATEGORIES
from training.data.features.text_ngrams import DEFAULT_TEXT_BUCKETS, text_cells
from training.engine.parallel.gang import Gang
from training.errors import spec_error
from training.large.planning.costs import StepWork
from training.large.planning.devices import KINDS, Device, Devices
from training.large.planning.planner import Plan, check_fits, judged, plan
from training.large.planning.probe import ROWS_OF_A_GROUP, LayoutCandidate, facts_of
from training.spec import PipelineSpec
from training.spec.key_types import AUTO
from training.spec.layout import Layout
from training.spec.sections.prepare import Feature
from training.spec.sections.train import DEFAULT_BATCH_SIZE

if TYPE_CHECKING:
    from training.models.torch_family import TorchFamily

logger = logging.getLogger(__name__)

FLOATS: Final = frozenset({"number", "standard", "log", "target_encode", "text"})
CGROUP_LIMITS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def plan_of(
    family: TorchFamily, spec: PipelineSpec, features: Sequence[FeatureEntry], devices: Devices, *, rows_of_a_group: int | None = None
) -> Plan:
    """Return the plan of a training.

    Args:
        family: that of the spec's model.
        features: of the model's input, floats first.
        rows_of_a_group: mean of the dataset; None: not known.

    Raises:
        SpecError: `layout.model`, what `build` raises.
    """
    train = spec.train
    architecture = family.architecture_of(spec, features)
    candidate = LayoutCandidate(
        build=lambda: family.build(architecture),
        loss=family.loss,
        features=features,
        has_group=spec.data.group is not None,
        optimizer=lambda module: family.optimizer_settings(train, module),
        blocks=family.blocks,
        tensor_plan=family.tensor_plan,
        cut=family.pipeline_stages,
        rows_of_a_group=rows_of_a_group or ROWS_OF_A_GROUP,
    )
    work = StepWork(
        batch_size=train.batch_size or DEFAULT_BATCH_SIZE,
        micro_batch_size=train.micro_batch_size,
        mode=train.activation_checkpointing,
        precision=("bf16" if devices.kind.has_bf16 else "fp32") if train.precision == "auto" else train.precision,
    )
    return plan(facts_of(candidate), work, devices)


def planned_features(spec: PipelineSpec, cardinalities: Mapping[str, int]) -> tuple[list[FeatureEntry], list[str]]:
    """Return the model's input without a dataset, and what was assumed of it: at most as many ids as the spec allows.

    Args:
        cardinalities: ids by feature, 0 included, in place of the limits.

    Raises:
        SpecError: `layout.cardinality`: one is of no feature with ids; or the spec does not limit a feature's ids.
    """
    ids = {name for name, feature in spec.prepare.features.items() if feature.transform not in FLOATS and not feature.parts}
    found, missing = [], []
    at_most: dict[tuple[str, int], list[str]] = {}
    for name, feature in spec.prepare.features.items():
        if feature.parts:
            found += _parts(name, feature)
            continue
        if feature.transform == "text":
            cells = text_cells(name, feature.buckets or DEFAULT_TEXT_BUCKETS)
            found += [FeatureEntry(name=cell, dtype="float32", cardinality=0) for cell in cells]
            continue
        if name not in ids:
            found.append(FeatureEntry(name=name, dtype="float32", cardinality=0))
            continue
        limits = {
            "category": (feature.max_categories or DEFAULT_MAX_CATEGORIES) + 1 if feature.top is None else feature.top + 2,
            "hash": (feature.buckets or DEFAULT_HASH_BUCKETS) + 1,
            "bucket": (feature.buckets or DEFAULT_BUCKETS) + 1,
        }
        size = cardinalities.get(name, limits.get(feature.transform))
        if size is None:
            missing.append(name)
            continue
        if name not in cardinalities:
            at_most.setdefault((feature.transform, size), []).append(name)
        found.append(FeatureEntry(name=name, dtype="int32", cardinality=size))
    unknown = sorted(set(cardinalities) - ids)
    if unknown or missing:
        names = ", ".join(unknown or missing)
        message = f"--cardinality: no feature with ids: {names}" if unknown else f"the spec does not limit the number of ids: {names}"
        hint = f"features with ids: {', '.join(sorted(ids)) or 'none'}; give each as --cardinality NAME=NUMBER"
        raise spec_error("nightshift layout", "layout.cardinality", message, hint=hint)
    assumed = [
        f"{_listed(names)}: {size:,} ids each, as many as the transform {transform} allows (--cardinality NAME=NUMBER)"
        for (transform, size), names in at_most.items()
    ]
    return sorted(found, key=lambda entry: entry["dtype"] != "float32"), assumed


def _parts(name: str, feature: Feature) -> list[FeatureEntry]:
    """Return the inputs that a `datetime` becomes."""
    if feature.form == "id":
        return [FeatureEntry(name=f"{name}.{part}", dtype="int32", cardinality=PERIODS[part] + 1) for part in feature.parts]
    ends = (".sin", ".cos") if feature.form == "cyclic" else ("",)
    return [FeatureEntry(name=f"{name}.{part}{end}", dtype="float32", cardinality=0) for part in feature.parts for end in ends]


def _listed(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} others" if len(names) > most else "")


def chosen_layout(
    family: TorchFamily, spec: PipelineSpec, gang: Gang, features: Sequence[FeatureEntry], *, rows_of_a_group: int | None = None
) -> Layout:
    """Return how the processes of a gang share the model: what the spec says, or for `auto` what fits their memory.

    Of `auto`, the first process chooses, by the least memory of any, and all have its choice. All must call it.

    Raises:
        SpecError: what `plan_of` raises, in the first process; `parallel.memory`, no layout fits.
        PeerLostError: another process is lost.
    """
    train = spec.train
    if train.parallel != AUTO or gang.world_size == 1:
        return train.layout_for(gang.world_size)
    least = min(_memories(gang, train.placement.processes_per_node))
    text = ""
    if gang.is_first:
        per_node = min(train.placement.processes_per_node, gang.world_size)
        devices = Devices(kind=replace(_kind(gang), memory_bytes=least), count=gang.world_size, per_node=per_node)
        found = plan_of(family, spec, features, devices, rows_of_a_group=rows_of_a_group)
        check_fits(found)
        for reason in found.reasons():
            logger.info("parallel auto: %s", reason)
        text = json.dumps(asdict(found.layout))
    return Layout(**json.loads(gang.text_from_first(text)))


def _memories(gang: Gang, processes_per_node: int) -> list[int]:
    """Return the memory of each process's device."""
    own = [0.0] * gang.world_size
    own[gang.rank] = float(memory_of_device(gang, processes_per_node))
    return [int(size) for size in gang.sum(*own)]


def memory_of_device(gang: Gang, processes_per_node: int) -> int:
    """Return the bytes that this process can have: of its GPU, or its share of the node's memory or of the container's limit."""
    if gang.device.type == "cuda":
        import torch

        return int(torch.cuda.get_device_properties(gang.device).total_memory)
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in CGROUP_LIMITS:
        text = Path(path).read_text().strip() if Path(path).exists() else "max"
        limits.append(int(text) if text.isdecimal() else limits[0])
    return min(limits) // processes_per_node


def _kind(gang: Gang) -> Device:
    """Return the gang's kind of device; of a GPU that the table lacks, only the memory counts for the choice."""
    if gang.device.type != "cuda":
        return KINDS["cpu"]
    import torch

    return replace(KINDS["A100-80GB"], name=torch.cuda.get_device_name(gang.device), has_bf16=torch.cuda.is_bf16_supported())


def judgement(found: Plan, layout: Layout) -> str:
    """Return whether a layout that the spec names would fit."""
    return judged(found.facts, found.work, layout, found.devices).words()
