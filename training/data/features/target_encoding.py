"""The transform `target_encode`: the mean label of a value's training rows, smoothed towards the mean of all.

    cell = (sum + smoothing * prior) / (count + smoothing)

`sum` and `count` are those of the labels of the training rows with the value, `prior` is the mean label of all training rows. A missing
value and one never seen have the prior.

A training row must not see its own label. The training rows are divided into folds by a hash of their key, or of their group, and the
cell of a training row is made of the rows of the other folds alone: a value with one row has the prior there, whatever its label is.
Rows of other splits, and those that a served model scores, have the cell made of all training rows. Only that one is in
`transforms.json`.

Sums are exact within a fold and added over folds in the order of their numbers, so that no order of rows changes a bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from training.contracts import JsonObject
from training.data.dataset.shard_format import CellType
from training.data.exact.group_sums import GroupSums
from training.data.exact.sums import ExactSum
from training.data.features.encoders import Category, Encoder, EncoderSettings
from training.data.features.fitting import DEFAULT_MAX_CATEGORIES, check_known
from training.data.features.vocabulary import ValueNumbers
from training.data.split.hashing import row_hashes
from training.errors import DataError, shown

if TYPE_CHECKING:
    from training.data.dataset.scratch_arrays import ColumnBatches, ScratchArrays

DEFAULT_SMOOTHING: Final = 10.0
"""Rows."""
DEFAULT_FOLDS: Final = 5
NOT_TRAINING: Final = -1
"""Number of a row that is not a training row."""
FOLD_SEED: Final = -1
"""No `data.split.seed`: a row's fold says nothing of its split."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TargetRows:
    """What is known of the training rows beside their columns, in their order."""

    label: NDArray[np.float64]
    """[n]"""
    label_center: float = 0.0
    """Of the dataset: cells are means of the differences from it."""
    numbers: NDArray[np.int32]
    """[n], of `fold_numbers`: the fold is the rest of the division by the number of folds."""


def fold_numbers(key: Sequence[pa.ChunkedArray], training: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Return a number for each row, [n]: a hash from 0 for training rows, `NOT_TRAINING` for others.

    Args:
        key: columns of the row's key, or of its group, each [n].
        training: [n].
    """
    of_training = pa.array(training)
    found = np.full(len(training), NOT_TRAINING, dtype=np.int32)
    found[training] = row_hashes([column.filter(of_training) for column in key], FOLD_SEED) >> np.uint64(33)
    return found


def frame_fold_numbers(frame: ColumnBatches, key: Sequence[str], training: NDArray[np.bool_], arrays: ScratchArrays) -> NDArray[np.int32]:
    """Return `fold_numbers` of a frame's rows, [n], read some rows at a time.

    Args:
        key: names of the columns.
        arrays: makes the array.
    """

    def numbers() -> Iterator[NDArray[np.int32]]:
        first = 0
        for columns in zip(*(frame.column_batches(name) for name in key), strict=True):
            stop = first + len(columns[0])
            yield fold_numbers(columns, training[first:stop])
            first = stop

    return arrays.filled(numbers(), frame.num_rows, np.int32)


class TargetEncode:
    """One float cell."""

    kind: ClassVar[str] = "target_encode"
    dtype: ClassVar[CellType] = "float32"
    cardinality: ClassVar[int] = 0

    def __init__(self, *, values: list[Any], cells: list[float], prior: float, by_fold: NDArray[np.float32] | None = None) -> None:
        """Take what `TargetFit` made.

        Args:
            values: by frequency, as `category` has them.
            cells: of each value, made of all training rows.
            prior: cell of a missing value and of one never seen.
            by_fold: [folds, 1 + values], made of the rows of the other folds; None: this was read from a file, which has none.
        """
        if len(values) != len(cells):
            raise ValueError(f"{len(values)} values and {len(cells)} cells")
        self._ids = Category(values=values)
        self._values, self._listed, self._prior = values, cells, prior
        self._cells = np.array([prior, *cells], dtype=np.float32)
        self._by_fold = by_fold

    def encode(self, column: pd.Series[Any], name: str) -> NDArray[np.float32]:
        cells: NDArray[np.float32] = self._cells[self._ids.encode(column, name)]
        return cells

    def encode_training(self, column: pd.Series[Any], name: str, numbers: NDArray[np.int32]) -> NDArray[np.float32]:
        """Return [n]: the cells of training rows made without the rows of their fold, those of other rows as `encode`.

        Args:
            numbers: [n], of `fold_numbers`.

        Raises:
            ValueError: this was read from a file.
        """
        if self._by_fold is None:
            raise ValueError(f"feature {name}: only what was fitted in this process has cells by fold")
        ids = self._ids.encode(column, name)
        return np.where(numbers == NOT_TRAINING, self._cells[ids], self._by_fold[numbers % len(self._by_fold), ids])

    def parameters(self) -> JsonObject:
        return {"values": self._values, "cells": list(self._listed), "prior": self._prior}


class TargetFit:
    """`target_encode`: raises `data.nonfinite` (a label), `cardinality`, `transform.precision`, `data.all_missing`."""

    def __init__(self, settings: EncoderSettings, target: TargetRows, name: str) -> None:
        self._smoothing, self._num_folds = settings.smoothing or DEFAULT_SMOOTHING, settings.folds or DEFAULT_FOLDS
        self._target, self._name = target, name
        self._values = ValueNumbers(name, settings.max_categories or DEFAULT_MAX_CATEGORIES)
        self._sums = GroupSums(0)
        self._labels = ExactSum()

    def add(self, column: pd.Series[Any]) -> None:
        rows = slice(self._values.num_rows, self._values.num_rows + len(column))
        label = self._target.label[rows] - self._target.label_center
        self._labels.add(label)
        numbers = self._values.add(column)
        if self._values.is_above_limit:
            return
        # A missing value is no value.
        known = numbers >= 0
        self._sums.grow(len(self._values.counts) * self._num_folds)
        self._sums.add(numbers[known] * self._num_folds + self._target.numbers[rows][known] % self._num_folds, label[known])

    def cells(self) -> list[tuple[str, Encoder]]:
        self._values.check()
        check_known(self._name, int(self._values.counts.sum()), self._values.num_rows)
        prior = self._labels.mean
        if not np.isfinite(prior):
            message = f"feature {shown(self._name)}: labels of the training rows are infinite, so they have no mean"
            raise DataError("data.nonfinite", message)
        order = self._values.by_frequency()
        counts = self._sums.counts.reshape(-1, self._num_folds)[order]
        sums = self._sums.sums().reshape(-1, self._num_folds)[order]

        def cells_of(folds: Sequence[int]) -> NDArray[np.float64]:
            total, count = np.zeros(len(sums)), np.zeros(len(sums))
            for fold in folds:
                total += sums[:, fold]
                count += counts[:, fold]
            cells: NDArray[np.float64] = (total + self._smoothing * prior) / (count + self._smoothing)
            cells[count == 0] = prior
            return cells

        everything = range(self._num_folds)
        by_fold = [np.append(prior, cells_of([other for other in everything if other != fold])) for fold in everything]
        found = TargetEncode(
            values=self._values.listed(order),
            cells=cells_of(everything).tolist(),
            prior=prior,
            by_fold=np.stack(by_fold).astype(np.float32),
        )
        return [(self._name, found)]
