"""What a column made of a row's history is, by one plain loop over all rows for each row: slow, and nothing to optimise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any

from training.data.join.windows import MICROSECOND, WindowColumn

Row = Mapping[str, Any]


def oracle(
    window: WindowColumn,
    row: Row,
    history: Sequence[Row],
    *,
    time: str,
    main_time: str,
    lead: timedelta,
    key: Sequence[str],
    wheres: Mapping[str, Any],
) -> Any:
    """Return the value of `window` in `row`.

    Args:
        history: all rows of the window's table.
        time: its event time; `main_time` is the main table's.
        key: columns that order rows of one time.
        wheres: a Python function for each SQL condition.
    """
    event = row[main_time]
    decided = event - lead
    is_own = time == main_time
    known: list[tuple[datetime, Row]] = []
    for past in sorted(history, key=lambda past: (past[time], [(past[name] is not None, past[name]) for name in key])):
        if any(row[ours] is None or row[ours] != past[theirs] for ours, theirs in window.by.items()):
            continue
        if window.where is not None and not wheres[window.where](past):
            continue
        instants = [past[time] + window.available_after, *(past[name] for name in window.known_at)]
        if any(instant is None for instant in instants) or max(instants) > decided or (is_own and past[time] >= event):
            continue
        known.append((max(instants), past))
    if window.kind == "lag":
        return _lag(window, known, event, time)
    if window.kind == "since_last":
        ages = [decided - past[time] for _known, past in known if window.time is None or past[time] >= decided - window.time]
        return min(ages) / MICROSECOND / 1_000_000 if ages else None
    return _rolling(window, known, decided, time)


def _lag(window: WindowColumn, known: list[tuple[datetime, Row]], event: datetime, time: str) -> Any:
    if window.rows is not None:
        in_order = sorted(known, key=lambda pair: pair[0])
        return in_order[-window.rows][1][window.column] if len(in_order) >= window.rows else None
    assert window.time is not None
    old = [past for _known, past in known if past[time] <= event - window.time]
    if not old or (window.tolerance is not None and old[-1][time] < event - window.time - window.tolerance):
        return None
    return old[-1][window.column]


def _rolling(window: WindowColumn, known: list[tuple[datetime, Row]], decided: datetime, time: str) -> Any:
    if window.rows is not None:
        rows = [past for _known, past in sorted(known, key=lambda pair: pair[0])[-window.rows :]]
    else:
        assert window.time is not None
        rows = [past for _known, past in known if past[time] >= decided - window.time]
    if window.column is None:
        return len(rows)
    values = [past[window.column] for past in rows]
    values = [value for value in values if value is not None and not (isinstance(value, float) and not math.isfinite(value))]
    return _function(str(window.function), values)


def _function(function: str, values: list[Any]) -> Any:
    if function == "count":
        return len(values)
    if function == "distinct":
        return len(set(values))
    if not values or (function == "std" and len(values) < 2):
        return None
    if function in ("min", "max"):
        return min(values) if function == "min" else max(values)
    exact = [Fraction(value) for value in values]
    total = sum(exact, Fraction())
    if function == "sum":
        return float(total)
    if function == "mean":
        return float(total) / len(values)
    spread = float(len(values) * sum(value * value for value in exact) - total * total)
    return math.sqrt(spread / (len(values) * (len(values) - 1)))
