"""Two ranks that save a sharded state together while one of them fails in some way, as a program: it imports torch once and forks.

    python -m tests.unit.training.large.checkpoint.sharded_faults FOLDER

Each of `SCENARIOS` has a store of its own below FOLDER. FOLDER/outcome.json has, by scenario, what each rank saw, and its exit status.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from tests.unit.training.large.checkpoint.sharded_ranks import opened, run_ranks
from training.engine.checkpoint.checkpoints import Checkpoints
from training.engine.checkpoint.writer import Interval
from training.engine.parallel.gang import Gang
from training.errors import NightshiftError
from training.large.checkpoint import sharded_writer
from training.large.checkpoint.sharded_writer import ShardedWriter
from training.store.leases import Lease

NUM_RANKS: Final = 2


class Bench:
    """One rank of a training with two tensors in shards, one whole, and one that only this rank has."""

    def __init__(self, folder: Path, gang: Gang, **options: Any) -> None:
        self.folder, self.gang = folder, gang
        self.mesh = init_device_mesh("cpu", (NUM_RANKS,))
        self.checkpoints: Checkpoints = opened(folder, gang, **options)
        assert isinstance(self.checkpoints._writer, ShardedWriter)
        self.writer = self.checkpoints._writer
        self.seen: dict[str, Any] = {}

    def state(self, value: float, *, frozen: float = 1.0, **more: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the state of a step; `frozen` is large enough for blocks of its own."""
        own = self.gang.rank / 4
        shards = {"moving": torch.full((3, 100_000), value + own), "frozen": torch.full((3, 100_000), -frozen - own)}
        return {
            **{name: DTensor.from_local(shard, self.mesh, [Shard(0)], run_check=False) for name, shard in shards.items()},
            "scalar": torch.tensor(value),
            f"stage {self.gang.rank}": torch.full((2,), value),
            **more,
        }

    def save(self, step: int, **changes: Any) -> None:
        self.checkpoints.save(self.state(float(step), **changes), {"step": step, "epoch": 0})

    def try_wait(self) -> str:
        """Wait for the saves; return the code of the error that ends the training, if any."""
        try:
            self.checkpoints.wait()
        except NightshiftError as err:
            return err.code
        return ""

    def lose_peer(self) -> None:
        """Come to collectives, as the loop does, until one breaks, and end."""
        try:
            while True:
                self.gang.wait_for_all()
        except NightshiftError as err:
            self.seen["error"] = err.code
        self.checkpoints.close()


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed_after_its_blocks(bench: Bench) -> None:
    bench.save(1)
    bench.checkpoints.wait()
    if bench.gang.rank == 1:
        put = bench.writer._put
        bench.writer._put = lambda *arguments: (put(*arguments), die())[0]  # type: ignore[method-assign]
    bench.save(2)
    bench.lose_peer()


def killed_before_its_blocks(bench: Bench) -> None:
    bench.save(1)
    bench.checkpoints.wait()
    if bench.gang.rank == 1:
        bench.writer._put = die  # type: ignore[method-assign, assignment]
    bench.save(2)
    bench.lose_peer()


def first_killed_before_the_commit(bench: Bench) -> None:
    bench.save(1)
    bench.checkpoints.wait()
    bench.writer._commits.commit = die  # type: ignore[method-assign, assignment]
    bench.save(2)
    bench.lose_peer()


def first_killed_between_manifest_and_entry(bench: Bench) -> None:
    bench.save(1)
    bench.checkpoints.wait()
    lease = bench.writer._commits._context.lease
    if lease is not None:
        lease.commit = die  # type: ignore[method-assign, assignment]
    bench.save(2)
    bench.lose_peer()


def hangs_in_its_blocks(bench: Bench) -> None:
    bench.save(1)
    bench.checkpoints.wait()
    writer = bench.writer
    if bench.gang.rank == 1:
        writer._commits.objects.put_block = lambda data: threading.Event().wait()  # type: ignore[method-assign, assignment]
    else:
        writer._exchange._savers = replace(writer._savers, silence_seconds=0.5)
    sharded_writer.CLOSE_SECONDS = sharded_writer.HEARD_SECONDS = 0.2  # type: ignore[misc]
    bench.save(2)
    if bench.gang.rank == 0:
        bench.seen["ends"] = bench.try_wait()
        bench.seen["failed"] = writer.saves.num_failed
    bench.gang.wait_for_all()
    bench.checkpoints.close()


def disk_is_full_on_one_rank(bench: Bench) -> None:
    put, objects, failing = bench.writer._commits.objects.put_block, bench.writer._commits.objects, [False]

    def maybe_fail(data: memoryview) -> tuple[str, bool]:
        if failing[0]:
            raise OSError(28, "No space left on device")
        return put(data)

    objects.put_block = maybe_fail  # type: ignore[method-assign]
    counts = []
    for step, is_full in enumerate([False, True, True, False, True, True, True], start=1):
        failing[0] = is_full and bench.gang.rank == 1
        bench.save(step)
        try:
            bench.checkpoints.wait()
        except NightshiftError as err:
            bench.seen["ends"], bench.seen["names the rank"] = err.code, "rank 1 (node " in err.message and "[Errno 28]" in err.message
        counts.append(bench.writer.saves.num_failed)
    bench.seen["counts"] = counts
    bench.checkpoints.close()


def lease_is_lost(bench: Bench) -> None:
    bench.save(1)
    bench.checkpoints.wait()
    if bench.gang.is_first:
        lease = bench.writer._commits._context.lease
        assert lease is not None
        Lease.acquire(lease._work_folder, owner="one", attempt_id="newer")
    bench.save(2)
    bench.seen["ends"] = bench.try_wait()
    bench.checkpoints.close()


def saves_follow_each_other(bench: Bench) -> None:
    opened_gate, put = threading.Event(), bench.writer._commits.objects.put_block

    def held(data: memoryview) -> tuple[str, bool]:
        opened_gate.wait()
        return put(data)

    bench.writer._commits.objects.put_block = held  # type: ignore[method-assign]
    bench.save(1)
    bench.save(2)
    waits, settle = threading.Event(), bench.writer.saves._settle
    bench.writer.saves._settle = lambda save: (waits.set(), settle(save))[1]  # type: ignore[method-assign]
    third = threading.Thread(target=bench.save, args=(3,))
    third.start()
    while third.is_alive() and not waits.wait(0.01):
        pass
    bench.seen["saves begun while the first is held"] = bench.writer._num_saves
    opened_gate.set()
    third.join()
    bench.checkpoints.wait()
    bench.checkpoints.close()


def little_changes(bench: Bench) -> None:
    written = []
    tell = bench.writer._exchange.tell

    def noted(key: str, value: Any) -> None:
        if "/written/" in key:
            written.append(value["bytes"])
        tell(key, value)

    bench.writer._exchange.tell = noted  # type: ignore[method-assign]
    for step, changes in enumerate([{}, {}, {"frozen": 2.0}, {"best": torch.ones(5)}, {}], start=1):
        bench.save(step, **changes)
        bench.checkpoints.wait()
    bench.seen["written"] = written
    bench.checkpoints.close()


def trial(bench: Bench) -> None:
    bench.checkpoints.close()
    checkpoints = opened(bench.folder, bench.gang, by_name=False, every_seconds=0.0 if bench.gang.is_first else 1e9)
    writer = checkpoints._writer
    assert isinstance(writer, ShardedWriter)
    checkpoints.save(bench.state(1.0), {"step": 1, "epoch": 1}, name="epoch_1")
    checkpoints.wait()
    if bench.gang.is_first:
        writer.saves._interval = Interval()
    checkpoints.save(bench.state(2.0), {"step": 2, "epoch": 2}, name="epoch_2")
    checkpoints.wait()
    checkpoints.close()


def ranks_differ(bench: Bench) -> None:
    more = torch.zeros(3 + bench.gang.rank)
    bench.save(1, more=more)
    bench.seen["ends"] = bench.try_wait()
    bench.seen["failed"] = bench.writer.saves.num_failed
    bench.save(2)
    bench.checkpoints.wait()
    bench.checkpoints.close()


SCENARIOS: Final[dict[str, Callable[[Bench], None]]] = {
    scenario.__name__: scenario
    for scenario in (
        killed_after_its_blocks,
        killed_before_its_blocks,
        first_killed_before_the_commit,
        first_killed_between_manifest_and_entry,
        hangs_in_its_blocks,
        disk_is_full_on_one_rank,
        lease_is_lost,
        saves_follow_each_other,
        little_changes,
        trial,
        ranks_differ,
    )
}


def rank_of(folder: Path, name: str) -> Callable[[Gang], None]:
    def work(gang: Gang) -> None:
        bench = Bench(folder / name, gang)
        SCENARIOS[name](bench)
        (folder / name / f"rank-{gang.rank}.json").write_text(json.dumps(bench.seen))
        # As a process that ends: no collective after the work, and threads that hang are left behind.
        sys.stdout.flush()
        os._exit(0)

    return work


def main(folder: Path) -> None:
    outcome = {}
    for name in SCENARIOS:
        statuses = run_ranks(folder / "meetings", NUM_RANKS, rank_of(folder, name))
        paths = [folder / name / f"rank-{rank}.json" for rank in range(NUM_RANKS)]
        outcome[name] = {"statuses": statuses, "ranks": [json.loads(path.read_text()) if path.exists() else None for path in paths]}
    (folder / "outcome.json").write_text(json.dumps(outcome))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
