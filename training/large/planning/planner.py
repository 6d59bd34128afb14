"""The choice of a layout: the first one that fits, from the simplest on.

One device holds the model: data parallel. Else the model is divided (FSDP2): over the devices of a node, then over more nodes. Else each
layer is divided over devices of a node (tensor), if the family has a plan for it; else the layers over nodes (pipeline). The choice is a
function of the model, the section `train` and the devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from training.errors import spec_error
from training.large.planning.costs import Memory, ModelSize, StepTime, StepWork, Wire, bubble_of, memory_of, step_time, wire_of
from training.large.planning.devices import GIB, Devices
from training.spec.layout import Layout


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedLayout:
    """A layout and why it is taken or not."""

    layout: Layout
    memory: Memory
    problem: str | None
    """None: it fits."""

    def words(self) -> str:
        return f"{self.layout.words()}: {self.problem or f'fits, {gib(self.memory.total)}'}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A choice with its reasoning."""

    facts: ModelSize
    work: StepWork
    devices: Devices
    chosen: JudgedLayout
    rejected: Sequence[JudgedLayout]
    advice: Sequence[str]

    @property
    def layout(self) -> Layout:
        return self.chosen.layout

    @property
    def fits(self) -> bool:
        return self.chosen.problem is None

    @property
    def wire(self) -> list[Wire]:
        return wire_of(self.facts, self.work, self.layout, self.devices)

    @property
    def bubble(self) -> float:
        return bubble_of(self.work, self.layout)

    @property
    def time(self) -> StepTime:
        return step_time(self.facts, self.work, self.layout, self.devices)

    def reasons(self) -> list[str]:
        """Return the choice, what was rejected before it, and advice: one line each."""
        budget = f"{gib(self.devices.usable_bytes)} of {gib(self.devices.kind.memory_bytes)} can be planned for"
        first = f"layout {self.layout.words()}: {gib(self.chosen.memory.total)} per process; {budget}"
        return [first, *(f"rejected {candidate.words()}" for candidate in self.rejected), *self.advice]


def gib(num_bytes: float) -> str:
    """Return bytes for people: `12.3 GiB`, and small ones in MiB."""
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes >= GIB else f"{num_bytes / (1 << 20):.1f} MiB"


def plan(facts: ModelSize, work: StepWork, devices: Devices) -> Plan:
    """Return the layout that `train.parallel: auto` takes; where none fits, that with the least memory, and `fits` is False."""
    rejected: list[JudgedLayout] = []
    for layout in candidates(facts, devices):
        candidate = judged(facts, work, layout, devices)
        if candidate.problem is None:
            return Plan(
                facts=facts, work=work, devices=devices, chosen=candidate, rejected=rejected, advice=_advice(facts, work, rejected, devices)
            )
        rejected.append(candidate)
    least = min(rejected, key=lambda candidate: (_has_too_many_ranks(candidate.layout, work), candidate.memory.total))
    others = [candidate for candidate in rejected if candidate is not least]
    return Plan(facts=facts, work=work, devices=devices, chosen=least, rejected=others, advice=_advice(facts, work, rejected, devices))


def check_fits(found: Plan) -> None:
    """Raise SpecError `parallel.memory` where no layout fits."""
    if found.fits:
        return
    message = f"no layout of {found.devices.words()} fits: {found.chosen.words()}"
    hint = "; ".join(found.advice) or "use more devices, or devices with more memory; or set data and shard, if the estimate is wrong"
    raise spec_error("train.parallel", "parallel.memory", message, hint=hint, field="train.parallel")


def judged(facts: ModelSize, work: StepWork, layout: Layout, devices: Devices) -> JudgedLayout:
    """Return whether a layout fits."""
    memory = memory_of(facts, work, layout, devices)
    problem = None
    if _has_too_many_ranks(layout, work):
        problem = f"{layout.num_data_ranks} shares of a batch of {work.batch_size} rows"
    elif work.num_micro_batches(layout) < layout.pipeline:
        problem = f"{work.num_micro_batches(layout)} micro-batches for {layout.pipeline} stages"
    elif memory.total > devices.usable_bytes:
        name, most = max(memory.by_kind().items(), key=lambda item: item[1])
        problem = f"needs {gib(memory.total)}, of it {name.replace('_', ' ')} {gib(most)}; {gib(devices.usable_bytes)} can be planned for"
    return JudgedLayout(layout=layout, memory=memory, problem=problem)


def _has_too_many_ranks(layout: Layout, work: StepWork) -> bool:
    return layout.num_data_ranks > work.batch_size


def candidates(facts: ModelSize, devices: Devices) -> Iterator[Layout]:
    """Yield the layouts of so many devices, the simplest first."""
    world_size, node = devices.count, math.gcd(devices.count, devices.per_node)
    yield Layout(data=world_size)
    yield from _sharded(world_size, node)
    tensors = [size for size in _divisors(node) if size > 1 and facts.tensor_parts % size == 0]
    for tensor in tensors:
        yield from _with(world_size, tensor=tensor)
    # Stages are combined with replicas alone (`training.large.pipeline`).
    yield from (Layout(data=world_size // stages, pipeline=stages) for stages in _divisors(world_size) if stages in facts.stage_shares)


def _sharded(world_size: int, node: int) -> Iterator[Layout]:
    """Yield layouts whose replicas fill a node, then more and more nodes."""
    for nodes in _divisors(world_size // node):
        if node * nodes > 1:
            yield Layout(data=world_size // (node * nodes), shard=node * nodes)


def _with(world_size: int, **sizes: int) -> Iterator[Layout]:
    """Yield the layouts in which what `sizes` leaves is data parallel, then divided."""
    left = world_size // math.prod(sizes.values())
    given = {name: size for name, size in sizes.items() if size > 1}
    yield replace(Layout(data=left), **given)
    for shard in _divisors(left):
        if shard > 1:
            yield replace(Layout(data=left // shard, shard=shard), **given)


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def _advice(facts: ModelSize, work: StepWork, rejected: Sequence[JudgedLayout], devices: Devices) -> list[str]:
    """Return keys of the spec that would let a simpler layout fit, which is rejected as the spec is."""
    found = []
    for mode in ("selective", "full") if work.mode == "none" else ():
        simpler = _fitting(facts, replace(work, mode=mode), rejected, devices) if mode in facts.activations else None
        if simpler is not None:
            found.append(f"with activation_checkpointing: {mode}, {simpler.layout.words()} would fit ({gib(simpler.memory.total)})")
            break
    micro = work.micro_batch_size or work.batch_size
    while micro > 1:
        micro //= 2
        simpler = _fitting(facts, replace(work, micro_batch_size=micro), rejected, devices)
        if simpler is not None:
            found.append(f"with micro_batch_size: {micro}, {simpler.layout.words()} would fit ({gib(simpler.memory.total)})")
            break
    return found


def _fitting(facts: ModelSize, work: StepWork, rejected: Sequence[JudgedLayout], devices: Devices) -> JudgedLayout | None:
    candidates = (judged(facts, work, candidate.layout, devices) for candidate in rejected)
    return next((candidate for candidate in candidates if candidate.problem is None), None)
