"""Labels that a training could not learn from, by what the spec says of it: found when the dataset is made, before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from training.data.dataset.scratch_arrays import slices_of
from training.data.dataset.shard_format import SHARDED_SPLITS
from training.errors import DataError, shown
from training.models.shard_rows import check_counts
from training.spec import PipelineSpec

OF_COUNTS: Final = ("poisson", "log")


def check_learnable(spec: PipelineSpec, label: NDArray[np.float32], rows: Mapping[str, NDArray[np.int64]], names: Sequence[str]) -> None:
    """Refuse labels that the training would refuse, later.

    Args:
        label: [n]
        rows: of each split.
        names: of the classes that training rows may have; empty where the labels are numbers.

    Raises:
        DataError: `label.negative`; `label.single_class`, `poisson` and only zeros to learn from; `class_weight.unknown`.
    """
    objective, training = spec.train.settings.get("objective"), rows["train"]
    if objective in OF_COUNTS and label.min() < 0:
        for split in SHARDED_SPLITS:
            check_counts(label[rows[split]], str(objective))
    largest = max(float(label[training[part]].max()) for part in slices_of(len(training)))
    if objective == "poisson" and largest == 0:
        message = f"all {len(training)} training rows have the label 0: poisson needs one above 0"
        raise DataError("label.single_class", message, hint="lengthen data.source.window, or check data.label")
    weights = spec.train.class_weight
    if isinstance(weights, Mapping):
        known = list(names) or [str(number) for number in range(int(largest) + 1)]
        unknown = [name for name in weights if name not in known[: int(largest) + 1]]
        if unknown:
            message = f"train.class_weight: no training row has the class {shown(unknown[0])}"
            raise DataError("class_weight.unknown", message, hint=f"classes: {', '.join(known[: int(largest) + 1])}")
