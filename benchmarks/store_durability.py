"""What the fsyncs of a local store cost: python benchmarks/store_durability.py STORE_FOLDER [--rounds 3]

Writes every file of an existing store (one night's, say) into a new one on the same disk, once as the store does and once with fsync
switched off, and prints the number of fsyncs, the seconds in them and the seconds in all.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from training.store import durable_writes
from training.store.bucket import Bucket


class TimedOs:
    """The module `os`, with a stopwatch around fsync, or without fsync."""

    def __init__(self, *, is_on: bool) -> None:
        self._is_on = is_on
        self.num_syncs, self.seconds = 0, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fsync(self, handle: int) -> None:
        if not self._is_on:
            return
        started_at = time.perf_counter()
        os.fsync(handle)
        self.seconds += time.perf_counter() - started_at
        self.num_syncs += 1


def copy(files: list[tuple[str, Path]], folder: Path, timed: TimedOs) -> float:
    """Write the files into a new store below `folder`; return the seconds that it took."""
    target = Path(tempfile.mkdtemp(dir=folder, prefix="durability-"))
    durable_writes.os = timed  # type: ignore[assignment, attr-defined]
    try:
        started_at = time.perf_counter()
        bucket = Bucket(str(target))
        for key, path in files:
            bucket.upload(key, path)
        return time.perf_counter() - started_at
    finally:
        durable_writes.os = os  # type: ignore[attr-defined]
        shutil.rmtree(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=Path, nargs="?", help="folder of a local store")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.store is None:
        print("skipped: name the folder of a store, as .local/store is after a night")
        return
    paths = sorted(
        (path for path in arguments.store.rglob("*") if path.is_file() and "#" not in path.name), key=lambda path: path.stat().st_mtime
    )
    files = [(path.relative_to(arguments.store).as_posix(), path) for path in paths]
    num_bytes = sum(path.stat().st_size for path in paths)
    print(f"{len(files)} files, {num_bytes / 2**20:.1f} MiB")
    for is_on in (True, False):
        timed = [TimedOs(is_on=is_on) for _ in range(arguments.rounds)]
        seconds = [copy(files, arguments.store.resolve().parent, each) for each in timed]
        in_syncs = statistics.median(each.seconds for each in timed)
        total = statistics.median(seconds)
        words = f"{timed[0].num_syncs} fsyncs, {in_syncs:.3f} s in them, {total:.3f} s in all (median)"
        print(f"fsync {'on ' if is_on else 'off'}: {words}")


if __name__ == "__main__":
    main()
