"""A program for torchrun whose ranks write what they were started with, and end as they are asked to.

    torchrun --nproc-per-node=2 -m tests.distributed.shown_rank FOLDER [HOW]

`HOW` of rank 1: `raise`, `exit` (with 4), `kill` (SIGKILL), `wait` (all ranks wait for a signal).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path

import numpy as np
import torch


def shown() -> dict[str, object]:
    return {
        "environment": dict(os.environ),
        "arguments": sys.argv,
        "name": __name__,
        "module": __spec__.name if __spec__ else None,
        "main": sys.modules["__main__"].__spec__.name if sys.modules["__main__"].__spec__ else None,
        "is_session": os.getsid(0) == os.getpid(),
        "parent": os.getppid(),
        "pid": os.getpid(),
        "comm": Path("/proc/self/comm").read_text().strip(),
        "signals": [str(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)],
        "threads": [thread.name for thread in threading.enumerate()],
        "descriptors": sorted(str(link.readlink()).split(":")[0] for link in Path("/proc/self/fd").iterdir() if link.is_symlink()),
        "random": np.random.rand(),
        "product": torch.ones(300, 300).mm(torch.ones(300, 300)).sum().item(),
        "path": sys.path,
    }


def main() -> None:
    rank, how = os.environ["RANK"], sys.argv[2] if len(sys.argv) > 2 else ""
    path = Path(sys.argv[1]) / f"{rank}.json"
    path.with_suffix(".part").write_text(json.dumps(shown()), encoding="utf-8")
    path.with_suffix(".part").rename(path)
    print(f"rank {rank} writes")  # noqa: T201 - to standard output, as a stage's log
    if how == "wait":
        signal.pause()
    if rank != "1":
        return
    if how == "raise":
        raise ValueError("rank 1 raises")
    if how == "exit":
        sys.exit(4)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
