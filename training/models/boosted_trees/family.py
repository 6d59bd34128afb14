"""The descriptor of `boosted_trees`."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from training.spec.descriptors.families import NEURAL_ONLY, FamilyDescriptor
from training.spec.rules.objectives import LOG_OBJECTIVES, objective_fits
from training.spec.scalar_types import Section

_Share = Annotated[float, Field(gt=0, le=1)]
_Penalty = Annotated[float, Field(ge=0, le=1e6)]


class BoostedTreesSettings(Section):
    """Of `boosted_trees`: XGBoost's parameters by their own names, `colsample` for colsample_bytree."""

    max_depth: Annotated[int, Field(ge=1, le=20)] = 6
    """Of a tree. Unit: levels."""
    min_child_weight: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    """Least sum of hessians of a leaf. Unit: sum of hessians."""
    subsample: _Share = 1.0
    """Of the rows, drawn for each tree."""
    colsample: _Share = 1.0
    """Of the features, drawn for each tree."""
    reg_lambda: _Penalty = 1.0
    """L2 penalty on the values of leaves. Unit: none."""
    reg_alpha: _Penalty = 0.0
    """L1 penalty on the values of leaves. Unit: none. Example: `0.1`."""
    gamma: _Penalty = 0.0
    """Least reduction of the loss by a split. Unit: loss."""
    max_bin: Annotated[int, Field(ge=2, le=65536)] = 256
    """Bins of a feature's histogram. Unit: bins."""
    objective: Literal["quantile", "poisson", "log"] | None = None
    """Of the task regression. `quantile`: predicts the quantile `quantile_alpha`. `poisson`: predicts the mean of counts, with a
    logarithmic link; labels must be >= 0. `log`: the squared error of log(1 + label), for labels >= 0. Absent: the squared error."""
    quantile_alpha: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Of `quantile`: the share of labels that should be below the prediction. Example: `0.9`."""


DESCRIPTOR: Final = FamilyDescriptor(
    settings=BoostedTreesSettings,
    tasks=("binary", "ranking", "multiclass", "regression"),
    libraries=("xgboost-cpu",),
    distributed=True,
    ignored_keys=NEURAL_ONLY,
    uses_gpus=True,
    gpus_on_request=True,
    uses_torch=False,
    weighted_tasks=("binary", "multiclass", "regression"),
    # As `benchmarks/tree_memory_floor.py` measures of XGBoost alone, of one output, and what the process has without rows.
    kept_row_bytes=48,
    kept_start_bytes=112 * 2**20,
    log_objectives=LOG_OBJECTIVES,
    rules=(objective_fits,),
    outside_format="xgboost_json",
    threads=2,
)
