"""What it costs to be ready for several cards: FSDP2 on one card beside the whole model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
import torch.distributed as dist

from benchmarks.gpu.bench import Bench, Figures
from benchmarks.gpu.language_model import LanguageModel, random_batch
from training.engine.parallel.strategy import Strategy
from training.large.sharded import ShardedModel
from training.spec.layout import Layout

ROUNDS: Final = 3


def measure(device: str) -> Iterator[Figures]:
    bench = Bench(device)
    rows, steps = (8, 10) if bench.is_gpu else (2, 2)
    batch = random_batch(bench.shape, rows)
    dist.init_process_group("nccl" if bench.is_gpu else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        strategies: dict[str, Strategy | None] = {"plain": None, "fsdp2": ShardedModel(bench.gang, Layout(), precision="bf16")}
        trainings = {}
        for name, strategy in strategies.items():
            torch.manual_seed(1)
            trainings[name] = bench.training(LanguageModel(bench.shape), strategy=strategy)
        seconds: dict[str, list[float]] = {name: [] for name in trainings}
        for _ in range(ROUNDS):
            for name, training in trainings.items():
                bench.block_seconds(lambda training=training: training.step(batch), 2)
                seconds[name].append(bench.block_seconds(lambda training=training: training.step(batch), steps))
        best = {name: min(found) for name, found in seconds.items()}
        yield {**{f"{name}_step_seconds": found for name, found in best.items()}, "fsdp2_beside_plain": best["plain"] / best["fsdp2"]}
        losses = [training.losses for training in trainings.values()]
        yield {"first_losses": [found[0] for found in losses], "last_losses": [found[-1] for found in losses]}
    finally:
        dist.destroy_process_group()
