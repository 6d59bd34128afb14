"""Labels that a training could not learn from, by what the spec says of it: found when the dataset is made, before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from training.data.dataset.scratch_arrays import slices_of
from training.data.dataset.shard_format import SHARDED_SPLITS
from training.data.features.rounding_loss import REFUSED_LOSS, SampledValues, rounding_loss
from training.errors import DataError, shown
from training.models.shard_rows import check_counts, log_objective
from training.spec import PipelineSpec


def check_learnable(spec: PipelineSpec, label: NDArray[np.float64], rows: Mapping[str, NDArray[np.int64]], names: Sequence[str]) -> None:
    """Refuse labels that the training would refuse, later, or could not tell apart.

    Args:
        label: [n]
        rows: of each split.
        names: of the classes that training rows may have; empty where the labels are numbers.

    Raises:
        DataError: `label.negative`; `label.rounding`, 32 bits lose the differences of the logarithms that an objective learns;
            `label.single_class`, `poisson` and only zeros to learn from; `class_weight.unknown`.
    """
    objective, training = log_objective(spec), rows["train"]
    if objective is not None:
        for split in SHARDED_SPLITS if label.min() < 0 else ():
            check_counts(label[rows[split]], objective)
        _check_logarithms(label, training, objective)
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


def _check_logarithms(label: NDArray[np.float64], training: NDArray[np.int64], objective: str) -> None:
    sampled = SampledValues()
    for part in slices_of(len(training)):
        sampled.add(np.log1p(label[training[part]]))
    loss, worst = rounding_loss(sampled.values)
    if loss > REFUSED_LOSS:
        message = (
            f"train.settings.objective {objective} learns logarithms, and 32 bits round those of the labels by {loss:.2g} of their "
            f"deviation, such as that of {np.expm1(worst):.10g}"
        )
        raise DataError("label.rounding", message, hint="remove the objective: the squared error learns differences from the mean label")
