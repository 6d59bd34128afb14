"""A dataset as the evaluation reads it: single columns of all rows, and the numbers of each split's rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.data.dataset_reader import DatasetReader
from training.data.joins import LABEL
from training.data.scratch_arrays import ScratchArrays
from training.data.splits import SPLITS
from training.evaluation.baselines import Splits, columns_needed
from training.evaluation.raw_rows import RawRows
from training.runtime.context import StageContext
from training.spec import PipelineSpec
from training.store import Manifest


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A dataset: single columns of all rows, and the numbers of each split's rows."""

    reader: DatasetReader
    labels: NDArray[np.float64]
    """[n] of all rows"""
    event_us: NDArray[np.int64]
    """[n], microseconds since 1970, UTC."""
    training: NDArray[np.int64]
    validation: NDArray[np.int64]
    test: NDArray[np.int64]
    group: str | None

    def splits(self, spec: PipelineSpec) -> Splits:
        columns = columns_needed(spec, RawRows(self.reader, self.test).names)
        return Splits(
            frame=self.reader,
            columns=columns,
            labels=self.labels,
            event_us=self.event_us,
            training=self.training,
            validation=self.validation,
            test=self.test,
        )


def read_dataset(context: StageContext, dataset: Manifest) -> Dataset:
    """Fetch a dataset's raw rows and splits.

    Raises:
        DataError: an object is missing or altered; `dataset.newer`.
    """
    reader = DatasetReader(context.store, dataset, context.folder / "dataset")
    arrays = ScratchArrays(context.folder)
    training, validation, test = (reader.numbers(name, arrays) for name in SPLITS)
    return Dataset(
        reader=reader,
        labels=arrays.column(reader, LABEL, np.float64),
        event_us=arrays.column(reader, context.spec.data.source.event_time, "datetime64[us]").view(np.int64),
        training=training,
        validation=validation,
        test=test,
        group=dataset.meta["group"],
    )
