"""Planned figures against what is counted: memory at its peak, bytes through sockets, and the collectives of a dry run of 32 ranks.

Several processes: one alone sends nothing, and shares its peak of memory with all other tests.
"""

from __future__ import annotations

import os
import socket
import struct
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.unit.training.engine.parallel.ranks import run_ranks
from tests.unit.training.large.planning.models import Size, Transformer, facts, next_token_loss, plan_of, stages_of
from training.data.dataset.loader import Batch, cut
from training.engine.optim import Schedule, ScheduledOptimizer
from training.engine.optimizers import OptimizerSettings
from training.engine.parallel.gang import Gang
from training.large.planning.costs import StepWork, memory_of, wire_of
from training.large.planning.devices import parse_devices
from training.models.strategy_choice import strategy_for
from training.spec.layout import Layout

MODEL = Size(width=512, depth=4, heads=4, vocabulary=2000, length=32)
"""Of 15 million parameters: 60 MB, 240 MB with gradients and AdamW."""
LARGE_LAYERS = Size(width=512, depth=4, heads=4, vocabulary=20_000, length=32)
"""With an embedding and an output layer of 41 MB each, blocks of 13 MB."""
ROWS = 32
BYTES_RECEIVED = 128
"""Where `struct tcp_info` of Linux has `tcpi_bytes_received`, from 4.1 on: a packet that was sent twice counts once."""
FEW_NUMBERS_BYTES = 64
MAX_ERROR = 0.15


class LiveBytes(TorchDispatchMode):
    """Counts the storages that torch's operators made, as large as they are: FSDP frees one by resizing it to 0."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._alive: weakref.WeakValueDictionary[int, torch.UntypedStorage] = weakref.WeakValueDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            tensor = value._local_tensor if isinstance(value, DTensor) else value
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self._alive[storage._cdata] = storage
        self.peak = max(self.peak, sum(storage.nbytes() for storage in list(self._alive.values())))
        return result


class Sent(TorchDispatchMode):
    """Counts collectives and the bytes of the tensors that are gathered, scattered or reduced."""

    KINDS: ClassVar = {"_allgather_base_": "all-gather", "_reduce_scatter_base_": "reduce-scatter", "allreduce_": "all-reduce"}

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self.num_bytes: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind = self.KINDS.get(func._schema.name.removeprefix("c10d::"))
        sizes = [tensor.numel() * tensor.element_size() for tensor in tree_leaves(args) if isinstance(tensor, torch.Tensor)]
        whole = max(sizes, default=0)
        # The few numbers of a step are in no plan.
        if kind is not None and whole > FEW_NUMBERS_BYTES:
            self.counts[kind] = self.counts.get(kind, 0) + 1
            self.num_bytes[kind] = self.num_bytes.get(kind, 0) + whole
        return func(*args, **(kwargs or {}))


def bytes_received() -> int:
    """Return what has reached this process through all of its TCP connections, as the kernel counts it."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
                    counted = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                    total += struct.unpack_from("Q", counted, BYTES_RECEIVED)[0]
        except FileNotFoundError:
            # That of the listing itself.
            continue
    return total


def batch_of(rows: int) -> Batch:
    generator = torch.Generator().manual_seed(rows)
    ids = torch.randint(0, MODEL.vocabulary, (rows, MODEL.length), generator=generator, dtype=torch.int32)
    return {"features_float": torch.zeros(rows, 0), "features_int": ids, "label": torch.zeros(rows)}


def trained(gang: Gang, layout: Layout, size: Size, *, steps: int) -> Transformer:
    """Train for some steps; keep the best weights after the first, as the loop does."""
    torch.manual_seed(0)
    module = Transformer(size)
    strategy = strategy_for(gang, precision="fp32", layout=layout, tensor_plan=lambda _: plan_of(size), cut=stages_of)
    optimizer = ScheduledOptimizer(strategy.place(module), Schedule(learning_rate=1e-3, total_steps=100), OptimizerSettings())
    best: dict[str, torch.Tensor] = {}
    for step in range(steps):
        optimizer.clear_gradients()
        strategy.backward(cut(batch_of(ROWS), layout.pipeline), next_token_loss, ROWS * layout.num_data_ranks)
        strategy.clip(1.0)
        optimizer.step(step)
        best = best or strategy.weights()
    return module


def peak_of(gang: Gang, layout: Layout, size: Size) -> int:
    with LiveBytes() as live:
        module = trained(gang, layout, size, steps=3)
    del module
    return live.peak


@pytest.mark.parametrize(
    ("size", "layout"),
    [
        (MODEL, Layout()),
        (MODEL, Layout(data=2)),
        (MODEL, Layout(shard=2)),
        (LARGE_LAYERS, Layout(shard=2)),
        (LARGE_LAYERS, Layout(shard=4)),
        (MODEL, Layout(tensor=2)),
        (MODEL, Layout(pipeline=2)),
    ],
    ids=lambda value: value.words() if isinstance(value, Layout) else f"{value.vocabulary} ids",
)
def test_planned_memory_is_within_15_percent_of_the_peak(size: Size, layout: Layout, tmp_path: Path) -> None:
    measured = run_ranks(peak_of, layout.world_size, tmp_path / "ranks", layout, size)
    work = StepWork(batch_size=ROWS * layout.num_data_ranks, micro_batch_size=ROWS // layout.pipeline, mode="none")
    planned = memory_of(facts(size, has_plans=True), work, layout, parse_devices(f"{layout.world_size}xcpu"))
    error = planned.total / max(measured) - 1
    assert abs(error) <= MAX_ERROR, f"planned {planned}, measured {max(measured)}"


def received_by(gang: Gang, layout: Layout, micro_batches: int) -> int:
    """Return the bytes that reach this process in a backward pass: as many as it sends, since all ranks do the same."""
    strategy = strategy_for(gang, precision="fp32", layout=layout)
    strategy.place(Transformer(MODEL))
    gang.wait_for_all()
    before = bytes_received()
    # Nothing is sent before the slowest one has begun to count.
    gang.wait_for_all()
    strategy.backward(cut(batch_of(4), micro_batches), next_token_loss, 4 * layout.num_data_ranks)
    gang.wait_for_all()
    received = bytes_received() - before
    # A process that ends closes its connections, and what they counted is gone from the others.
    gang.wait_for_all()
    return received


@pytest.mark.parametrize("layout", [Layout(data=2), Layout(data=4), Layout(shard=2), Layout(data=2, shard=2)], ids=Layout.words)
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_planned_bytes_are_those_that_pass_through_the_sockets(layout: Layout, micro_batches: int, tmp_path: Path) -> None:
    counted = run_ranks(received_by, layout.world_size, tmp_path / "ranks", layout, micro_batches)
    work = StepWork(batch_size=4 * layout.num_data_ranks, micro_batch_size=4 // micro_batches, mode="none")
    # gloo reduces all and keeps a part: twice what a ring sends.
    planned = sum(
        one.num_bytes * (2 if one.kind == "reduce-scatter" else 1)
        for one in wire_of(facts(MODEL, has_plans=True), work, layout, parse_devices(f"{layout.world_size}xcpu"))
    )
    assert counted == [pytest.approx(planned, rel=0.01)] * layout.world_size


@pytest.fixture
def rank_of_32() -> Iterator[Gang]:
    dist.init_process_group("fake", rank=5, world_size=32)
    yield Gang(5, 32, torch.device("cpu"), None)
    dist.destroy_process_group()


@pytest.mark.parametrize("layout", [Layout(data=4, shard=8), Layout(shard=32)], ids=lambda layout: str(layout.words()))
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_bytes_sent_are_those_of_a_dry_run_of_32_ranks(layout: Layout, micro_batches: int, rank_of_32: Gang) -> None:
    strategy = strategy_for(rank_of_32, precision="fp32", layout=layout)
    strategy.place(Transformer(MODEL))
    with Sent() as sent:
        strategy.backward(cut(batch_of(4), micro_batches), next_token_loss, 4 * 32)
    work = StepWork(batch_size=4 * 32, micro_batch_size=4 // micro_batches, mode="none")
    shares = {"all-gather": (layout.shard - 1) / layout.shard, "reduce-scatter": (layout.shard - 1) / layout.shard}
    shares["all-reduce"] = 2 * (layout.data - 1) / layout.data
    planned = wire_of(facts(MODEL), work, layout, parse_devices("32xcpu"))
    assert {one.kind for one in planned} == set(sent.counts)
    for one in planned:
        # Parts of parameters are padded to equal sizes.
        assert one.num_bytes == pytest.approx(sent.num_bytes[one.kind] * shares[one.kind], rel=0.01), one
        assert one.count == sent.counts[one.kind], one
