"""The section `validate.drift`: limits on how far the columns may be from those of an earlier snapshot."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from training.spec.scalar_types import ColumnName, Section

DriftAction = Literal["fail", "approve", "warn", "off"]
Reference = Literal["previous", "champion"]
Distance = Annotated[float, Field(gt=0, le=1)]
Index = Annotated[float, Field(gt=0, le=100)]


class DriftLimits(Section):
    """Limits of one column; a key that is absent has the value of `validate.drift`."""

    action: DriftAction | None = None
    """`fail`: the run ends, `approve`: a person has to approve the candidate, `warn`: the report and the log say it, `off`: the column is
    not judged."""
    psi: Index | None = None
    """Population stability index over the deciles, or the 20 most frequent values, of the earlier snapshot.
    Unit: population stability index."""
    jensen_shannon: Distance | None = None
    """Jensen-Shannon distance (base 2) over the same bins. Unit: distance, 0 to 1. Example: `0.2`."""
    kolmogorov_smirnov: Distance | None = None
    """Largest difference of the two distribution functions; numbers only. Unit: distance, 0 to 1. Example: `0.2`."""
    new_categories: Distance | None = None
    """Share of the rows whose text is not in the earlier snapshot. Example: `0.1`."""


class Drift(Section):
    """How far the columns may be from those of the previous snapshot, and of the one that the champion was trained on."""

    action: DriftAction = "warn"
    """`fail`: the run ends before a training, `approve`: a person has to approve the candidate, `warn`: the report and the log say it,
    `off`: columns are reported and not judged."""
    against: Annotated[tuple[Reference, ...], Field(strict=False, min_length=1)] = ("previous", "champion")
    """`previous`: the newest validated snapshot of an earlier run. `champion`: the one that the champion was trained on."""
    psi: Index | None = 0.25
    """Population stability index over the deciles, or the 20 most frequent values, of the earlier snapshot; null: not judged.
    Unit: population stability index."""
    jensen_shannon: Distance | None = None
    """Jensen-Shannon distance (base 2) over the same bins; absent: reported only. Unit: distance, 0 to 1. Example: `0.2`."""
    kolmogorov_smirnov: Distance | None = None
    """Largest difference of the two distribution functions, numbers only; absent: reported only. Unit: distance, 0 to 1."""
    new_categories: Distance | None = 0.05
    """Share of the rows whose text is not in the earlier snapshot; null: not judged."""
    columns: dict[ColumnName, DriftLimits] = Field(default_factory=dict)
    """Limits of columns of any table, by name."""

    @property
    def may_ask(self) -> bool:
        """Whether drift of a column can require a person's approval."""
        return "approve" in {self.action, *(limits.action for limits in self.columns.values())}
