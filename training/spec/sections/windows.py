"""The section `data.windows`: columns made of the rows before, of the main table or of a feature table."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Final, Literal

from pydantic import Field

from training.spec.scalar_types import (
    ColumnName,
    Duration,
    Many,
    Name,
    PositiveDuration,
    Section,
)

WindowKind = Literal["lag", "rolling", "since_last"]
WindowFunction = Literal["sum", "mean", "min", "max", "count", "std", "distinct"]
MAX_ROWS: Final = 1_000_000

_SAME_TYPE: Final = ("min", "max")
_INTEGERS: Final = ("count", "distinct")


class Window(Section):
    """A column of the joined frame, made of rows that have the row's key and were known when its prediction was made."""

    kind: WindowKind
    """`lag`: an earlier value. `rolling`: a function of earlier values. `since_last`: seconds from the last row to the decision."""
    table: Name | None = None
    """Whose rows: a feature table with an `event_time`. Absent: the main table."""
    by: Many[ColumnName] | None = None
    """Columns of the main table: rows with equal values belong together; `[]`: all rows do. A feature table's key is its `on`."""
    column: ColumnName | None = None
    """Of the table. `count` counts its values; without it, rows."""
    function: WindowFunction | None = None
    """Of `rolling`; `std` is of the sample, so it needs two values."""
    time: PositiveDuration | None = None
    """`lag`: so long before the event time. `rolling`, `since_last`: rows not older than this at the decision."""
    tolerance: Duration | None = None
    """Of a lag by `time`: the value may be this much older; `0s`: exactly that time. Absent: the newest value at or before that time."""
    rows: Annotated[int, Field(ge=1, le=MAX_ROWS)] | None = None
    """`lag`: the n-th last row that became known. `rolling`: the last n. Unit: rows."""
    where: Annotated[str, Field(min_length=1, max_length=4000)] | None = None
    """SQL over the table's columns: only rows for which it is true take part."""
    available_after: Duration | None = None
    """A row is known this long after its event time (of a feature table: or as its own `available_after` says, whichever is later)."""
    known_at: ColumnName | None = None
    """Column of the table with the instant from which a row is known; null: not known."""

    @property
    def reach(self) -> timedelta | None:
        """How long before the decision a row can be, at most; None: any time."""
        if self.kind != "lag":
            return self.time
        return None if self.time is None or self.tolerance is None else self.time + self.tolerance

    def type_of(self, column_type: str | None) -> str:
        """Return the type of the result, of a column of this type."""
        if self.kind == "lag" or self.function in _SAME_TYPE:
            return column_type or "double"
        return "int64" if self.function in _INTEGERS else "double"
