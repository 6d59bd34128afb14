"""The section `timeout`: how long a stage's process may make no progress before it is ended and started again."""

from __future__ import annotations

from pydantic import Field

from training.spec.scalar_types import PositiveDuration, Section


class Timeout(Section):
    """Longest times without progress, by what the process does. They limit no total: work that moves is never ended."""

    start: PositiveDuration = Field(default="15m", validate_default=True)
    """An import of the model's package."""
    transfer: PositiveDuration = Field(default="15m", validate_default=True)
    """A request to the store, or a chunk of a file; an upload has a second more for each MiB."""
    part: PositiveDuration = Field(default="1h", validate_default=True)
    """A part of a stage between two reports: a query, a table's checks, scoring, statistics."""
    step: PositiveDuration = Field(default="10m", validate_default=True)
    """A training step, a boosting round."""
    validation: PositiveDuration = Field(default="10m", validate_default=True)
    """A batch of validation rows."""
    checkpoint: PositiveDuration = Field(default="15m", validate_default=True)
    """A block of a checkpoint that is read or written."""
    mlflow: PositiveDuration = Field(default="15m", validate_default=True)
    """A call of MLflow."""
