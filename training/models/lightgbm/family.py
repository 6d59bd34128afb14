"""The descriptor of `lightgbm`."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from training.spec.descriptors.families import NEURAL_ONLY, FamilyDescriptor
from training.spec.rules.objectives import LOG_OBJECTIVES, objective_fits
from training.spec.scalar_types import Section

_Share = Annotated[float, Field(gt=0, le=1)]
_Penalty = Annotated[float, Field(ge=0, le=1e6)]


class LightgbmSettings(Section):
    """Of `lightgbm`: LightGBM's parameters by their own names."""

    num_leaves: Annotated[int, Field(ge=2, le=131072)] = 31
    """Largest number of leaves of a tree. Unit: leaves."""
    max_depth: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Absent: limited by `num_leaves` alone. Unit: levels. Example: `8`."""
    min_data_in_leaf: Annotated[int, Field(ge=1, le=10**9)] = 20
    """Least number of rows of a leaf. Unit: rows."""
    feature_fraction: _Share = 1.0
    """Of the features, for each tree."""
    bagging_fraction: _Share = 1.0
    """Of the rows, for each tree."""
    lambda_l1: _Penalty = 0.0
    """L1 penalty on the values of leaves. Unit: none."""
    lambda_l2: _Penalty = 0.0
    """L2 penalty on the values of leaves. Unit: none."""
    min_gain_to_split: _Penalty = 0.0
    """Least reduction of the loss by a split. Unit: loss."""
    max_bin: Annotated[int, Field(ge=2, le=65535)] = 255
    """Bins of a feature's histogram. Unit: bins."""
    categorical: bool = True
    """Whether ids (of `category`, `hash`, `datetime`, …) are split as categories; false: as numbers, as `boosted_trees` does."""
    objective: Literal["quantile", "poisson", "log"] | None = None
    """Of the task regression, as for `boosted_trees`. Absent: the squared error."""
    quantile_alpha: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Of `quantile`: the share of labels that should be below the prediction. Example: `0.9`."""


DESCRIPTOR: Final = FamilyDescriptor(
    settings=LightgbmSettings,
    tasks=("binary", "ranking", "multiclass", "regression"),
    libraries=("lightgbm",),
    distributed=False,
    ignored_keys=(*NEURAL_ONLY, "checkpoint", "from_checkpoint"),
    weighted_tasks=("binary", "multiclass", "regression"),
    uses_gpus=False,
    uses_torch=False,
    log_objectives=LOG_OBJECTIVES,
    rules=(objective_fits,),
    threads=2,
)
