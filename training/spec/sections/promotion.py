"""The section `promote`: approval, canary and rollout of a model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from training.spec.scalar_types import Line, Name, PositiveDuration, Section


class Canary(Section):
    """An accepted model first scores new data together with the champion before it replaces it."""

    for_: PositiveDuration = Field(default="3d", validate_default=True, alias="for")
    """How long at least, counted from when it became canary."""
    support: Annotated[int, Field(ge=1, le=10**9)] = 1000
    """Rows with labels that it must have been judged on. Unit: rows."""
    schedule: Annotated[str, Field(max_length=200)] = "30 * * * *"
    """When it is looked at, as a cron line in the pipeline's time zone."""
    tolerance: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """How much worse than the champion it may be at the end, in the primary metric's units. Unit: of the primary metric."""
    patience: PositiveDuration = Field(default="30d", validate_default=True)
    """Without the support by then it is rolled back."""


class Promote(Section):
    """Which model a candidate may become, and who or what decides about it."""

    model: Name
    """Name in the registry."""
    approval: Literal["automatic", "required"] = "automatic"
    """`required`: a person approves each accepted candidate. `automatic`: only where a gate asks for it."""
    approvers: Annotated[tuple[Line, ...], Field(strict=False, max_length=100)] = ()
    """Ids of Airflow users who may approve; absent: any user who may edit the DAG's tasks. Example: `[ann]`."""
    approve_own: bool = False
    """Whether the user who triggered the run may approve its model."""
    approve_within: PositiveDuration = Field(default="7d", validate_default=True)
    """An approval that has not come by then never comes."""
    canary: Canary | None = None
