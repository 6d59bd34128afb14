"""What a restore costs beside a verified read, and what a save writes of a state of which a tenth changed.

python benchmarks/checkpoint_restore.py [--mb 200 2000] [--tensors 120 1200] [--rounds 5] [--folder FOLDER]

One process, one thread, the store in a local folder, files in the page cache. The verified read fetches every block of the same checkpoint
and compares its SHA-256, one block after another, and keeps nothing. Medians of rounds in which each reader reads once.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from checkpoint_stall import MB, flat_state, opened, scratch, seconds

from training.engine.checkpoint.checkpoints import Checkpoints
from training.store import Store


def save(checkpoints: Checkpoints, state: dict[str, torch.Tensor], step: int) -> None:
    checkpoints.save(state, {"step": step, "epoch": 0})
    checkpoints.wait()


def object_bytes(store: Store) -> int:
    return sum(entry.size_bytes for entry in store.bucket.list("objects"))


def readers(folder: Path, checkpoints: Checkpoints, store: Store, state: dict[str, torch.Tensor]) -> dict[str, Callable[[], object]]:
    """Return the readers of one checkpoint, which the peers' files hold too."""
    torch.save(state, folder / "state.pt")
    safetensors.torch.save_file(state, folder / "state.safetensors")
    dcp.save(state, checkpoint_id=str(folder / "dcp"))
    entry = checkpoints.newest_entry()
    reader: Any = checkpoints._reader
    blocks = store.manifests.get(reader._uri(entry)).files.values()
    target = {name: torch.zeros_like(tensor) for name, tensor in state.items()}

    def verified() -> None:
        for block in blocks:
            store.objects.get_bytes(block.digest)

    return {
        "verified read": verified,
        "restore_into": lambda: checkpoints.restore_into(entry, target),
        "restore": lambda: checkpoints.restore(entry),
        "torch.load": lambda: torch.load(folder / "state.pt", weights_only=True),
        "safetensors (not verified)": lambda: safetensors.torch.load_file(folder / "state.safetensors"),
        "dcp.load (not verified)": lambda: dcp.load(target, checkpoint_id=str(folder / "dcp")),
    }


def measure(num_bytes: int, num_tensors: int, rounds: int, parent: Path | None) -> None:
    flat, state = flat_state(num_bytes, num_tensors)
    load = os.getloadavg()[0]
    with scratch(parent) as folder:
        checkpoints = opened(folder, is_sharded=True)
        store = Store(str(folder / "store"))
        save(checkpoints, state, 1)
        found: dict[str, list[float]] = {}
        calls = readers(folder, checkpoints, store, state)
        for _ in range(rounds):
            for name, call in calls.items():
                found.setdefault(name, []).append(seconds(call))
        for path in folder.glob("state.*"):
            path.unlink()
        shutil.rmtree(folder / "dcp")
        before = object_bytes(store)
        for name in random.Random(1).sample(sorted(state), num_tensors // 10):  # noqa: S311 - which tensors change
            state[name].add_(1.0)
        save(checkpoints, state, 2)
        written = object_bytes(store) - before
        checkpoints.close()
    changed = flat.numel() * 4 // num_tensors * (num_tensors // 10)
    print(f"\n{num_bytes // MB} MB in {num_tensors} tensors, {rounds} rounds, load {load:.1f} to {os.getloadavg()[0]:.1f}")
    for name, times in found.items():
        ratios = [one / read for one, read in zip(times, found["verified read"], strict=True)]
        print(f"  {name:28s} {statistics.median(times):7.3f} s, {statistics.median(ratios):5.2f} verified reads")
    text = f"{written / MB:.1f} MB written, {written / changed:.3f} of the {changed / MB:.1f} MB of these tensors"
    print(f"  a tenth of the tensors changed: {text}")


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
