"""Kills of a rank of a training of several processes, at a chosen step or in the middle of a save; then the next attempt."""

from __future__ import annotations

import hashlib
import os
import random
import signal
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from tests.unit.training.engine.loop_bench import DIGEST, WORK_ID, LoopBench, after_each_step, squares
from tests.unit.training.engine.parallel.ranks import Ended, run_mortal_ranks, run_ranks
from training.data.dataset.loader import Batch, Loader, ShardSet
from training.engine.parallel.gang import Gang
from training.large.checkpoint.savers import Savers
from training.large.tensor_plan import TensorPlan
from training.models.strategy_choice import strategy_for
from training.spec.layout import Layout
from training.store import Store

EPOCHS, STEPS = 3, 12
MIN_BLOCK_BYTES = 64
PLAN: TensorPlan = {"blocks.0": "column", "blocks.1": "row"}
"""Of `Net`, for layouts that divide its layers."""


@dataclass(frozen=True)
class KillPoint:
    """Which rank is killed, and when."""

    rank: int
    step: int
    """After so many optimizer steps of the attempt, or, in a save, after so many written blocks."""
    is_in_save: bool = False

    def __str__(self) -> str:
        return f"rank {self.rank} {'in a save, block' if self.is_in_save else 'after step'} {self.step}"


class Centered(nn.Module):
    """Takes off the mean of the rows before these: a buffer that the next step depends on."""

    mean: torch.Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        centered = states - self.mean
        if self.training:
            self.mean.lerp_(states.detach().mean(dim=0), 0.2)
        return centered


class Net(nn.Module):
    """A few blocks; `width` sets how large its state is."""

    def __init__(self, width: int, *, has_buffers: bool = False) -> None:
        super().__init__()
        self.centered = Centered(width) if has_buffers else nn.Identity()
        self.first = nn.Linear(1, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.last = nn.Linear(width, 1)

    def forward(self, batch: Batch) -> torch.Tensor:
        states = self.centered(self.first(batch["features_float"]))
        for block in self.blocks:
            states = torch.tanh(block(states))
        output: torch.Tensor = self.last(states).sum(dim=1)
        return output


class FirstStage(nn.Module):
    def __init__(self, net: Net) -> None:
        super().__init__()
        self.first, self.centered, self.block = net.first, net.centered, net.blocks[0]

    def forward(self, batch: Batch) -> torch.Tensor:
        return torch.tanh(self.block(self.centered(self.first(batch["features_float"]))))


class LastStage(nn.Module):
    def __init__(self, net: Net) -> None:
        super().__init__()
        self.block, self.last = net.blocks[1], net.last

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.last(torch.tanh(self.block(states))).sum(dim=1)
        return output


def stages_of(module: nn.Module, num_stages: int) -> list[nn.Module]:
    """Cut `Net` into two stages."""
    assert isinstance(module, Net)
    assert num_stages == 2
    return [FirstStage(module), LastStage(module)]


def train_once(
    gang: Gang, folder: str, layout: Layout, attempt: int, point: KillPoint | None, width: int, has_buffers: bool = False
) -> tuple[str, int]:
    """Train to the end, saving after every step; return the digest of the best weights, and the step from which it resumed."""
    bench = LoopBench(Path(folder) / f"rows-{attempt}-{gang.rank}")
    bench.store, bench.num_attempts = Store(str(Path(folder) / "store")), attempt - 1
    context = bench.context(rank=gang.rank)
    strategy = strategy_for(gang, precision="fp32", layout=layout, tensor_plan=lambda _: PLAN, cut=stages_of)
    if strategy.is_sharded:
        vars(strategy).update(_min_block_bytes=MIN_BLOCK_BYTES, _min_alone_bytes=MIN_BLOCK_BYTES)
    torch.manual_seed(11)
    loader = Loader(
        ShardSet(bench.folder, bench.meta, "train"),
        dataset_digest=DIGEST,
        seed=3,
        batch_size=12,
        micro_batch_size=3 if layout.pipeline > 1 else None,
        rank=strategy.data_rank,
        world_size=strategy.num_data_ranks,
    )
    savers = Savers.of(gang) if strategy.is_sharded else None
    identity = {"world_size": gang.world_size, "dataset": DIGEST}
    # By steps where a test must know which ones are saved: by time, a save waits until the one before is written.
    every_steps = 1 if has_buffers else None
    checkpoints = bench.checkpoints(context, every_seconds=0, every_steps=every_steps, savers=savers, identity=identity)
    loop = bench.loop(
        Net(width, has_buffers=has_buffers),
        stage=context,
        strategy=strategy,
        loader=loader,
        validation=None,
        checkpoints=checkpoints,
        loss=squares,
        epochs=EPOCHS,
    )
    resumed_from: list[int] = []

    def after_step() -> None:
        resumed_from.append(loop.progress.step)
        if is_to_die and not point.is_in_save and len(resumed_from) >= point.step:
            kill_self()

    is_to_die = point is not None and point.rank == gang.rank
    if is_to_die and point.is_in_save:
        kill_in_save(bench.store, point.step)
    try:
        with after_each_step(after_step):
            loop.train()
    finally:
        checkpoints.close()
    weights = strategy.whole(loop.best)
    digest = hashlib.sha256(b"".join(tensor.contiguous().numpy().tobytes() for _, tensor in sorted(weights.items()))).hexdigest()
    return digest, resumed_from[0] if resumed_from else 0


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_in_save(store: Store, num_blocks: int) -> None:
    """Let this process be killed after it has written so many blocks."""
    put = store.objects.put_block
    written: list[int] = []

    def put_and_die(*arguments: object, **options: object) -> object:
        answer = put(*arguments, **options)  # type: ignore[arg-type]
        written.append(1)
        if len(written) >= num_blocks:
            kill_self()
        return answer

    store.objects.put_block = put_and_die  # type: ignore[assignment,method-assign]


def undisturbed(layout: Layout, folder: Path, *, width: int = 16, has_buffers: bool = False) -> str:
    """Return the digest of the weights of a training that nothing disturbs."""
    digest, _ = run_ranks(train_once, layout.world_size, folder / "meet", str(folder), layout, 1, None, width, has_buffers)[0]
    return str(digest)


@dataclass(frozen=True)
class Resumed:
    """What came of a training that was killed and started again."""

    digest: str
    """Of the weights."""
    from_step: int
    """That the second attempt resumed after; 0: from the start."""
    committed_step: int
    """Of the newest checkpoint when the second attempt began; 0: there was none."""


def killed_and_resumed(layout: Layout, folder: Path, point: KillPoint, *, width: int = 16, has_buffers: bool = False) -> Resumed:
    """Kill a training at a point, and train again."""
    first = run_mortal_ranks(train_once, layout.world_size, folder / "meet-1", str(folder), layout, 1, point, width, has_buffers)
    assert isinstance(first[point.rank], Ended), "the point was not reached"
    journal = Store(str(folder / "store")).work_folder("p", "train", WORK_ID).chain().history()
    committed = [int(entry.value["payload"]["step"]) for entry in journal if entry.value["kind"] == "checkpoint"]
    digest, from_step = run_ranks(train_once, layout.world_size, folder / "meet-2", str(folder), layout, 2, None, width, has_buffers)[0]
    return Resumed(digest, from_step, committed[-1] if committed else 0)


def drawn(seed: int, number: int, layout: Layout) -> list[KillPoint]:
    """Return kill points, three of ten inside a save."""
    generator = random.Random(seed)  # noqa: S311 - where to kill, not a secret
    points = []
    for _ in range(number):
        is_in_save = generator.random() < 0.3
        # Of a replicated model the first rank saves alone; each epoch ends with a save, and others are written as time allows.
        rank = 0 if is_in_save and layout.is_replicated else generator.randrange(layout.world_size)
        points.append(KillPoint(rank, generator.randint(1, EPOCHS if is_in_save else STEPS - 1), is_in_save))
    return points
