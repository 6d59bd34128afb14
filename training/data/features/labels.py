"""The labels of a dataset's rows, checked: something can be learned from them in each split."""

from __future__ import annotations

import logging
from typing import Final

import numpy as np
from numpy.typing import NDArray

from training.data.dataset.scratch_arrays import ScratchArrays, slices_of
from training.data.exact.sums import ExactSum
from training.data.features.classes import Classes, check_class_numbers, number_classes
from training.data.features.rounding_loss import SampledValues, rounding_loss
from training.data.join.contract import LABEL
from training.data.split.by_time import check_labels
from training.data.split.division import DividedRows
from training.spec import PipelineSpec

logger = logging.getLogger(__name__)

MAX_CLASSES_SHOWN: Final = 20
"""Names of classes in a line of the log."""
MAX_LABEL_LOSS: Final = 1e-5
"""Of `rounding_loss`, that labels in shards may have as they are."""


def labels_of(spec: PipelineSpec, division: DividedRows, arrays: ScratchArrays) -> tuple[NDArray[np.float64], Classes | None]:
    """Return the label of each row, [n]: numbers unchanged, named classes as their numbers; and the classes, where they have names.

    Raises:
        DataError: `label.not_a_class`, `label.classes`, `label.single_class`, `label.missing_in_split`.
    """
    task, classes = spec.evaluate.task, None
    if spec.data.has_text_label:
        label, classes = _named(spec, division, arrays)
    else:
        label = arrays.column(division.frame, LABEL, np.float64)
        if task in ("binary", "multiclass"):
            check_class_numbers(label, is_binary=task == "binary")
    check_labels(label, division.rows, task=task, names=() if classes is None else classes.names)
    return label, classes


def label_center(label: NDArray[np.float64], training: NDArray[np.int64], *, task: str) -> float:
    """Return what shards subtract from the labels: the mean of the training rows where 32 bits would lose digits, else 0.

    Args:
        label: [n].
        training: numbers of the training rows.
        task: of the spec.
    """
    if task != "regression":
        return 0.0
    sampled, total = SampledValues(), ExactSum()
    for part in slices_of(len(training)):
        values = label[training[part]]
        sampled.add(values)
        total.add(values)
    if rounding_loss(sampled.values)[0] <= MAX_LABEL_LOSS:
        return 0.0
    logger.info("labels are learned as their difference from %.17g, the mean of the training rows: 32 bits would lose digits", total.mean)
    return total.mean


def _named(spec: PipelineSpec, division: DividedRows, arrays: ScratchArrays) -> tuple[NDArray[np.float64], Classes]:
    settings = spec.data.label
    numbers, classes = number_classes(division.frame, division.rows, arrays, column=settings.column, positive=settings.positive)
    logger.info("%d classes: %s", len(classes.names), ", ".join(classes.names[:MAX_CLASSES_SHOWN]))
    for split, names in classes.unseen.items():
        listed = ", ".join(names[:MAX_CLASSES_SHOWN])
        logger.warning(
            "%d classes of the %s rows are not in the rows before them, so no model can know them: %s", len(names), split, listed
        )
    return numbers, classes
