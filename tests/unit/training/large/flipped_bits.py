"""Trainings of several processes in which one bit of one replica flips; then the next attempt."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.unit.training.engine.loop_bench import DIGEST, LoopBench, RecordingTracker, after_each_step, squares
from tests.unit.training.large.kill_points import EPOCHS, MIN_BLOCK_BYTES, Net
from training.data.dataset.loader import Loader, ShardSet
from training.engine.parallel.gang import Gang
from training.errors import ReplicasDifferError
from training.large.checkpoint.savers import Savers
from training.large.watchers import watchers_for
from training.models.strategy_choice import strategy_for
from training.spec.layout import Layout
from training.store import Store


@dataclass(frozen=True)
class Flip:
    """One bit of the memory of one rank."""

    rank: int
    after_step: int
    of: str = "module"
    """`module` or `optimizer`."""


@dataclass(frozen=True)
class Attempt:
    """What one rank saw of one attempt."""

    first_step: int
    """The step after which it began."""
    digest: str = ""
    """Of the best weights, where it came to the end."""
    code: str = ""
    message: str = ""
    ranks: tuple[int, ...] = ()


def attempt(gang: Gang, folder: str, layout: Layout, number: int, flip: Flip | None, every_steps: int) -> Attempt:
    """Train until the end or an error, saving after every step."""
    bench = LoopBench(Path(folder) / f"rows-{number}-{gang.rank}")
    bench.store, bench.num_attempts = Store(str(Path(folder) / "store")), number - 1
    context = bench.context(rank=gang.rank)
    strategy = strategy_for(gang, precision="fp32", layout=layout)
    if strategy.is_sharded:
        vars(strategy).update(_min_block_bytes=MIN_BLOCK_BYTES)
    torch.manual_seed(11)
    loader = Loader(
        ShardSet(bench.folder, bench.meta, "train"),
        dataset_digest=DIGEST,
        seed=3,
        batch_size=12,
        rank=strategy.data_rank,
        world_size=strategy.num_data_ranks,
    )
    savers = Savers.of(gang) if strategy.is_sharded else None
    checkpoints = bench.checkpoints(context, every_seconds=0, savers=savers, identity={"world_size": gang.world_size, "dataset": DIGEST})
    loop = bench.loop(
        Net(16),
        stage=context,
        strategy=strategy,
        loader=loader,
        validation=None,
        checkpoints=checkpoints,
        loss=squares,
        epochs=EPOCHS,
        watchers=watchers_for(
            strategy,
            checkpoints=checkpoints,
            tracker=RecordingTracker(),
            note_straggler=lambda *_: None,
            replica_check_steps=every_steps,
            straggler_ratio=None,
        ),
    )
    steps: list[int] = []

    def after_step() -> None:
        # The step is counted after the optimizer has taken it.
        steps.append(loop.progress.step)
        if strategy.saves and not strategy.is_sharded:
            # So that the next save is due: one that is under way would put it off.
            checkpoints.wait()
        if flip is not None and flip.rank == gang.rank and loop.progress.step + 1 == flip.after_step:
            tensors = loop._parameters if flip.of == "module" else loop._optimizer.state()
            flip_lowest_bit(next(tensor for name, tensor in tensors.items() if tensor.numel() > 1))

    try:
        with after_each_step(after_step):
            loop.train()
    except ReplicasDifferError as err:
        ranks = tuple(int(rank) for rank in err.details["ranks"])  # type: ignore[attr-defined]
        return Attempt(steps[0], code=err.code, message=err.message, ranks=ranks)
    finally:
        checkpoints.close()
    weights = strategy.whole(loop.best)
    digest = hashlib.sha256(b"".join(tensor.contiguous().numpy().tobytes() for _, tensor in sorted(weights.items()))).hexdigest()
    return Attempt(steps[0] if steps else loop.progress.step, digest=digest)


def flip_lowest_bit(tensor: torch.Tensor) -> None:
    """Change a number of a tensor by as little as there is."""
    with torch.no_grad():
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        words = local.view(-1).view(torch.int32)
        words[len(words) // 2] ^= 1
