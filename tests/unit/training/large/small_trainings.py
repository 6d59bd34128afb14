"""Trainings of whole models by one process and by two, as a program: it imports torch once and forks the ranks.

    python -m tests.unit.training.large.small_trainings FOLDER

It prints, by the name of a training, which modules of `training.large` its processes had imported when they ended.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from tests.unit.training.models.family_bench import FamilyBench
from training.engine.parallel.gang import Gang
from training.models.base import load_family

LIMIT: Final = timedelta(minutes=2)
SETTINGS: Final = {"embedding_dim": 2, "hidden": [4]}
TRAININGS: Final[dict[str, tuple[int, dict[str, Any]]]] = {
    "one process": (1, {}),
    "two processes that are not compared": (2, {"replica_check_steps": 0, "straggler_ratio": None}),
    "two processes": (2, {}),
}
"""Name to the number of processes and keys of the section `train`."""


def train(folder: Path, rank: int, world_size: int, keys: dict[str, Any]) -> None:
    """Train the ranker to the end as one of several processes; each has a store and a dataset of its own."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    gang = Gang(0, 1, torch.device("cpu"))
    if world_size > 1:
        store = dist.FileStore(str(folder / "meeting"), world_size)  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=LIMIT)
        gang = Gang(rank, world_size, torch.device("cpu"), dist.new_group(backend="gloo", timeout=LIMIT))
    context = FamilyBench(folder / str(rank), "ranking").fit_context("ranker", epochs=1, batch_size=24, settings=SETTINGS, **keys)
    load_family("ranker").fit(dataclasses.replace(context, gang=gang))
    context.checkpoints.close()
    (folder / f"{rank}.json").write_text(json.dumps([name for name in sys.modules if name.startswith("training.large")]))


def imported(folder: Path, world_size: int, keys: dict[str, Any]) -> list[str]:
    """Return what the processes of a training have imported of `training.large`."""
    folder.mkdir()
    children = []
    for rank in range(world_size):
        child = os.fork()
        if child == 0:
            try:
                train(folder, rank, world_size, keys)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    for child in children:
        _, status = os.waitpid(child, 0)
        assert status == 0
    return sorted({name for rank in range(world_size) for name in json.loads((folder / f"{rank}.json").read_text())})


if __name__ == "__main__":
    sys.stdout.write(json.dumps({name: imported(Path(sys.argv[1]) / name, *training) for name, training in TRAININGS.items()}))
