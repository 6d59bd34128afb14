"""Writes a dataset's files in one pass over its rows: the raw frame in parts, and the shards of the transformed rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.data.dataset.frame_writer import FrameWriter
from training.data.dataset.frames import pandas_rows
from training.data.dataset.manifest import DescribedFrame, describe_frame
from training.data.dataset.scratch_arrays import ScratchArrays
from training.data.dataset.shard_format import SHARDED_SPLITS
from training.data.dataset.shard_writer import ShardWriter
from training.data.features.classes import Classes
from training.data.features.transforms import FittedTransforms, Matrix
from training.data.join.engines.interface import Frame, Progress
from training.errors import DataError, shown


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetRows:
    """The rows that a dataset has, and what decides where each goes, column by column."""

    frame: Frame
    rows: Mapping[str, NDArray[np.int64]]
    """Split to the numbers of its rows, ascending."""
    groups: NDArray[np.int32] | None
    """[n] dense numbers."""
    label: NDArray[np.float64]
    """[n]; of classes with names, their numbers."""
    label_center: float
    """What is subtracted from the labels of shards."""
    classes: Classes | None
    weights: NDArray[np.float32] | None
    """[n]; None: each row counts as much as any other."""

    def is_training(self) -> NDArray[np.bool_]:
        """Return [n]: whether a row is in train."""
        training = np.zeros(self.frame.num_rows, dtype=bool)
        training[self.rows["train"]] = True
        return training


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenDataset:
    """Files on local disk, and what the manifest's meta says of them."""

    files: Mapping[str, Path | bytes]
    """By name in the manifest."""
    shards: dict[str, list[int]]
    """Split to the rows of each of its shards."""
    frame: DescribedFrame


def write_dataset(
    folder: Path,
    rows: DatasetRows,
    transforms: FittedTransforms,
    fold_numbers: NDArray[np.int32] | None,
    progress: Progress,
    *,
    takes_missing: bool,
) -> WrittenDataset:
    """Write the files of a dataset.

    Args:
        folder: on local disk.
        fold_numbers: [n] see `FittedTransforms.apply`; None: no feature is made of labels.
        takes_missing: whether the model takes numbers that are missing.

    Raises:
        DataError: `feature.missing`, a number is missing for a model that takes none; as `FittedTransforms.apply`.
    """
    groups, arrays = rows.groups, ScratchArrays(folder)
    writers = {
        split: ShardWriter(
            folder, split, rows.rows[split], groups, num_features=len(transforms.layout), weights=rows.weights, arrays=arrays
        )
        for split in SHARDED_SPLITS
    }
    total, done, first = sum(len(rows.rows[split]) for split in SHARDED_SPLITS), 0, 0
    frame_writer = FrameWriter(folder, rows.frame.schema, rows.rows)
    for batch in rows.frame.batches():
        frame_writer.write(batch)
        part = slice(first, first + batch.num_rows)
        folds = None if fold_numbers is None else fold_numbers[part]
        matrix = transforms.apply(pandas_rows(batch, rows.frame.nullable), serving=False, fold_numbers=folds)
        if not takes_missing:
            _check_numbers(matrix)
        label = (rows.label[part] - rows.label_center).astype(np.float32)
        for shard_writer in writers.values():
            done += shard_writer.write(first, matrix, label, None if groups is None else groups[part])
        first += batch.num_rows
        progress(done, total, "rows sharded")
    frame_writer.finish()
    files: dict[str, Path | bytes] = {"transforms.json": transforms.to_json(), **frame_writer.files}
    files |= {name: file for shard_writer in writers.values() for name, file, _rows in shard_writer.files()}
    shards = {split: [count for _name, _path, count in shard_writer.files()] for split, shard_writer in writers.items()}
    return WrittenDataset(files=files, shards=shards, frame=describe_frame(frame_writer.parts, frame_writer.columns))


def _check_numbers(matrix: Matrix) -> None:
    missing = np.isnan(matrix.floats)
    if missing.any():
        counts = {matrix.layout[place].name: int(num) for place, num in enumerate(missing.sum(axis=0)) if num}
        (name, num), *others = counts.items()
        message = f"feature {shown(name)}: {num} of {len(missing)} rows that were looked at lack a number"
        message += "".join(f"; feature {shown(name)}: {num}" for name, num in others)
        hint = f"the model family takes none that is missing: set prepare.features.{name}.fill: mean, or the transform bucket"
        hint += ", and the same for the others" if others else ""
        raise DataError("feature.missing", message, hint=hint)
