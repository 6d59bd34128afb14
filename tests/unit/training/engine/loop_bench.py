"""A training small enough for a unit test: real shards, store, checkpoints and loop; 48 rows, two columns, 4 steps an epoch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from tests.shard_files import write_shards
from training.contracts import RunIdentity, StageRequest
from training.data.dataset.loader import Batch, Loader, ShardSet
from training.data.dataset.shard_writer import describe_layout
from training.data.features.transforms import LayoutEntry, Matrix
from training.engine.checkpoint.checkpoints import Checkpoints
from training.engine.checkpoint.writer import Interval
from training.engine.loop import Loop, Parts
from training.engine.optim import Schedule
from training.engine.optimizers import OptimizerSettings
from training.engine.parallel.gang import Gang
from training.engine.tracking.tracker import Tracker
from training.models.strategy_choice import strategy_for
from training.runtime.context import StageContext, StopFlag
from training.store import Store, WorkFolder
from training.store.leases import Lease

DIGEST = "ab" * 32
WORK_ID = "f" * 64
LAYOUT = (LayoutEntry(name="x", dtype="float32", cardinality=0), LayoutEntry(name="row", dtype="int32", cardinality=100))
NUM_ROWS = {"train": 48, "validation": 16}
BATCH_SIZE = 12
STEPS_PER_EPOCH = 4
SCHEDULE = ("learning_rate", "kind", "warmup_steps", "warmup_share")
"""Fields of `Schedule` that a test may change."""


class RecordingTracker(Tracker):
    """Keeps what it is given; no thread, no server."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []

    def log(self, step: int, **metrics: float) -> None:
        self.logged.append((step, metrics))


class RecordingContext(StageContext):
    """Keeps the loss of every step."""

    def progress(self, done: int, total: int, unit: str, **more: Any) -> None:
        self.__dict__.setdefault("reported", []).append({"done": done, "total": total, "unit": unit, **more})
        super().progress(done, total, unit, **more)


class Line(nn.Module):
    """One weight and one bias."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(1, 1)
        nn.init.constant_(self.line.weight, 0.5)
        nn.init.constant_(self.line.bias, -0.25)

    def forward(self, batch: Batch) -> torch.Tensor:
        output: torch.Tensor = self.line(batch["features_float"]).squeeze(1)
        return output


class Noisy(Line):
    """A line behind dropout: its loss depends on each step's random numbers."""

    def forward(self, batch: Batch) -> torch.Tensor:
        return nn.functional.dropout(super().forward(batch), p=0.5, training=self.training)


class Normalized(Line):
    """A line behind a batch norm: a module with buffers, which the forward pass changes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(1)

    def forward(self, batch: Batch) -> torch.Tensor:
        return super().forward({**batch, "features_float": self.norm(batch["features_float"])})


def squares(module: nn.Module, batch: Batch) -> torch.Tensor:
    """Return the summed squared error."""
    return ((module(batch) - batch["label"]) ** 2).sum()


def scripted_validation(losses: list[float]) -> Callable[[nn.Module, Batch], torch.Tensor]:
    """Return a loss whose mean over the validation rows is `losses[n]` in the nth validation."""
    rows = NUM_ROWS["validation"]
    batches_per_validation = -(-rows // BATCH_SIZE)
    calls: list[int] = []

    def loss(module: nn.Module, batch: Batch) -> torch.Tensor:
        if module.training:
            return squares(module, batch)
        value = losses[len(calls) // batches_per_validation]
        calls.append(1)
        return torch.tensor(value * len(batch["label"]))

    return loss


def write_rows(folder: Path, rows: Mapping[str, int] = NUM_ROWS) -> dict[str, Any]:
    """Write the shards of both splits below `folder`; return the dataset's meta."""
    shards = {}
    for split, num_rows in rows.items():
        numbers = np.arange(num_rows)
        cells = np.empty((num_rows, 2), dtype=np.int32)
        cells[:, 0] = (((numbers * 7) % 11 - 5) / 4).astype(np.float32).view(np.int32)
        cells[:, 1] = numbers
        matrix = Matrix(cells=cells, layout=LAYOUT)
        layout = describe_layout(matrix.layout, has_group=False)
        label = ((numbers * 5) % 3 - 1).astype(np.float32)
        written = write_shards(folder, split, matrix, label, None, numbers, shard_bytes=20 * layout["row_bytes"])
        shards[split] = [rows for _name, _path, rows in written]
    return {"layout": layout, "group": None, "shards": shards}


def schedule_of(changes: dict[str, Any], total_steps: int) -> Schedule:
    return Schedule(**{"learning_rate": 0.1, "total_steps": total_steps, **changes})


class LoopBench:
    """A store, the shards, and as many attempts of one training as a test wants."""

    def __init__(self, folder: Path, rows: Mapping[str, int] = NUM_ROWS) -> None:
        self.folder = folder
        self.meta = write_rows(folder, rows)
        self.store = Store(str(folder / "store"))
        self.num_attempts = 0

    @property
    def work_folder(self) -> WorkFolder:
        return self.store.work_folder("p", "train", WORK_ID)

    @property
    def saved(self) -> list[dict[str, Any]]:
        """What the journal says of each committed checkpoint, oldest first."""
        return [entry.value["payload"] for entry in self.work_folder.chain().history() if entry.value["kind"] == "checkpoint"]

    @property
    def named(self) -> dict[str, str]:
        """Name of each checkpoint that the run's refs lead to, and its URI."""
        names = self.store.bucket.folders("runs/p/r/checkpoints")
        heads = {name: self.store.run_ref("p", "r", f"checkpoints/{name}").read() for name in names}
        return {name: head.value for name, head in heads.items() if head is not None}

    def context(self, *, rank: int = 0, **parameters: Any) -> RecordingContext:
        """Return a new attempt's context, with the lease that it took from the attempt before."""
        self.num_attempts += 1
        attempt_id = f"a{self.num_attempts}"
        request = StageRequest(
            pipeline="p",
            stage="train",
            work_id=WORK_ID,
            attempt_id=attempt_id,
            store_uri=self.store.root_uri,
            spec_uri="",
            as_of=datetime(2026, 1, 1, tzinfo=UTC),
            inputs={},
            parameters=parameters,
            run=RunIdentity(dag_id="p", run_id="r", task_id="train"),
        )
        lease = Lease.acquire(self.work_folder, owner="one", attempt_id=attempt_id) if rank == 0 else None
        spec: Any = SimpleNamespace(owner="search-relevance", timezone="Europe/Berlin")
        return RecordingContext(store=self.store, request=request, spec=spec, folder=self.folder, stop=StopFlag(), rank=rank, lease=lease)

    def checkpoints(self, context: StageContext, *, every_seconds: float = 1e9, **options: Any) -> Checkpoints:
        interval = Interval(seconds=every_seconds, steps=options.pop("every_steps", None))
        if (savers := options.pop("savers", None)) is not None:
            from training.large.checkpoint.sharded_writer import ShardedWriter

            options["make_writer"] = functools.partial(ShardedWriter, savers=savers)
        return Checkpoints(context, interval=interval, **{"identity": {"world_size": 1, "dataset": DIGEST}, **options})

    def loader(self, split: str, *, seed: int = 3, micro_batch_size: int | None = None) -> Loader:
        shards, shuffle = ShardSet(self.folder, self.meta, split), split == "train"
        return Loader(shards, dataset_digest=DIGEST, seed=seed, batch_size=BATCH_SIZE, micro_batch_size=micro_batch_size, shuffle=shuffle)

    def loop(self, module: nn.Module | None = None, *, every_seconds: float = 1e9, rank: int = 0, **changes: Any) -> Loop:
        """Return a new attempt of the training.

        Args:
            changes: fields of `Parts` and `Schedule`, or `weight_decay`, `gang`, `precision`, and `stage`: the attempt's context.
        """
        context = changes.pop("stage", None) or self.context(rank=rank)
        seed = changes.get("seed", 3)
        gang = changes.pop("gang", None) or Gang(rank, 1, torch.device("cpu"))
        parts: dict[str, Any] = {
            "module": module or Line(),
            "loss": squares,
            "loader": self.loader("train", seed=seed),
            "validation": self.loader("validation"),
            "strategy": strategy_for(gang, precision=changes.pop("precision", "fp32")),
            "checkpoints": self.checkpoints(context, every_seconds=every_seconds, every_steps=changes.pop("every_steps", None)),
            "tracker": RecordingTracker(),
            "stop": context.stop,
            "progress": context.progress,
            "seed": seed,
            "epochs": 3,
            "schedule": functools.partial(schedule_of, {key: changes.pop(key) for key in SCHEDULE if key in changes}),
            "optimizer": OptimizerSettings(weight_decay=changes.pop("weight_decay", 0.01)),
            "early_stopping": None,
        }
        return Loop(Parts(**{**parts, **changes}))

    def train(self, module: nn.Module | None = None, **changes: Any) -> Loop:
        """Train to the end and end the checkpoint thread, whatever comes of it."""
        loop = self.loop(module, **changes)
        try:
            loop.train()
        finally:
            loop._parts.checkpoints.close()
        return loop


def reported_by(progress: Any) -> list[dict[str, Any]]:
    """Return all that was reported to the progress of a `RecordingContext`."""
    found: list[dict[str, Any]] = progress.__self__.__dict__["reported"]
    return found


def outcome(loop: Loop) -> dict[str, Any]:
    """Return all that a finished training leaves, as values that compare bit by bit."""
    weights = {name: tensor.tolist() for name, tensor in loop._parts.module.state_dict().items()}
    return {"weights": weights, "best": {name: tensor.tolist() for name, tensor in loop.best.items()}, **loop.progress.to_json()}


@contextmanager
def after_each_step(do: Callable[[], object]) -> Iterator[None]:
    """Call `do` after each step of any optimizer in this block."""
    handle = register_optimizer_step_post_hook(lambda *_: do())
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def recorded_steps() -> Iterator[list[dict[str, float]]]:
    """Record, before each step of any optimizer, its learning rate and the norm of the gradients that it is about to use."""
    seen: list[dict[str, float]] = []

    def record(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        norm = float(torch.linalg.vector_norm(torch.cat([gradient.flatten() for gradient in gradients])))
        seen.append({"learning_rate": float(optimizer.param_groups[0]["lr"]), "grad_norm": norm})

    handle = register_optimizer_step_pre_hook(record)
    try:
        yield seen
    finally:
        handle.remove()


def stop_after(loop: Loop, step: int) -> Loop:
    """Let the training be asked to stop once `step` steps are done."""
    report = loop._parts.progress

    def progress(done: int, total: int, unit: str, **more: Any) -> None:
        report(done, total, unit, **more)
        if done >= step:
            loop._parts.stop.request()

    loop._parts = replace(loop._parts, progress=progress)
    return loop
