"""Whole trainings by the product's own loop: shards, store, checkpoints, tracker and loop, as a stage makes them, without the stage."""

from __future__ import annotations

import functools
import hashlib
import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from training.contracts import RunIdentity, StageRequest
from training.data.dataset.loader import Batch, Loader, ShardSet
from training.data.dataset.shard_format import CELL_BYTES, SHARDED_SPLITS, FeatureEntry, ShardMeta, shard_names
from training.engine.checkpoint.checkpoints import Checkpoints
from training.engine.checkpoint.writer import Interval
from training.engine.loop import Loop, Parts
from training.engine.optim import Schedule
from training.engine.optimizers import OptimizerSettings
from training.engine.parallel.gang import Gang
from training.engine.parallel.strategy import SumLoss
from training.engine.tracking.tracker import Tracker
from training.models.strategy_choice import strategy_for
from training.runtime.context import StageContext, StopFlag
from training.store import Store
from training.store.leases import Lease

DIGEST: Final = "ab" * 32


class EnoughError(Exception):
    """Raised from `on_step` where what was to be measured is measured: it ends the loop without a last save."""


@dataclass(kw_only=True)
class WatchedContext(StageContext):
    """Calls `on_step` with the number of steps after each of them."""

    on_step: Callable[[int], None] = lambda _: None

    def progress(self, done: int, total: int, unit: str, **more: Any) -> None:
        super().progress(done, total, unit, **more)
        if unit == "steps":
            self.on_step(done)


class TimedLoader(Loader):
    """Notes how long a training waited for its batches."""

    wait_seconds = 0.0

    def batches(self, epoch: int, start_step: int = 0) -> Generator[Batch]:
        found = super().batches(epoch, start_step)
        while True:
            started_at = time.perf_counter()
            batch = next(found, None)
            self.wait_seconds += time.perf_counter() - started_at
            if batch is None:
                return
            yield batch


def write_rows(folder: Path, features: list[FeatureEntry], cells: dict[str, NDArray[np.int32]]) -> ShardMeta:
    """Write a shard for each split below `folder`; return the dataset's meta.

    Args:
        features: of the model.
        cells: by split, [rows, features + 1]: the features and the label.
    """
    meta: ShardMeta = {
        "layout": {"features": features, "row_bytes": CELL_BYTES * (len(features) + 1)},
        "shards": {split: [len(cells[split])] for split in SHARDED_SPLITS},
        "group": None,
    }
    for split in SHARDED_SPLITS:
        path = folder / shard_names(meta, split)[0]
        path.parent.mkdir(parents=True, exist_ok=True)
        cells[split].tofile(path)
    return meta


def write_tokens(folder: Path, tokens: dict[str, NDArray[np.int32]], vocabulary: int) -> ShardMeta:
    """Write rows of tokens, by split [rows, length], with the label 0."""
    length = tokens["train"].shape[1]
    features: list[FeatureEntry] = [{"name": f"t{place:04d}", "dtype": "int32", "cardinality": vocabulary} for place in range(length)]
    return write_rows(folder, features, {split: np.pad(rows, ((0, 0), (0, 1))) for split, rows in tokens.items()})


def context_of(folder: Path, attempt_id: str) -> WatchedContext:
    """Return a new attempt's context in the store below `folder`; it takes the lease from the attempt before."""
    store = Store(str(folder / "store"))
    work_folder = store.work_folder("p", "train", DIGEST)
    request = StageRequest(
        pipeline="p",
        stage="train",
        work_id=DIGEST,
        attempt_id=attempt_id,
        store_uri=store.root_uri,
        spec_uri="",
        as_of=datetime(2026, 1, 1, tzinfo=UTC),
        inputs={},
        parameters={"device": "cuda"} if torch.cuda.is_available() else {},
        run=RunIdentity(dag_id="p", run_id="r", task_id="train"),
    )
    lease = Lease.acquire(work_folder, owner="one", attempt_id=attempt_id)
    spec: Any = SimpleNamespace(owner="benchmarks", timezone="UTC")
    return WatchedContext(store=store, request=request, spec=spec, folder=folder, stop=StopFlag(), rank=0, lease=lease)


@dataclass(kw_only=True)
class Training:
    """A training of a dataset, which may have several attempts."""

    folder: Path
    meta: ShardMeta
    gang: Gang
    batch_size: int
    precision: str = "bf16"
    epochs: int = 1
    every_steps: int | None = None
    """How often a checkpoint is saved; None: at the end of an epoch alone."""
    learning_rate: float = 1e-3

    @contextmanager
    def attempt(self, module: nn.Module, loss: SumLoss, *, attempt_id: str = "a1") -> Iterator[Loop]:
        """Return a loop that is ready to train; afterwards its threads are ended."""
        # Nothing answers there: points go to the tracker's journal in the store.
        os.environ |= {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
        context = context_of(self.folder, attempt_id)
        identity: Any = {"world_size": 1, "dataset": DIGEST}
        checkpoints = Checkpoints(context, interval=Interval(steps=self.every_steps), identity=identity)
        tracker = Tracker(context, tags={}, parameters={})
        try:
            yield Loop(
                Parts(
                    module=module,
                    loss=loss,
                    loader=self._loader("train"),
                    validation=self._loader("validation"),
                    strategy=strategy_for(self.gang, precision=self.precision),
                    checkpoints=checkpoints,
                    tracker=tracker,
                    stop=context.stop,
                    progress=context.progress,
                    seed=3,
                    epochs=self.epochs,
                    schedule=functools.partial(_schedule, self.learning_rate),
                    optimizer=OptimizerSettings(weight_decay=0.01),
                    early_stopping=None,
                )
            )
        finally:
            checkpoints.close()
            tracker.close()

    def _loader(self, split: str) -> TimedLoader:
        shards = ShardSet(self.folder, self.meta, split)
        return TimedLoader(shards, dataset_digest=DIGEST, seed=3, batch_size=self.batch_size, shuffle=split == "train")


def _schedule(learning_rate: float, total_steps: int) -> Schedule:
    return Schedule(learning_rate=learning_rate, total_steps=total_steps)


def digest_of(module: nn.Module) -> str:
    """Return a SHA-256 of a module's weights."""
    found = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        found.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()
