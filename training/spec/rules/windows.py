"""Rules for `data.windows`: each window can be computed, can have a value, and shows nothing that was not known at the decision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Final

from training.errors import shown
from training.spec.reader.problems import nearest
from training.spec.reader.yaml import Path
from training.spec.rules.leakage import CODE as LEAKAGE
from training.spec.rules.leakage import Lateness
from training.spec.rules.names import Taken, clash
from training.spec.rules.rule_problems import Violation
from training.spec.scalar_types import duration_text
from training.spec.sections.data import Data, FeatureTable
from training.spec.sections.prepare import Prepare
from training.spec.sections.windows import Window
from training.sql.analysis import objection, unknown_columns, words

INTEGERS: Final = ("int8", "int16", "int32", "int64")
NUMBERS: Final = (*INTEGERS, "float", "double")
FUNCTION_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("min", "max", "std"), NUMBERS),
    **dict.fromkeys(("sum", "mean"), (*NUMBERS, "boolean")),
}
"""Types of the columns that a function is defined for; others are for any type."""


def windows_can_be_computed(data: Data) -> Iterator[Violation]:
    """Yield a violation for each window whose keys do not fit its kind, its table or its columns."""
    taken = {name.lower(): Taken(name, "the joined frame") for name in data.frame_types() if name not in data.windows}
    taken["label"] = Taken("label", "the joined frame")
    for name, window in data.windows.items():
        path: Path = ("data", "windows", name)
        if name.lower() in taken or name in data.source.types:
            yield clash(path, name, taken.get(name.lower(), Taken(name, "the joined frame")), "give the window another name")
        taken[name.lower()] = Taken(name, "the windows", path)
        yield from _keys_fit_the_kind(path, window)
        table = data.table_of(window)
        if table is None and window.table not in (None, data.source.table):
            known = [feature.table for feature in data.features if feature.event_time is not None]
            message = f"{window.table} is no feature table with an event_time: windows need the time of each row"
            yield Violation((*path, "table"), "table.unknown", message, nearest(str(window.table), [data.source.table, *known]))
            continue
        yield from _key_fits(path, window, data, table)
        yield from _columns_fit(path, window, data, table)
        yield from _has_values(path, window, data, table)


def rows_of_windows_are_read(data: Data) -> Iterator[Violation]:
    """Yield a violation for a history that no window looks at, and for a sample of the rows that windows look at."""
    source = data.source
    has_own = any(window.table in (None, source.table) for window in data.windows.values())
    if source.history is not None and not has_own:
        message = "history has no effect: no window looks at the main table"
        yield Violation(("data", "source", "history"), "field.conflict", message, "add data.windows, or remove it")
    if source.sample is not None and has_own:
        message = "sample leaves out rows that the windows of the main table would look at: counts and lags would be wrong"
        yield Violation(("data", "source", "sample"), "field.conflict", message, "choose rows by where, or remove one of the two")


def windows_are_known_in_time(data: Data, prepare: Prepare) -> Iterator[Violation]:
    """Yield a violation for each window that would show what is known only after the decision."""
    lateness = Lateness(data, prepare)
    for name, window in data.windows.items():
        path: Path = ("data", "windows", name)
        for number, key in enumerate(window.by or ()):
            why = lateness.why(key)
            if why is not None:
                message = f"the key {key} of a window is known only after the decision: {key} {why}"
                yield Violation((*path, "by", number), LEAKAGE, message, "take a key that is known before")
        if window.known_at is not None or window.available_after:
            continue
        for column in sorted(mentioned(window)):
            why = _why_late(data, lateness, window, column)
            if why is not None:
                message = f"the window {name} looks at {column}, which {why}, and nothing says when a row's value is known"
                hint = "name the column that says when (known_at), or the longest time that it takes (available_after: 1d)"
                yield Violation(path, LEAKAGE, message, hint)
                break


def mentioned(window: Window) -> frozenset[str]:
    """Return the columns that a window's value depends on, in lower case."""
    column = frozenset() if window.column is None else frozenset({window.column.lower()})
    return column if window.where is None else column | words(window.where)


def _why_late(data: Data, lateness: Lateness, window: Window, column: str) -> str | None:
    table = data.table_of(window)
    if table is not None:
        late = {name.lower() for name, found in table.columns.items() if found.known == "after"}
        return "is `known: after`" if column in late else None
    if column == data.label.column.lower() and data.label.known_at is not None:
        return None
    names = {name.lower() for name in data.source.types}
    return lateness.why(column) if column in names else None


def _keys_fit_the_kind(path: Path, window: Window) -> Iterator[Violation]:
    kind = window.kind
    allowed = {
        "lag": ("column", "time", "tolerance", "rows"),
        "rolling": ("column", "function", "time", "rows"),
        "since_last": ("time",),
    }[kind]
    for key in ("column", "function", "time", "tolerance", "rows"):
        if getattr(window, key) is not None and key not in allowed:
            yield Violation((*path, key), "field.conflict", f"{key} has no effect on a window of kind {kind}", "remove it")
    if kind != "since_last" and (window.time is None) == (window.rows is None):
        found = "neither" if window.time is None else "both"
        message = f"a window of kind {kind} has either time or rows, got {found}"
        yield Violation(path, "field.conflict", message, "time: 7d, or rows: 48")
    if kind == "lag" and window.rows is not None and window.tolerance is not None:
        yield Violation((*path, "tolerance"), "field.conflict", "tolerance needs time: a lag by rows has no age", "remove it")
    if kind == "rolling" and window.function is None:
        hint = "one of sum, mean, min, max, count, std, distinct"
        yield Violation((*path, "function"), "field.missing", "the key function is missing", hint)
    if window.column is None and (kind == "lag" or (kind == "rolling" and window.function not in (None, "count"))):
        yield Violation((*path, "column"), "field.missing", "the key column is missing", "name the column whose values are taken")


def _key_fits(path: Path, window: Window, data: Data, table: FeatureTable | None) -> Iterator[Violation]:
    types = data.source.types
    if table is None:
        if window.by is None:
            hint = "name the columns that tell one series from another, `by: [airport]`; `by: []` takes all rows as one series"
            yield Violation((*path, "by"), "field.missing", "the key by is missing", hint)
        for number, name in enumerate(window.by or ()):
            at = (*path, "by", number)
            if name not in types:
                yield Violation(at, "column.unknown", f"{name} is not a column of table {data.source.table}", nearest(name, types))
            elif types[name] in ("float", "double"):
                yield Violation(
                    at, "column.type", f"{name} is of type {types[name]}: a key is compared exactly", "take an integer or a text"
                )
        return
    if window.by is not None:
        message = f"by has no effect: rows of {table.table} belong to those that its `on` says"
        yield Violation((*path, "by"), "field.conflict", message, "remove it")
    for ours, theirs in table.on.items():
        pair = types.get(ours), table.columns[theirs].type if theirs in table.columns else None
        if None not in pair and pair[0] != pair[1] and not set(pair) <= set(INTEGERS):
            message = f"{ours} is of type {pair[0]} and {theirs} of type {pair[1]}: a window's key has one type"
            yield Violation((*path, "table"), "column.type", message, "give both columns one type")


def _columns_fit(path: Path, window: Window, data: Data, table: FeatureTable | None) -> Iterator[Violation]:
    types = data.source.types if table is None else {name: column.type for name, column in table.columns.items()}
    owner = data.source.table if table is None else table.table
    for key, name in (("column", window.column), ("known_at", window.known_at)):
        if name is not None and name not in types:
            yield Violation((*path, key), "column.unknown", f"{name} is not a column of table {owner}", nearest(name, types))
    if window.known_at is not None and types.get(window.known_at, "timestamp") != "timestamp":
        message = f"{window.known_at} is of type {types[window.known_at]}, a time must be a timestamp"
        yield Violation((*path, "known_at"), "column.type", message, "")
    kind = types.get(window.column or "")
    fitting = FUNCTION_TYPES.get(window.function or "")
    if kind is not None and fitting is not None and kind not in fitting:
        message = f"{window.column} is of type {kind}, {window.function} is of {', '.join(fitting)}"
        yield Violation((*path, "column"), "column.type", message, "count and distinct are of any type")
    if window.where is None:
        return
    fault = objection(window.where)
    if fault:
        message = f"the SQL of where {fault}"
        yield Violation((*path, "where"), "sql.forbidden", message, "write one condition over the columns of one row")
    for word in [] if fault else unknown_columns(window.where, types):
        message = f"where mentions {shown(word)}, which is not a column of table {owner}"
        yield Violation((*path, "where"), "column.unknown", message, nearest(word, types))


def _has_values(path: Path, window: Window, data: Data, table: FeatureTable | None) -> Iterator[Violation]:
    """Yield a violation for a window in which no row can be, because it ends before the first row is known."""
    delay = max(window.available_after or timedelta(), timedelta() if table is None else table.available_after)
    if window.time is None or (window.kind == "lag" and window.tolerance is None):
        return
    if window.kind == "lag":
        oldest, needed = window.time + (window.tolerance or timedelta()), data.source.decision_lead + delay
        ages = f"time and tolerance end {duration_text(oldest)} before the event"
        known = f"decision_lead and available_after make {duration_text(needed)}"
    else:
        oldest, needed = window.time, delay
        ages, known = f"time ends {duration_text(oldest)} before the decision", f"available_after is {duration_text(needed)}"
    if oldest < needed:
        message = f"no row can be in the window: {ages}, and {known}"
        yield Violation((*path, "time"), "window.empty", message, f"make it at least {duration_text(needed)}")
