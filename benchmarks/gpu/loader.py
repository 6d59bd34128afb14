"""Batches of a ranker from shards to the card: as they are (pageable memory), pinned in the loader's thread, and on the card already."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.gpu import rankers
from benchmarks.gpu.bench import Bench, Figures
from benchmarks.gpu.trainings import DIGEST
from training.data.dataset.loader import Batch, Loader, ShardSet

NUM_BATCHES: Final = 64


class PinnedLoader(Loader):
    """What pinned memory would give: copies to the card do not wait for the host."""

    def _load(self, *arguments: Any) -> Batch:
        return {name: cells.pin_memory() for name, cells in super()._load(*arguments).items()}


def measure(device: str) -> Iterator[Figures]:
    bench = Bench(device)
    size, num_batches = (65_536, NUM_BATCHES) if bench.is_gpu else (64, 4)
    yield transfers(bench)
    training = bench.training(rankers.ranker(is_large=bench.is_gpu), loss=rankers.loss)
    batch = {name: cells.to(bench.device) for name, cells in rankers.batch_of(size).items()}
    floor = bench.seconds(lambda: training.step(batch), steps=20)
    yield {"rows_per_second_on_device": size / floor, "step_seconds": floor}
    with tempfile.TemporaryDirectory() as name:
        meta = rankers.write(Path(name), train=size * num_batches, validation=size)
        shards = ShardSet(Path(name), meta, "train")
        for kind, make in (("pageable", Loader), ("pinned", PinnedLoader)):
            if make is PinnedLoader and not bench.is_gpu:
                # Pinned memory is CUDA's.
                continue
            loader = make(shards, dataset_digest=DIGEST, seed=1, batch_size=size)
            seconds = []
            for epoch in range(3):
                bench.wait()
                started_at = time.perf_counter()
                for found in loader.batches(epoch):
                    training.step(found)
                bench.wait()
                seconds.append((time.perf_counter() - started_at) / num_batches)
            best = min(seconds)
            yield {f"rows_per_second_{kind}": size / best, f"waits_{kind}": max(0.0, 1 - floor / best)}


def transfers(bench: Bench) -> Figures:
    num_bytes = 2**28 if bench.is_gpu else 2**16
    target = torch.empty(num_bytes, dtype=torch.uint8, device=bench.device)
    found = {}
    for kind, is_pinned in (("pageable", False), ("pinned", bench.is_gpu)):
        host = torch.ones(num_bytes, dtype=torch.uint8, pin_memory=is_pinned)
        for way, copy in (("to", lambda host=host: target.copy_(host)), ("from", lambda host=host: host.copy_(target))):
            found[f"{way}_device_{kind}_gb_per_second"] = num_bytes / bench.seconds(copy, steps=5, warm_up=1) / 1e9
    return found
