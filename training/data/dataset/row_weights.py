"""How much each row counts in the loss: the column `data.weight`, times the weight of the row's class.

A dataset with `data.weight` has a cell more in each row of its shards. Class weights belong to a training, not to a dataset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from training.data.dataset.scratch_arrays import slices_of
from training.data.dataset.shard_format import SHARDED_SPLITS
from training.errors import DataError, shown

if TYPE_CHECKING:
    import pyarrow as pa

    from training.data.dataset.mapped_shards import MappedShards
    from training.data.dataset.scratch_arrays import ColumnBatches, ScratchArrays


def weight_column(
    frame: ColumnBatches, rows: Mapping[str, NDArray[np.int64]], arrays: ScratchArrays, *, column: str
) -> NDArray[np.float32]:
    """Return the weights of all rows, [n] float32.

    Args:
        frame: has the column, of numbers.
        rows: of each split.
        arrays: makes the array.
        column: its name.

    Raises:
        DataError: `weight.value`, a weight is null, NaN, infinite, negative, or too large or too small for 32 bits; `weight.zero`, all
            weights of the training or the validation rows are 0.
    """
    checks = _WeightChecks()
    weights: NDArray[np.float32] = arrays.filled(map(checks.checked, frame.column_batches(column)), frame.num_rows, np.float32)
    checks.finish(column)
    for split in SHARDED_SPLITS:
        numbers = rows[split]
        if not any(weights[numbers[part]].any() for part in slices_of(len(numbers))):
            message = f"column {shown(column)}: the weights of all {len(numbers):,} {split} rows are 0"
            raise DataError("weight.zero", message, hint="check data.weight and data.split")
    return weights


class _WeightChecks:
    """Looks at weights, a batch at a time."""

    def __init__(self) -> None:
        self._num_rows, self._num_wrong, self._first = 0, 0, 0.0

    def checked(self, values: pa.ChunkedArray) -> NDArray[np.float32]:
        """Return the next rows' weights, [n]."""
        exact = values.cast("float64", safe=False).to_numpy()
        with np.errstate(over="ignore", under="ignore"):
            weights: NDArray[np.float32] = exact.astype(np.float32)
        wrong = ~(np.isfinite(weights) & (weights >= 0)) | ((exact > 0) & (weights == 0))
        if wrong.any():
            self._first = self._first if self._num_wrong else float(exact[int(np.argmax(wrong))])
            self._num_wrong += int(wrong.sum())
        self._num_rows += len(weights)
        return weights

    def finish(self, column: str) -> None:
        """Raise what was found in all rows."""
        if self._num_wrong:
            found = "null or NaN" if np.isnan(self._first) else f"{self._first:g}"
            message = f"column {shown(column)}: {self._num_wrong:,} of {self._num_rows:,} weights cannot be used, the first is {found}"
            hint = "weights are numbers >= 0: derive them in data.source.derive, or remove data.weight"
            raise DataError("weight.value", message, hint=hint)


@dataclass(frozen=True, eq=False, slots=True)
class ClassWeights:
    """The weight of each class by its number."""

    by_class: NDArray[np.float32]

    @classmethod
    def of(cls, setting: str | Mapping[str, float] | None, rows: MappedShards, names: Sequence[str] | None) -> ClassWeights | None:
        """Return the weights that `train.class_weight` states; None where there are none.

        Args:
            setting: the key's value.
            rows: the training rows, without class weights.
            names: of the classes; None where the labels are numbers.

        Raises:
            DataError: `class_weight.unknown`, no training row has such a class; `weight.zero`, all training rows have the weight 0.
        """
        if setting is None:
            return None
        totals = class_totals(rows)
        found = [number for number, total in enumerate(totals) if total]
        if isinstance(setting, str):
            weights = np.ones(len(totals))
            # Each class has the same sum of weights, and the sum of all is unchanged.
            weights[found] = totals.sum() / (len(found) * totals[found])
            return cls(weights.astype(np.float32))
        numbers = {name: number for number, name in enumerate(names)} if names else {str(number): number for number in range(len(totals))}
        unknown = [name for name in setting if name not in numbers or numbers[name] >= len(totals)]
        if unknown:
            known = ", ".join(name for name, number in numbers.items() if number in found)
            message = f"train.class_weight: no training row has the class {shown(unknown[0])}"
            raise DataError("class_weight.unknown", message, hint=f"classes: {known}")
        weights = np.ones(len(totals))
        for name, weight in setting.items():
            weights[numbers[name]] = weight
        if not (weights * totals).any():
            raise DataError("weight.zero", "train.class_weight: all training rows have the weight 0", hint="give a class a weight above 0")
        return cls(weights.astype(np.float32))

    def of_labels(self, labels: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the weight of each row's class, [n]; 1 for a class that the training rows lack."""
        numbers = np.minimum(labels.astype(np.int64), len(self.by_class))
        weights: NDArray[np.float32] = np.append(self.by_class, np.float32(1))[numbers]
        return weights


def class_totals(rows: MappedShards) -> NDArray[np.float64]:
    """Return the sum of the weights of each class by its number; without weights, the number of its rows."""
    totals = np.zeros(1)
    for shard, cells in enumerate(rows.cells):
        labels = rows.labels(cells).astype(np.int64)
        found = np.bincount(labels, weights=rows.weights(shard, slice(None)), minlength=len(totals)).astype(np.float64)
        found[: len(totals)] += totals
        totals = found
    return totals
