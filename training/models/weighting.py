"""The class weights of a training, from its spec and its training rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from training.data.classes import Classes
from training.data.mapped_shards import MappedShards
from training.data.row_weights import ClassWeights

if TYPE_CHECKING:
    from training.models.base import FitContext


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
