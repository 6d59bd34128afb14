"""What a layout costs: memory of one process by kind, and the bytes that it sends in a step.

Formulas of Rajbhandari et al. (ZeRO, 2020) and Korthikanti et al. (Reducing Activation Recomputation in Large Transformer Models, 2022),
for collectives as rings: of n processes, each sends (n - 1) / n of the bytes in an all-gather or a reduce-scatter, and twice that in an
all-reduce.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from training.large.planning.devices import GIB, Devices
from training.spec.layout import Layout

Mode = Literal["none", "selective", "full"]
MFU: Final = 0.4
"""Share of a device's rate that a training reaches (Chowdhery et al., PaLM, 2022: 0.46 with all of its tuning)."""
FP32_SHARE: Final = 1 / 15
"""Of a GPU's rate in bf16 or fp16, without its matrix units."""
CUDA_CONTEXT_BYTES: Final = GIB


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A number of bytes that grows with the rows of a micro-batch."""

    fixed: float
    per_row: float

    def at(self, rows: int) -> float:
        return max(0.0, self.fixed + self.per_row * rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSize:
    """What a plan has to know of a model. Bytes are those of fp32."""

    num_parameters: int
    parameter_bytes: int
    buffer_bytes: int
    gradient_bytes: int
    """Of the parameters that are trained."""
    optimizer_bytes: int
    update_bytes: int
    """What the optimizer's step needs besides its state, at most."""
    block_bytes: tuple[int, ...]
    """Parameters of the blocks and large layers that FSDP gathers one at a time."""
    activations: Mapping[Mode, Line]
    """Tensors kept for the backward pass, by `train.activation_checkpointing`; only `none` where the model has no blocks."""
    passed: Line
    """Output of one repeated block: what stages of a pipeline send, and tensor parallel processes reduce."""
    flops: Line
    """Of a forward pass."""
    num_repeated: int
    """Repeated blocks."""
    tensor_parts: int
    """Over each divisor of it, processes can divide the layers; 1: the family has no plan for it."""
    tensor_bytes: int
    """Of the parameters that are divided so."""
    tensor_activations: float
    """Share of the activations that is divided so."""
    stage_shares: Mapping[int, float]
    """Share of the parameters that the largest stage has, by the numbers of stages into which the family cuts the model."""

    @property
    def rest_bytes(self) -> int:
        """Parameters outside of all blocks: FSDP keeps them gathered through a whole step."""
        return self.parameter_bytes - sum(self.block_bytes)

    def tensor_part(self, tensor: int) -> float:
        """Return the share of the parameters that a process of a tensor group has."""
        divided = self.tensor_bytes / self.parameter_bytes if self.parameter_bytes else 0.0
        return 1.0 - divided + divided / tensor

    def stage_part(self, stages: int) -> float:
        """Return the share of the parameters that the largest of so many stages has."""
        return self.stage_shares.get(stages, 1 / stages)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepWork:
    """What a step does, of the section `train`."""

    batch_size: int
    micro_batch_size: int | None
    mode: Mode
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"

    @property
    def is_half(self) -> bool:
        return self.precision != "fp32"

    @property
    def compute_share(self) -> float:
        """Bytes of a number in the forward pass, relative to fp32."""
        return 0.5 if self.is_half else 1.0

    def rows(self, layout: Layout) -> int:
        """Rows of a micro-batch."""
        share = -(-self.batch_size // layout.num_data_ranks)
        return share if self.micro_batch_size is None else min(share, self.micro_batch_size)

    def num_micro_batches(self, layout: Layout) -> int:
        return -(-self.batch_size // (layout.num_data_ranks * self.rows(layout)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Bytes of one process at the peak of a step, by kind."""

    parameters: int
    gradients: int
    optimizer: int
    best_weights: int
    """Copy of the weights of the best epoch: on a CPU, and where the model is divided."""
    activations: int
    """Those that are kept beside all gradients."""
    buffers: int
    """Gathered parameters, gradients on their way, casts to half precision, the model's own buffers, CUDA's context."""

    @property
    def total(self) -> int:
        return sum(self.by_kind().values())

    def by_kind(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}


def size_of(layout: Layout, dimension: str) -> int:
    return int(getattr(layout, dimension, 1))


def memory_of(facts: ModelSize, work: StepWork, layout: Layout, devices: Devices) -> Memory:
    """Return the memory of one process; with a pipeline, the parameters of the largest stage and the activations of the first one."""
    shard, tensor, stages = (size_of(layout, name) for name in ("shard", "tensor", "pipeline"))
    part = facts.tensor_part(tensor) * facts.stage_part(stages) / shard
    is_cpu = devices.kind.is_cpu
    line = facts.activations.get(work.mode, facts.activations["none"])
    in_flight = min(stages, work.num_micro_batches(layout))
    kept = 1.0 - facts.tensor_activations + facts.tensor_activations / tensor
    activations = line.at(work.rows(layout)) * work.compute_share * kept / stages * in_flight
    gradients = facts.gradient_bytes * part
    if work.num_micro_batches(layout) == 1 and (layout.world_size == 1 or shard * tensor > 1):
        # Gradients are made while activations are freed. DDP has room for them all the time, and so have earlier micro-batches.
        activations = max(0.0, activations - gradients)
    return Memory(
        parameters=math.ceil(facts.parameter_bytes * part),
        gradients=math.ceil(gradients),
        optimizer=math.ceil(facts.optimizer_bytes * part),
        best_weights=math.ceil(facts.parameter_bytes * part) if is_cpu or shard * tensor * stages > 1 else 0,
        activations=math.ceil(activations),
        buffers=math.ceil(_buffers(facts, work, layout) + (0 if is_cpu else CUDA_CONTEXT_BYTES)),
    )


def _buffers(facts: ModelSize, work: StepWork, layout: Layout) -> float:
    shard, tensor, stages = (size_of(layout, name) for name in ("shard", "tensor", "pipeline"))
    part = facts.tensor_part(tensor)
    found = facts.buffer_bytes + facts.update_bytes * part
    if shard == tensor == 1:
        # Under autocast, each weight has a cast copy until the end of the forward pass.
        casts = facts.parameter_bytes * facts.stage_part(stages) * work.compute_share if work.is_half else 0.0
        # torch's schedules have memory of its own for what each micro-batch receives: activations, and in all but the last stage gradients.
        received = min(2, stages - 1) * work.num_micro_batches(layout) * facts.passed.at(work.rows(layout)) * work.compute_share
        return found + casts + received
    largest, second = (size * part for size in sorted((0, 0, *facts.block_bytes), reverse=True)[:2])
    rest = facts.rest_bytes * part / stages
    # The block that computes and the one that is gathered next; their gradients, before and while they are reduced in fp32.
    gathered = (rest + largest + second) * work.compute_share
    reduced = max(rest, largest) * (work.compute_share + 1.0)
    return found + gathered + reduced


@dataclass(frozen=True, kw_only=True, slots=True)
class Wire:
    """Collectives of one process in a step: how many, and the bytes that it sends."""

    kind: str
    """`all-gather`, `reduce-scatter`, `all-reduce` or `send`."""
    purpose: str
    count: int
    num_bytes: int
    is_within_node: bool


def wire_of(facts: ModelSize, work: StepWork, layout: Layout, devices: Devices) -> list[Wire]:
    """Return the collectives of a step, besides a few of single numbers."""
    data, shard, tensor, stages = (size_of(layout, name) for name in ("data", "shard", "tensor", "pipeline"))
    num_micro, rows = work.num_micro_batches(layout), work.rows(layout)
    part = facts.tensor_part(tensor) * facts.stage_part(stages)
    found: list[Wire] = []
    groups = len(facts.block_bytes) + (facts.rest_bytes > 0)
    if shard > 1:
        share = (shard - 1) / shard * num_micro * part
        # Blocks are gathered in both passes, the rest once: it stays.
        gathered = (2 * sum(facts.block_bytes) + facts.rest_bytes) * work.compute_share * share
        count = num_micro * (2 * len(facts.block_bytes) + (facts.rest_bytes > 0))
        inside = shard * tensor <= devices.per_node
        found.append(_wire("all-gather", "parameters (shard)", count, gathered, inside))
        found.append(_wire("reduce-scatter", "gradients (shard)", num_micro * groups, facts.gradient_bytes * share, inside))
    if data > 1:
        # Averaged over replicas once in a step: by blocks, or whole ones in buckets of 25 MiB.
        count = groups if shard * tensor > 1 else max(1, math.ceil(facts.gradient_bytes * part / (25 << 20)))
        sent = 2 * (data - 1) / data * facts.gradient_bytes * part / shard
        found.append(_wire("all-reduce", "gradients (data)", count, sent, layout.world_size <= devices.per_node))
    passed = facts.passed.at(rows) * work.compute_share
    if tensor > 1:
        # Two in the forward and two in the backward pass of each block; as all-gather and reduce-scatter with sequence parallel.
        count = 4 * math.ceil(facts.num_repeated / stages) * num_micro
        found.append(
            _wire("all-reduce", "activations (tensor)", count, 2 * (tensor - 1) / tensor * passed * count, tensor <= devices.per_node)
        )
    if stages > 1:
        found.append(_wire("send", "activations (pipeline)", 2 * num_micro, 2 * num_micro * passed, layout.world_size <= devices.per_node))
    return found


def _wire(kind: str, purpose: str, count: int, num_bytes: float, is_within_node: bool) -> Wire:
    return Wire(kind=kind, purpose=purpose, count=count, num_bytes=math.ceil(num_bytes), is_within_node=is_within_node)


def bubble_of(work: StepWork, layout: Layout) -> float:
    """Return the share of a step in which a stage of the pipeline waits (Narayanan et al., 2021)."""
    stages = size_of(layout, "pipeline")
    return (stages - 1) / (work.num_micro_batches(layout) + stages - 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTime:
    """Seconds of a step. Collectives run while the device computes: the longer of the two counts."""

    compute: float
    wire: float
    update: float

    @property
    def total(self) -> float:
        return max(self.compute, self.wire) + self.update


def step_time(facts: ModelSize, work: StepWork, layout: Layout, devices: Devices) -> StepTime:
    """Return the expected time of a step, under the assumptions that `nightshift layout` prints."""
    kind = devices.kind
    passes = {"none": 3.0, "selective": 3.5, "full": 4.0}[work.mode]
    rate = kind.flops * MFU * (1 if work.is_half or kind.is_cpu else FP32_SHARE)
    flops = facts.flops.at(work.rows(layout)) * work.num_micro_batches(layout) * passes
    compute = flops * facts.tensor_part(layout.tensor) / layout.pipeline / rate / (1 - bubble_of(work, layout))
    wire = sum(
        one.num_bytes / (kind.node_rate if one.is_within_node else kind.network_rate) for one in wire_of(facts, work, layout, devices)
    )
    memory = memory_of(facts, work, layout, devices)
    # Each is read and written once.
    update = 2 * (memory.parameters + memory.gradients + memory.optimizer) / kind.memory_rate
    return StepTime(compute=compute, wire=wire, update=update)
