"""The section `tune`: which settings are searched, how, and for how much."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from training.spec.scalar_types import (
    Line,
    Many,
    PositiveDuration,
    Scalar,
    Section,
    Seed,
    in_yaml,
    refusal,
)


class SearchSpace(Section):
    """One parameter: exactly one of `float`, `int` and `choices`."""

    float_: Annotated[tuple[float, float], Field(strict=False)] | None = Field(default=None, alias="float")
    """[low, high], both included. Unit: of the parameter."""
    int_: Annotated[tuple[int, int], Field(strict=False)] | None = Field(default=None, alias="int")
    """[low, high], both included, whole numbers. Unit: of the parameter."""
    choices: Many[Scalar] | None = None
    """The values that are tried."""
    log: bool = False
    """Equal chances for equal ratios."""
    step: Annotated[float, Field(gt=0)] | None = None
    """Distance of two values that are tried, from low on. Unit: of the parameter. Example: `2`."""
    when: dict[str, Scalar] = Field(default_factory=dict)
    """Only where other parameters have these values."""

    @model_validator(mode="after")
    def _is_a_space(self) -> SearchSpace:
        given = [name for name, value in (("float", self.float_), ("int", self.int_), ("choices", self.choices)) if value is not None]
        if len(given) != 1:
            raise refusal("tune.space", f"expected exactly one of float, int and choices, got {', '.join(given) or 'none'}")
        if self.choices is not None:
            if not self.choices:
                raise refusal("tune.space", "the list of choices is empty", hint="give at least one value")
            if self.log or self.step is not None:
                raise refusal("tune.space", "choices have neither log nor step")
            return self
        low, high = self.bounds
        if low > high:
            raise refusal("tune.space", f"low ({in_yaml(low)}) is above high ({in_yaml(high)})", hint="write [low, high]")
        if self.log and low <= 0:
            raise refusal("tune.space", f"low must be above zero where log is true, got {in_yaml(low)}")
        if self.log and self.step is not None:
            raise refusal("tune.space", "log and step do not go together", hint="keep one of the two")
        if self.int_ is not None and self.step is not None and self.step != int(self.step):
            raise refusal("tune.space", f"the step of an int must be a whole number, got {in_yaml(self.step)}")
        return self

    @property
    def bounds(self) -> tuple[Any, Any]:
        """(low, high) of a numeric space."""
        bounds = self.float_ if self.float_ is not None else self.int_
        if bounds is None:
            raise ValueError("choices have no bounds")
        return bounds


class Tune(Section):
    """A search for settings before the training."""

    trials: Annotated[int, Field(ge=1, le=10_000)]
    """How many trainings the study has at most. Unit: trials."""
    parallel: Annotated[int, Field(ge=1, le=256)] = 1
    """Trials at a time, each placed as the training is. Unit: trials."""
    gpus: Annotated[int, Field(ge=0, le=65_536)] | None = None
    """GPUs that all trials together may have; absent: no limit of the study's own. Unit: GPUs."""
    sampler: Literal["tpe", "grid", "random", "cmaes"] = "tpe"
    """How settings are chosen: by Parzen estimators (`tpe`), all combinations (`grid`), at random, or by CMA-ES."""
    pruner: Literal["hyperband", "halving", "median", "none"] = "hyperband"
    """What ends trials early that are worse than others at the same epoch."""
    objective: Line = "validation_loss"
    """`validation_loss`, or a metric of the task, over the validation rows."""
    seed: Seed = 0
    """Of the sampler. Unit: none."""
    patience: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Finished trials without a better one after which the study ends. Unit: trials."""
    within: PositiveDuration | None = None
    """No trial begins later than this after the study's first one."""
    space: Annotated[dict[str, SearchSpace], Field(min_length=1, max_length=64)]
    """Key of `train` to what is searched; a family's own settings as `settings.max_depth`."""

    def in_order(self) -> list[str]:
        """Return the parameters, each after those that its `when` names; those whose conditions go in a circle are left out."""
        ordered: list[str] = []
        waiting = list(self.space)
        while ready := [name for name in waiting if not ((self.space[name].when.keys() - {name}) & set(waiting))]:
            ordered += ready
            waiting = [name for name in waiting if name not in ready]
        return ordered
