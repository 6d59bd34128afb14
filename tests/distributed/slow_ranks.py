"""A training of two ranks in which one is slow between steps, as a program for torchrun.

    torchrun --nproc-per-node=2 -m tests.distributed.slow_ranks FOLDER LAST_EPOCH SLOW_SECONDS SLOW...

Each SLOW is `join` (rank 1 comes late), `validation` (rank 1's first one), `upload` (rank 0's first wait for one) or `restore` (reading it,
by rank 0).
It ends after LAST_EPOCH of three. Rank 0 writes FOLDER/outcome.json.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.unit.training.models.family_bench import FamilyBench
from training.data.dataset.loader import Batch, Loader, ShardSet
from training.engine.parallel.gang import Gang
from training.errors import NightshiftError
from training.models.base import FitContext
from training.models.ranker.module import Ranker, RankerModule
from training.store import Store

EPOCHS = 3
SETTINGS = {"embedding_dim": 4, "hidden": (8,), "dropout": 0.2, "loss": "listwise"}


class NormalizedRanker(RankerModule):
    """With buffers, which are of each rank's own rows after a step."""

    def __init__(self, architecture: Mapping[str, Any]) -> None:
        super().__init__(architecture)
        self.norm = nn.BatchNorm1d(2)

    def forward(self, batch: Batch) -> torch.Tensor:
        return super().forward({**batch, "features_float": self.norm(batch["features_float"])})


class SlowFamily(Ranker):
    """Validates slowly once where it is asked to; keeps its module."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds
        self.module = nn.Module()

    def build(self, architecture: Mapping[str, Any]) -> nn.Module:
        super().build(architecture)
        self.module = NormalizedRanker(architecture)
        return self.module

    def loss(self, module: nn.Module, batch: Batch) -> torch.Tensor:
        if not module.training:
            time.sleep(self._seconds)
            self._seconds = 0.0
        return super().loss(module, batch)


def slow_once(function: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    waits = [seconds]

    def slowly(*arguments: Any) -> Any:
        if waits:
            time.sleep(waits.pop())
        return function(*arguments)

    return slowly


def alone(family: SlowFamily, context: FitContext) -> float:
    """Return the validation loss as one rank alone finds it, with the module as it is."""
    shards = ShardSet(context.dataset_path, context.dataset_meta, "validation")
    loader = Loader(shards, dataset_digest=context.dataset_digest, seed=0, batch_size=context.spec.train.batch_size or 0, shuffle=False)
    family.module.eval()
    with torch.no_grad():
        total = sum(float(family.loss(family.module, batch)) for batch in loader.batches(0))
    family.module.train()
    return total / loader.num_units


def main(folder: Path, last_epoch: int, seconds: float, slow: list[str]) -> None:
    rank = int(os.environ["RANK"])
    bench = FamilyBench(folder / f"rank-{rank}", "ranking")
    made = bench.fit_context("ranker", epochs=EPOCHS, batch_size=32, early_stopping=None, settings=SETTINGS)
    made.checkpoints.close()
    if rank == 1 and "join" in slow:
        time.sleep(seconds)
    gang = Gang.join()
    bench.store = Store(str(folder.parent / "store"))
    bench.num_attempts = last_epoch
    stage = bench.context(rank=rank)
    checkpoints: Any = bench.checkpoints(stage)
    if rank == 0 and "upload" in slow:
        checkpoints.wait = slow_once(checkpoints.wait, seconds)
    if rank == 0 and "restore" in slow:
        checkpoints.newest_entry = slow_once(checkpoints.newest_entry, seconds)
    family = SlowFamily(seconds if rank == 1 and "validation" in slow else 0.0)
    expected: list[float] = []

    def judge(epochs: int, loss: float) -> bool:
        expected.append(alone(family, context))
        return epochs == last_epoch

    context = replace(made, gang=gang, progress=stage.progress, checkpoints=checkpoints, stop=stage.stop, judge=judge)
    try:
        result = family.fit(context)
    except NightshiftError as err:
        sys.exit(f"rank {rank}: {err.code}: {err.message}")
    finally:
        checkpoints.close()
    if gang.is_first:
        outcome = {
            "weights": hashlib.sha256(result.weights).hexdigest(),
            "steps": [entry["done"] for entry in stage.__dict__["reported"]],
            "validation": [entry["validation_loss"] for entry in result.history],
            "alone": expected,
        }
        (folder / "outcome.json").write_text(json.dumps(outcome), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:])
