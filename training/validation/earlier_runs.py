"""What the reports of later runs show of a validated run: rows, age of the newest row, missing values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from training.contracts import Instant, JsonObject, JsonValue, instant_text
from training.validation.results import ColumnStatistics
from training.validation.snapshot_view import TableView

MAX_RUNS: Final = 30


def numbers_of_run(as_of: Instant, views: Sequence[TableView], statistics: Mapping[str, Mapping[str, ColumnStatistics]]) -> JsonObject:
    """Return a run as JSON: of each table its rows, the age of the newest row in hours (null without event times), missing values.

    Args:
        as_of: of the run.
        statistics: table, column.
    """
    tables: dict[str, JsonValue] = {}
    for view in views:
        columns, event_time = statistics.get(view.name, {}), view.sound_event_time
        newest = None if event_time is None or event_time not in columns else columns[event_time]["maximum"]
        tables[view.name] = {
            "rows": view.facts["rows"],
            "age_hours": None if newest is None else _age_hours(as_of, str(newest)),
            "missing": {name: found["nulls"] for name, found in columns.items() if found["nulls"]},
        }
    return {"as_of": instant_text(as_of), "tables": tables}


def with_run(earlier: Sequence[Any], run: JsonObject) -> list[JsonObject]:
    """Return the newest runs, oldest first, `run` being the last."""
    return [*earlier, run][-MAX_RUNS:]


def _age_hours(as_of: Instant, newest: str) -> float | None:
    """Return the age of an instant, negative for a later one; None for one before the year 1 or after 9999, which Python does not have."""
    try:
        age = as_of - datetime.fromisoformat(newest)
    except ValueError:
        return None
    return round(age.total_seconds() / 3600, 3)
