"""How long a save stops a training.

python benchmarks/checkpoint_stall.py [--mb 200 2000] [--tensors 120 1200] [--rounds 5] [--folder FOLDER]

One process, one thread. In each round, with nothing else under way: one memcpy of the whole state into the writer's own buffer, then `save`
of format 2 and of format 1, then the peers. Printed are medians of the rounds, the ratio to the memcpy of the same round, the first save
beside the later ones, and the longest pause that a loop of small operations sees while the save is written.
"""

from __future__ import annotations

import argparse
import functools
import logging
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from benchmarks.gpu.trainings import context_of
from training.engine.checkpoint.checkpoints import Checkpoints
from training.engine.checkpoint.writer import CheckpointWriter, Interval
from training.large.checkpoint.savers import Savers
from training.large.checkpoint.sharded_writer import ShardedWriter

MB = 10**6
Timed = dict[str, list[float]]


def flat_state(num_bytes: int, num_tensors: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return random bytes, and the tensors of equal size that they are cut into."""
    flat = torch.randint(-(2**62), 2**62, (num_bytes // 8,), dtype=torch.int64).view(torch.float32)
    flat.nan_to_num_(1.0)
    size = flat.numel() // num_tensors // 16 * 16
    state = {f"module/block.{n:04d}.weight": flat[n * size : (n + 1) * size].view(-1, 16) for n in range(num_tensors)}
    return flat[: size * num_tensors], state


def opened(folder: Path, *, is_sharded: bool) -> Checkpoints:
    """Open checkpoints of a new store below `folder`."""
    context = context_of(folder, f"a{time.time_ns()}")
    sharded = functools.partial(ShardedWriter, savers=Savers(0, 1, dist.HashStore()))
    make_writer = sharded if is_sharded else CheckpointWriter
    return Checkpoints(context, interval=Interval(), identity={"world_size": 1, "dataset": "d"}, make_writer=make_writer)


@contextmanager
def scratch(parent: Path | None) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir=parent, prefix="checkpoints-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def seconds(call: Callable[[], object]) -> float:
    started_at = time.perf_counter()
    call()
    return time.perf_counter() - started_at


def longest_pause(until: Callable[[], bool]) -> float:
    """Return the longest time between two turns of a loop of small operations: it needs the GIL as a training does."""
    cells, longest = torch.zeros(64), 0.0
    while not until():
        started_at = time.perf_counter()
        cells.add_(1.0)
        longest = max(longest, time.perf_counter() - started_at)
    return longest


def cells_of(checkpoints: Checkpoints) -> torch.Tensor:
    """Return the buffer that saves are copied to."""
    writer: Any = checkpoints._writer
    buffer = writer._buffers[0] if isinstance(writer, ShardedWriter) else writer._buffer
    found = buffer._cells._cells
    return found if found is not None else buffer._cells.of(0)


def own_round(name: str, checkpoints: Checkpoints, flat: torch.Tensor, state: dict[str, torch.Tensor], step: int, found: Timed) -> None:
    cells, source = cells_of(checkpoints), flat.view(torch.uint8)
    copied = seconds(lambda: cells[: source.numel()].copy_(source))
    stall = seconds(lambda: checkpoints.save(state, {"step": step, "epoch": 0}))
    saves: Any = checkpoints._writer._saves
    pause = longest_pause(lambda: all(save.future.done() for save in saves._in_flight))
    checkpoints.wait()
    for key, value in (("memcpy", copied), ("stall", stall), ("ratio", stall / copied), ("pause", pause)):
        found.setdefault(f"{name}/{key}", []).append(value)


def peers_round(folder: Path, state: dict[str, torch.Tensor], stager: DefaultStager, copied: float, found: Timed) -> None:
    def asynchronous(**options: Any) -> None:
        pending.append(dcp.async_save(state, checkpoint_id=str(folder / "dcp"), **options))

    pending: list[Any] = []
    peers: dict[str, Callable[[], object]] = {
        "torch.save": lambda: torch.save(state, folder / "state.pt"),
        "safetensors": lambda: safetensors.torch.save_file(state, folder / "state.safetensors"),
        "dcp.async_save": lambda: asynchronous(),
        "dcp.async_save, cached stager": lambda: asynchronous(async_stager=stager),
    }
    for name, call in peers.items():
        stall = seconds(call)
        for future in pending:
            (future if isinstance(future, Future) else future.upload_completion).result()
        pending.clear()
        found.setdefault(f"{name}/stall", []).append(stall)
        found.setdefault(f"{name}/ratio", []).append(stall / copied)
        shutil.rmtree(folder / "dcp", ignore_errors=True)
        for path in folder.glob("state.*"):
            path.unlink()


def measure(num_bytes: int, num_tensors: int, rounds: int, parent: Path | None) -> None:
    flat, state = flat_state(num_bytes, num_tensors)
    found: Timed = {}
    stager = DefaultStager(
        StagingOptions(use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False)
    )
    load = os.getloadavg()[0]
    with scratch(parent) as folder:
        own = {"format 2": opened(folder / "two", is_sharded=True), "format 1": opened(folder / "one", is_sharded=False)}
        for number in range(rounds):
            for name, checkpoints in own.items():
                if not number:
                    checkpoints.reserve(state)
                own_round(name, checkpoints, flat, state, number + 1, found)
            peers_round(folder, state, stager, found["format 2/memcpy"][-1], found)
        for checkpoints in own.values():
            checkpoints.close()
    stager.close()
    print(f"\n{num_bytes // MB} MB in {num_tensors} tensors, {rounds} rounds, load {load:.1f} to {os.getloadavg()[0]:.1f}")
    for name in dict.fromkeys(key.partition("/")[0] for key in found):
        stalls, ratios = found[f"{name}/stall"], found[f"{name}/ratio"]
        text = f"stall {statistics.median(stalls) * 1e3:8.1f} ms, {statistics.median(ratios):6.2f} memcpy"
        text += f" ({min(ratios):.2f} to {max(ratios):.2f})"
        if name in own:
            copied, pause = found[f"{name}/memcpy"], found[f"{name}/pause"]
            later = statistics.median(stalls[1:])
            text += f", memcpy {statistics.median(copied) * 1e3:.1f} ms, first save {stalls[0] / later:.2f} later ones"
            text += f", longest pause while it is written {statistics.median(pause) * 1e3:.1f} ms"
        print(f"  {name:32s} {text}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, nargs="+", default=[200, 2000])
    parser.add_argument("--tensors", type=int, nargs="+", default=[120, 1200])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the store and the peers' files are made")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    for mb in arguments.mb:
        for num_tensors in arguments.tensors:
            measure(mb * MB, num_tensors, arguments.rounds, arguments.folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
