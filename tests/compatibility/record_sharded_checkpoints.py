"""Records the store of a training of two processes, one of which was killed: checkpoints of format 2.

    PYTHONPATH=$PWD:$PWD/plugins python -m tests.compatibility.record_sharded_checkpoints

`sharded_checkpoints.tar.gz` was recorded with commit 385ae15, the last one before this file. It is not to be recorded again while a version
reads format 2: it says what earlier versions wrote.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch

from tests.unit.training.engine.loop_bench import DIGEST, LoopBench
from tests.unit.training.engine.parallel.kill_points import KillPoint, train_once
from tests.unit.training.engine.parallel.ranks import run_mortal_ranks
from training.spec.layout import Layout
from training.store import Store

HERE: Final = Path(__file__).parent
ROOT: Final = Path("/tmp/recorded")
LAYOUT: Final = Layout(shard=2)
WIDTH: Final = 16
IDENTITY: Final = {"world_size": 2, "dataset": DIGEST}
KILLED: Final = KillPoint(rank=1, step=7)


def newest(store: Store, folder: Path) -> tuple[int, dict[str, str]]:
    """Return the step of the newest checkpoint, and the SHA-256 of each whole tensor in it."""
    bench = LoopBench(folder)
    bench.store = store
    checkpoints = bench.checkpoints(bench.context(rank=1), identity=IDENTITY)
    restored = checkpoints.restore(checkpoints.newest_entry())
    checkpoints.close()
    return int(restored.meta["step"]), digests(restored.state)


def digests(state: Mapping[str, torch.Tensor]) -> dict[str, str]:
    return {name: hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest() for name, tensor in sorted(state.items())}


def main() -> None:
    shutil.rmtree(ROOT, ignore_errors=True)
    folder = ROOT / "sharded"
    run_mortal_ranks(train_once, LAYOUT.world_size, folder / "meet", str(folder), LAYOUT, 1, KILLED, WIDTH, False)
    step, tensors = newest(Store(str(folder / "store")), ROOT / "reading")
    text = json.dumps({"step": step, "tensors": tensors}, indent=2, sort_keys=True)
    (HERE / "sharded_checkpoints.json").write_text(text + "\n", encoding="utf-8")
    with tarfile.open(HERE / "sharded_checkpoints.tar.gz", "w:gz") as files:
        files.add(folder / "store", arcname="sharded/store")


if __name__ == "__main__":
    main()
