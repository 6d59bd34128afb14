"""The train stage over a store that notes each object it hands out, as a program for torchrun.

    torchrun --nproc-per-node=2 -m tests.distributed.counted_gets REQUEST_URI

Each line of the files in $GETS_FOLDER is an object that this process has read. With $KILL_IN_GET, the process that reads an object kills
itself in the middle of it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

from training.runtime.runner import main
from training.stages.train import work
from training.store.bucket import Bucket

read = Bucket.stream


def stream(self: Bucket, key: str) -> Iterator[bytes]:
    with (Path(os.environ["GETS_FOLDER"]) / str(os.getpid())).open("a", encoding="utf-8") as file:
        file.write(f"{key}\n")
    for chunk in read(self, key):
        yield chunk
        if "KILL_IN_GET" in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    Bucket.stream = stream  # type: ignore[method-assign]
    main(work, polls_stop=True)
