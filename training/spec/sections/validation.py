"""The section `validate`: how the rows are checked before a training."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from training.spec.key_types import EmptyDays
from training.spec.scalar_types import Bytes, PositiveDuration, Section, Suite
from training.spec.sections.drift import Drift


class Validate(Section):
    """Optional checks; row count, keys, label, finiteness and types are always checked."""

    suite: Suite | None = None
    """Great Expectations suite that the main table must pass: its file below expectations/."""
    volume_change: Annotated[float, Field(gt=0, le=100)] | None = None
    """Largest share by which the number of rows may differ from the day or run before: 0.2 is 20 %. Unit: share."""
    freshness: PositiveDuration | None = None
    """The newest row must not be older than this at `as_of`."""
    unknown_labels: Annotated[float, Field(ge=0, le=1)] | None = None
    """Largest share of a split's rows whose label is not known at `as_of`; absent: above 0.1 it warns. Example: `0.2`."""
    future_rows: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Largest share of the main table's rows whose event time is later than the machine's clock by more than an hour and
    `data.source.decision_lead`; `ingest` fails above it, and warns of fewer. 1 where rows lie ahead by nature, as bookings do."""
    schema_change: Literal["warn", "fail"] = "warn"
    """Columns added, removed or of another type since the previous snapshot: a warning, or the run fails before it reads."""
    empty_days: EmptyDays = None
    """Days of the window that may have no rows: `allow`, or days of the week (`[sat, sun]`) in the pipeline's time zone. Absent: an empty
    partition fails, and a day without rows of a source without partitions warns."""
    drift: Drift = Field(default_factory=Drift)
    memory: Bytes | None = None
    """What all rows of the columns of one expectation may take, for expectations that need them all in memory; absent: 1 GiB.
    Example: `4GiB`."""
