"""The descriptor of `linear`."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from training.spec.descriptors.families import NEURAL_ONLY, FamilyDescriptor
from training.spec.rules.objectives import LOG_OBJECTIVES, objective_fits
from training.spec.scalar_types import Section


class LinearSettings(Section):
    """Of `linear`: a generalised linear model of the standardised numbers and one weight per id."""

    penalty: Annotated[float, Field(ge=0, le=1e9)] = 1.0
    """Ridge: times half the sum of the squared weights, added to the sum of the rows' losses. The intercept has none. Unit: loss."""
    tolerance: Annotated[float, Field(gt=0, lt=1)] = 1e-6
    """Training ends where no component of the mean loss's gradient is larger. Unit: of the gradient."""
    objective: Literal["poisson", "log"] | None = None
    """Of the task regression. `poisson`: predicts the mean of counts, with a logarithmic link. `log`: the squared error of log(1 + label).
    Both are for labels >= 0. Absent: the squared error."""


DESCRIPTOR: Final = FamilyDescriptor(
    settings=LinearSettings,
    tasks=("binary", "multiclass", "regression"),
    libraries=("scipy", "numpy"),
    distributed=False,
    ignored_keys=(*NEURAL_ONLY, "learning_rate", "checkpoint", "from_checkpoint"),
    weighted_tasks=("binary", "multiclass", "regression"),
    takes_missing_numbers=False,
    uses_gpus=False,
    uses_torch=False,
    log_objectives=LOG_OBJECTIVES,
    rules=(objective_fits,),
)
