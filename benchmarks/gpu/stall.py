"""How long a checkpoint of a training stops it, beside the copy that it is made of, and beside what torch offers."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from benchmarks.gpu.bench import Bench, Figures
from benchmarks.gpu.language_model import LanguageModel, random_batch
from benchmarks.gpu.trainings import DIGEST, context_of
from training.engine.checkpoint.checkpoints import Checkpoints
from training.engine.checkpoint.writer import Interval


def measure(device: str) -> Iterator[Figures]:
    bench = Bench(device)
    rows = 8 if bench.is_gpu else 2
    training, batch = bench.training(LanguageModel(bench.shape)), random_batch(bench.shape, rows)
    plain = bench.seconds(lambda: training.step(batch), steps=10)
    # A tied weight once, as the writer stores it.
    state = {name: tensor for name, tensor in training.state().items() if name != "module/head.weight"}
    yield {"bytes": sum(tensor.numel() * tensor.element_size() for tensor in state.values()), "step_seconds": plain}
    copied = copy_seconds(bench, state)
    yield {"copy_seconds": copied}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for place, found in enumerate(saves(bench, folder, training, batch, state), start=1):
            yield {f"stall_{place}_seconds": found["stall"], f"stall_{place}_beside_copy": found["stall"] / copied}
            yield {f"step_beside_save_{place}": found["step"] / plain}
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        for title, call in peers(folder, state).items():
            seconds = wall(bench, call)
            yield {f"{title}_seconds": seconds, f"{title}_beside_copy": seconds / copied}
        dist.destroy_process_group()


def copy_seconds(bench: Bench, state: dict[str, torch.Tensor]) -> float:
    """Return how long the copy of all tensors to pinned memory takes that was touched before: no save can stop a training for less."""
    targets = [torch.ones(tensor.shape, dtype=tensor.dtype, pin_memory=bench.is_gpu) for tensor in state.values()]

    def copy() -> None:
        for target, tensor in zip(targets, state.values(), strict=True):
            target.copy_(tensor, non_blocking=True)

    return bench.seconds(copy, steps=3, warm_up=1)


def saves(bench: Bench, folder: Path, training: Any, batch: Any, state: dict[str, torch.Tensor]) -> Iterator[dict[str, float]]:
    """Yield the stall of two saves, and the time of a step while each is written."""
    identity: Any = {"world_size": 1, "dataset": DIGEST}
    checkpoints = Checkpoints(context_of(folder, "a1"), interval=Interval(), identity=identity)
    checkpoints.reserve(state)
    # The loop reserves before its first step, long before the first save.
    buffer: Any = checkpoints._writer
    buffer._tensor_buffer()._cells.of(1)
    try:
        for _ in range(2):
            stall = wall(bench, lambda: checkpoints.save(state, {"step": training.number, "epoch": 0}))
            started_at, steps = time.perf_counter(), 0
            while checkpoints.is_saving or not steps:
                training.step(batch)
                steps += 1
            bench.wait()
            yield {"stall": stall, "step": (time.perf_counter() - started_at) / steps}
            checkpoints.wait()
    finally:
        checkpoints.close()


def peers(folder: Path, state: dict[str, torch.Tensor]) -> dict[str, Callable[[], object]]:
    pending: list[Any] = []
    return {
        "dcp_async": lambda: pending.append(dcp.async_save(state, checkpoint_id=str(folder / "dcp-async"))),
        # Its file is written before the next peer begins; what is waited for is no stall.
        "dcp_async_rest": lambda: getattr(pending[0], "upload_completion", pending[0]).result(),
        "torch_save": lambda: torch.save(state, folder / "state.pt"),
        "dcp": lambda: dcp.save(state, checkpoint_id=str(folder / "dcp")),
    }


def wall(bench: Bench, call: Callable[[], object]) -> float:
    bench.wait()
    started_at = time.perf_counter()
    call()
    return time.perf_counter() - started_at
