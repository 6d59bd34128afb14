"""Small datasets and a fit context for the model families: numbers by integer arithmetic, the same on every machine."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.shard_files import write_shards
from tests.unit.training.engine.loop_bench import DIGEST, LoopBench, RecordingTracker
from training.data.dataset.shard_writer import describe_layout
from training.data.features.transforms import LayoutEntry, Matrix
from training.engine.checkpoint.checkpoints import Checkpoints
from training.engine.parallel.gang import Gang
from training.engine.parallel.single_process import Alone
from training.models.base import FitContext
from training.runtime.context import StageContext
from training.runtime.provenance import CHECKOUT
from training.spec import PipelineSpec, parse_spec
from training.spec.descriptors.families import FAMILIES

FLOATS = ("price", "rating")
CARDINALITIES = {"user_id": 7, "item_id": 11, "position": 5}
LAYOUT = (
    *(LayoutEntry(name=name, dtype="float32", cardinality=0) for name in FLOATS),
    *(LayoutEntry(name=name, dtype="int32", cardinality=cardinality) for name, cardinality in CARDINALITIES.items()),
)
GROUP_SIZES = (4, 5, 3)
NUM_GROUPS = {"train": 60, "validation": 20}


def columns(num_rows: int, offset: int) -> dict[str, Any]:
    """Return a split's features, and what its labels are made from."""
    number = np.arange(num_rows) + offset
    ids = {
        name: ((number * (3 + 2 * place) + number // 7) % size).astype(np.int32) for place, (name, size) in enumerate(CARDINALITIES.items())
    }
    price = ((number * 37) % 101 / 50 - 1).astype(np.float32)
    rating = ((number * 53) % 97 / 48 - 1).astype(np.float32)
    signal = price * 2 - rating + (ids["item_id"] % 3) - 1 - ids["position"] * 0.2 + ((number * 29) % 13 - 6) / 10
    return {**ids, "price": price, "rating": rating, "signal": signal}


def labels(task: str, signal: Any) -> Any:
    """Return the labels that a task learns."""
    if task == "regression":
        return signal.astype(np.float32)
    if task == "multiclass":
        return np.digitize(signal, [-0.8, 0.8]).astype(np.float32)
    return (signal > 0.6).astype(np.float32)


def write_dataset(folder: Path, task: str) -> dict[str, Any]:
    """Write both splits below `folder`; return the dataset's meta. Rankings have groups of 3 to 5 rows."""
    shards = {}
    layout: dict[str, Any] = {}
    for offset, (split, num_groups) in enumerate(NUM_GROUPS.items()):
        sizes = list(itertools.islice(itertools.cycle(GROUP_SIZES), num_groups))
        num_rows = sum(sizes)
        values = columns(num_rows, 10_000 * offset)
        cells = np.stack([*(values[name].view(np.int32) for name in FLOATS), *(values[name] for name in CARDINALITIES)], axis=1)
        matrix = Matrix(cells=np.ascontiguousarray(cells), layout=LAYOUT)
        groups = np.repeat(np.arange(num_groups, dtype=np.int32), sizes) if task == "ranking" else None
        layout = describe_layout(matrix.layout, has_group=groups is not None)
        order = np.arange(num_rows)
        written = write_shards(folder, split, matrix, labels(task, values["signal"]), groups, order, shard_bytes=100 * layout["row_bytes"])
        shards[split] = [rows for _name, _path, rows in written]
    return {"layout": layout, "group": "search_id" if task == "ranking" else None, "shards": shards}


def spec_of(model: str, task: str, **train: Any) -> PipelineSpec:
    """Return a shipped pipeline's spec with other keys of `train` and another task."""
    file = "search_ranking" if model == "ranker" else "flight_delay"
    spec = parse_spec((CHECKOUT / f"dags/pipelines/{file}.yaml").read_bytes())
    evaluate = spec.evaluate.model_copy(update={"task": task})
    return spec.model_copy(update={"train": spec.train.model_copy(update={"model": model, **train}), "evaluate": evaluate})


class FamilyBench(LoopBench):
    """A store, a dataset of a task, and as many fits of a family as a test wants."""

    def __init__(self, folder: Path, task: str) -> None:
        super().__init__(folder / "loop")
        self.dataset_path = folder / "dataset"
        self.task = task
        self.meta = write_dataset(self.dataset_path, task)
        self.tracker: Any = RecordingTracker()

    def fit_context(
        self, model: str, *, every_seconds: float = 1e9, every_steps: int | None = None, judge: Any = None, **train: Any
    ) -> FitContext:
        """Return a new attempt's context; `train` are keys of the spec's section."""
        stage: StageContext = self.context()
        facts = FAMILIES.get(model)
        assert facts is not None
        checkpoints: Checkpoints = self.checkpoints(stage, every_seconds=every_seconds, every_steps=every_steps)
        return FitContext(
            spec=spec_of(model, self.task, **train),
            dataset_path=self.dataset_path,
            dataset_meta=self.meta,
            dataset_digest=DIGEST,
            gang=Gang(0, 1, torch.device("cpu")) if facts.uses_torch else Alone(),
            checkpoints=checkpoints,
            tracker=self.tracker,
            stop=stage.stop,
            progress=stage.progress,
            note_straggler=functools.partial(self.work_folder.write_straggler, stage.request.attempt_id),
            judge=judge,
        )
