"""A plan for people, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from training.contracts import JsonObject
from training.large.planning.costs import FP32_SHARE, MFU
from training.large.planning.devices import USABLE_SHARE
from training.large.planning.planner import JudgedLayout, Plan, gib


def text_of(plan: Plan, *, assumed: Sequence[str] = ()) -> str:
    """Return what `nightshift layout` prints."""
    return "\n".join(_lines(plan, assumed)) + "\n"


def _lines(plan: Plan, assumed: Sequence[str]) -> Iterator[str]:
    facts, work, memory, time = plan.facts, plan.work, plan.chosen.memory, plan.time
    yield f"devices   {plan.devices.words()}"
    yield f"model     {facts.num_parameters:,} parameters, {gib(facts.parameter_bytes)} in fp32, {facts.num_repeated} repeated blocks"
    yield f"layout    {plan.layout.words()}" if plan.fits else f"layout    none fits; the least memory has {plan.layout.words()}"
    yield ""
    yield f"memory per process       {gib(memory.total):>12} of {gib(plan.devices.usable_bytes)}"
    for name, size in memory.by_kind().items():
        yield f"  {name.replace('_', ' '):<22} {gib(size):>12}"
    rows, num_micro = work.rows(plan.layout), work.num_micro_batches(plan.layout)
    shares = f"{work.batch_size:,} rows in {plan.layout.num_data_ranks} shares"
    yield f"batch                    {shares}, micro-batches of {rows:,} rows, {num_micro} per step"
    if plan.bubble:
        yield f"pipeline bubble          {plan.bubble:.1%}"
    wire = plan.wire
    yield f"sent per process, step   {gib(sum(one.num_bytes for one in wire)):>12}" if wire else "sent per process, step           none"
    for one in wire:
        where = "within the node" if one.is_within_node else "between nodes"
        yield f"  {one.purpose:<22} {gib(one.num_bytes):>12}  {one.count} {one.kind}, {where}"
    parts = f"computing {time.compute:.3g} s, sending {time.wire:.3g} s at the same time, update {time.update:.3g} s"
    yield f"expected step            {time.total:>10.3g} s  ({parts})"
    yield ""
    yield "reasoning"
    for reason in plan.reasons():
        yield f"  {reason}"
    yield ""
    yield "assumed"
    for text in (*assumptions(plan), *assumed):
        yield f"  {text}"


def assumptions(plan: Plan) -> list[str]:
    """Return what the figures rest on, one line each."""
    kind = plan.devices.kind
    slower = [] if plan.work.is_half or kind.is_cpu else [f"fp32 has {FP32_SHARE:.0%} of that rate"]
    return [
        f"forward pass in {plan.work.precision}; weights, gradients and optimizer state in fp32",
        f"{kind.name}: {kind.flops / 1e12:g} TFLOP/s, of which a training reaches {MFU:.0%}; memory {kind.memory_rate / 1e9:g} GB/s",
        *slower,
        f"a process sends {kind.node_rate / 1e9:g} GB/s within a node, {kind.network_rate / 1e9:g} GB/s between nodes",
        f"{USABLE_SHARE:.0%} of the memory can be filled; activations are those of a batch of zeros, larger ones in proportion",
    ]


def json_of(plan: Plan, *, assumed: Sequence[str] = ()) -> JsonObject:
    """Return the plan as JSON; sizes in bytes, times in seconds."""
    time, work, layout = plan.time, plan.work, plan.layout
    return {
        "devices": {"kind": plan.devices.kind.name, "count": plan.devices.count, "per_node": plan.devices.per_node},
        "parameters": plan.facts.num_parameters,
        "fits": plan.fits,
        "layout": dict(layout.sizes()),
        "memory_bytes": dict(plan.chosen.memory.by_kind()),
        "usable_bytes": plan.devices.usable_bytes,
        "micro_batch_rows": work.rows(layout),
        "micro_batches": work.num_micro_batches(layout),
        "bubble": plan.bubble,
        "sent": [
            {"kind": one.kind, "purpose": one.purpose, "count": one.count, "bytes": one.num_bytes, "within_node": one.is_within_node}
            for one in plan.wire
        ],
        "step_seconds": {"total": time.total, "compute": time.compute, "wire": time.wire, "update": time.update},
        "rejected": [_judged(candidate) for candidate in plan.rejected],
        "advice": list(plan.advice),
        "assumed": [*assumptions(plan), *assumed],
    }


def _judged(candidate: JudgedLayout) -> JsonObject:
    return {"layout": dict(candidate.layout.sizes()), "memory_bytes": candidate.memory.total, "problem": candidate.problem}
