"""Trainings of several processes in which one works longer than the others."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from tests.unit.training.engine.loop_bench import DIGEST, LoopBench, RecordingTracker, squares
from tests.unit.training.large.kill_points import MIN_BLOCK_BYTES, PLAN, Net, stages_of
from training.data.dataset.loader import Batch, Loader, ShardSet
from training.engine.parallel.gang import Gang
from training.large.checkpoint.savers import Savers
from training.large.stragglers import StragglerCheck
from training.large.watchers import watchers_for
from training.models.strategy_choice import strategy_for
from training.spec.layout import Layout

ROWS = {"train": 360, "validation": 24}
BATCH_SIZE = 12
EPOCHS = 2
NUM_STEPS = 60
ITEMS = 256
"""Rows and columns of a product of matrices, which takes about half a millisecond."""
PAUSE_SECONDS = 0.1
"""A multiple of what a step takes."""
TIMES = 4
PRODUCTS = 60
"""Of each step on each process that is not slow; a pipeline's micro-batches share them."""


@dataclass(frozen=True)
class Slow:
    """One rank whose steps take longer than those of the others."""

    rank: int
    how: Literal["work", "sleep", "data"] = "work"
    """Its layers do four times the work, or sleep; or its batches come late."""


@dataclass(frozen=True)
class Seen:
    """What one rank knows at the end."""

    named: dict[int, tuple[int, float]]
    """By rank: step, ratio."""
    scalars: dict[str, Any]
    logged: list[tuple[int, dict[str, float]]]
    noted: list[dict[str, Any]]
    """In the store; of the first rank."""


class LateLoader(Loader):
    """Whose disk is slow."""

    def batches(self, epoch: int, start_step: int = 0) -> Generator[Batch]:
        for batch in super().batches(epoch, start_step):
            time.sleep(PAUSE_SECONDS)
            yield batch


def work(products: int) -> None:
    matrix = torch.ones(ITEMS, ITEMS)
    for _ in range(products):
        matrix = matrix @ matrix / ITEMS


def trained(gang: Gang, folder: str, layout: Layout, slow: Slow | None, ratio: float | None, every_steps: int | None = None) -> Seen:
    """Train for 60 steps in two epochs."""
    bench = LoopBench(Path(folder) / f"rows-{gang.rank}", ROWS)
    # All on one node, as they are, where nobody is to be named.
    nodes = tuple("node" if slow is None else f"node-{rank}" for rank in range(gang.world_size))
    gang = Gang(gang.rank, gang.world_size, gang.device, gang.patient, nodes)
    context = bench.context(rank=gang.rank)
    strategy = strategy_for(gang, precision="fp32", layout=layout, tensor_plan=lambda _: PLAN, cut=stages_of)
    if strategy.is_sharded:
        vars(strategy).update(_min_block_bytes=MIN_BLOCK_BYTES, _min_alone_bytes=MIN_BLOCK_BYTES)
    torch.manual_seed(11)
    net = Net(16)
    num_micro_batches = 2 if layout.pipeline > 1 else 1
    how = slow.how if slow is not None and slow.rank == gang.rank else ""
    # A stage has one of the two blocks.
    products = (TIMES if how == "work" else 1) * PRODUCTS // (1 if layout.pipeline > 1 else 2) // num_micro_batches
    for block in net.blocks:
        block.register_forward_pre_hook(lambda *_: work(products) if net.training else None)
        if how == "sleep":
            block.register_forward_pre_hook(lambda *_: time.sleep(PAUSE_SECONDS) if net.training else None)
    loader = (LateLoader if how == "data" else Loader)(
        ShardSet(bench.folder, bench.meta, "train"),
        dataset_digest=DIGEST,
        seed=3,
        batch_size=BATCH_SIZE,
        micro_batch_size=3 if layout.pipeline > 1 else None,
        rank=strategy.data_rank,
        world_size=strategy.num_data_ranks,
    )
    tracker = RecordingTracker()
    checkpoints = bench.checkpoints(context, savers=Savers.of(gang) if strategy.is_sharded else None, every_steps=every_steps)
    note = functools.partial(bench.work_folder.write_straggler, context.request.attempt_id)
    watchers = watchers_for(
        strategy, checkpoints=checkpoints, tracker=tracker, note_straggler=note, replica_check_steps=0, straggler_ratio=ratio
    )
    loop = bench.loop(
        net,
        stage=context,
        strategy=strategy,
        loader=loader,
        validation=None,
        checkpoints=checkpoints,
        tracker=tracker,
        loss=squares,
        epochs=EPOCHS,
        watchers=watchers,
    )
    try:
        loop.train()
    finally:
        checkpoints.close()
    assert loop.progress.step == NUM_STEPS
    named = {rank: (one.step, one.ratio) for check in watchers if isinstance(check, StragglerCheck) for rank, one in check.named.items()}
    noted = bench.work_folder.stragglers(context.request.attempt_id) if gang.is_first else []
    return Seen(named, loop.scalars(), [entry for entry in tracker.logged if any("rank" in name for name in entry[1])], noted)


@contextmanager
def loaded_cores() -> Iterator[None]:
    """Have one more process than there are cores compute in this block."""
    command = [sys.executable, "-c", "while True: sum(range(10000))"]
    busy = [subprocess.Popen(command) for _ in range((os.cpu_count() or 1) + 1)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()
