"""The rows that families without torch train on: the shards of both splits, with the weights that the training gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from training.data.dataset.mapped_shards import MappedShards
from training.data.dataset.row_weights import ClassWeights
from training.data.dataset.shard_format import SHARDED_SPLITS
from training.data.features.classes import Classes, check_class_numbers
from training.errors import DataError
from training.spec.descriptors.families import FAMILIES

if TYPE_CHECKING:
    from training.models.base import FitContext
    from training.spec import PipelineSpec

LOG: Final = "log"
"""Of `train.settings.objective`: the labels are log(1 + label)."""


class WholeLabels(MappedShards):
    """Rows with their whole labels: shards have the difference from the dataset's `label_center`."""

    def exact_labels(self, cells: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return the labels of rows from their cells, [n]."""
        return super().labels(cells).astype(np.float64) + self.label_center

    def labels(self, cells: NDArray[np.int32]) -> NDArray[np.float32]:
        return self.exact_labels(cells).astype(np.float32)


class LogLabels(WholeLabels):
    """Rows with log(1 + label) as their labels, which the objective `log` learns."""

    def labels(self, cells: NDArray[np.int32]) -> NDArray[np.float32]:
        return np.log1p(self.exact_labels(cells)).astype(np.float32)


def shards_of(context: FitContext) -> dict[str, MappedShards]:
    """Return the rows of each split.

    Raises:
        DataError: `shard.size`, a file is not as long as the manifest says; `class_weight.unknown`, `weight.zero`; `label.negative`.
    """
    folder, meta = context.dataset_path, context.dataset_meta
    weights = class_weights_of(context)
    objective = log_objective(context.spec)
    if objective is not None:
        check_counts(labels_of(context), objective)
    kind = LogLabels if objective == LOG else MappedShards if objective is None else WholeLabels
    return {split: kind(folder, meta, split, class_weights=weights) for split in SHARDED_SPLITS}


def log_objective(spec: PipelineSpec) -> str | None:
    """Return the objective of a training that learns logarithms of whole labels, as its family says; None: it learns differences."""
    family, objective = FAMILIES.get(spec.train.model), spec.train.settings.get("objective")
    return str(objective) if family is not None and objective in family.log_objectives else None


def class_weights_of(context: FitContext) -> ClassWeights | None:
    """Return the class weights of a training; None where `train.class_weight` is not set.

    Raises:
        DataError: `class_weight.unknown`, `weight.zero`.
    """
    setting, meta = context.spec.train.class_weight, context.dataset_meta
    if setting is None:
        return None
    classes = Classes.of(meta)
    rows = MappedShards(context.dataset_path, meta, "train")
    return ClassWeights.of(setting, rows, None if classes is None else classes.learned)


def labels_of(context: FitContext) -> NDArray[np.float32]:
    """Return the labels of all rows, also of those of other processes."""
    found = []
    for split in SHARDED_SPLITS:
        rows = WholeLabels(context.dataset_path, context.dataset_meta, split)
        found += [rows.labels(cells) for cells in rows.cells]
    return np.concatenate(found)


def num_classes(labels: NDArray[np.float32]) -> int:
    """Return how many classes the labels name: whole numbers from 0, of which the training rows may lack some.

    Raises:
        DataError: `label.not_a_class`.
    """
    check_class_numbers(labels)
    return int(labels.max()) + 1


def check_counts(labels: NDArray[np.floating[Any]], objective: str) -> None:
    """Check that no label is negative.

    Raises:
        DataError: `label.negative`.
    """
    if (labels < 0).any():
        message = (
            f"{int((labels < 0).sum())} of {len(labels)} labels are negative, the smallest is {labels.min():g}: "
            f"{objective} needs labels >= 0"
        )
        raise DataError("label.negative", message, hint="leave such rows out by data.source.where, or set another train.settings.objective")
