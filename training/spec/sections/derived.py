"""Columns that are computed from others of their row."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from training.spec.key_types import TimeZone
from training.spec.scalar_types import (
    ColumnName,
    Line,
    Many,
    Section,
)

ColumnType = Literal["boolean", "int8", "int16", "int32", "int64", "float", "double", "string", "date", "timestamp"]
"""As Arrow names them; `float` has 32 bits, `double` 64; a timestamp is UTC in microseconds once it is read."""

Known = Literal["before", "after"]
"""Whether a value is there when the prediction is made, or only afterwards."""

Sql = Annotated[str, Field(min_length=1, max_length=4000)]


class Derived(Section):
    """A column computed from others of the row by one SQL expression."""

    type: ColumnType
    """Of the result."""
    sql: Sql
    """One SQL expression over the columns of a row, in DuckDB's dialect. Example: `"basket_value / num_items"`."""
    known: Known | None = None
    """Absent: as late as the latest column that `sql` mentions."""
    because: Line | None = None
    """Why it is known before although `sql` mentions a late column. Example: `published weeks before the departure`."""


class SourceDerived(Derived):
    """A column that is computed when the table is read: by one SQL expression, or from the times of a clock."""

    sql: Annotated[str, Field(max_length=4000)] = ""
    """One SQL expression over the columns of a row, in DuckDB's dialect; with `zone`, it gives a time without a zone.
    Example: `"basket_value / num_items"`."""
    local: ColumnName | None = None
    """Instead of `sql`: the column with the times of a clock, `2026-10-25 02:30` or a day. Example: `read_at`."""
    zone: TimeZone | None = None
    """Of type timestamp: where the clock is. Example: `Europe/Berlin`."""
    twice: Literal["first", "second", "in_order"] | None = None
    """Which of its two instants a time stands for that the clock shows twice; `in_order`: rows are in the order of time, and the second
    hour begins where their times fall. Absent: such times are refused. Example: `in_order`."""
    by: Many[ColumnName] = ()
    """Of `in_order`: rows are in order for each value of these columns. Example: `[area]`."""
    missing: Literal["refuse", "shift"] = "refuse"
    """A time that the clock never shows is refused, or moved forward by the change."""

    @model_validator(mode="before")
    @classmethod
    def _read_local(cls, values: Any) -> Any:
        local = values.get("local") if isinstance(values, dict) else None
        return {**values, "sql": values.get("sql") or sql_of_local(local)} if isinstance(local, str) else values


def sql_of_local(column: str) -> str:
    """Return the expression of `local`. A column's name has no quotes."""
    return f'CAST("{column}" AS TIMESTAMP)'
