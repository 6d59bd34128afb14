"""What the pipeline of a table is: key, split, features, windows, task. Every choice that could be wrong is a note for the reader."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from training.errors import DataError, shown
from training.spec.types import MAX_DURATION
from training.sql.expressions import quoted
from training.starter.labels import Label
from training.starter.leaks import suspects
from training.starter.scalars import flow_list, scalar
from training.starter.tables import FoundColumn, FoundTable, Report
from training.starter.time_columns import EventTime

SHARE: Final = 0.15
"""Of the rows in validation, and in test."""
FEW_VALUES: Final = 50
TOP: Final = 1_000
MANY_WORDS: Final = 3.0
MAX_KEY_TRIALS: Final = 60
WHOLE_DAYS_FROM: Final = timedelta(days=20)
DAY: Final = timedelta(days=1)
WEEK: Final = timedelta(days=7)
ID_NAME: Final = re.compile(r"(^|_)(id|key|no|nr|num|number|index|row|rownames)$", re.IGNORECASE)
KEY_TYPES: Final = frozenset({"int8", "int16", "int32", "int64", "string", "date", "timestamp"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """A pipeline that `texts` writes down."""

    label: Label
    key: Sequence[str]
    numbers: dict[str, str]
    """Derived column of numbers to the column with texts that it is made of."""
    late: dict[str, str]
    """Columns that are suspected to be known only after the label, with the reason."""
    skipped: dict[str, str]
    """Columns that are read and are no features, with the reason."""
    features: dict[str, str]
    """Name to the mapping as YAML has it."""
    windows: dict[str, str] = field(default_factory=dict)
    split: str
    window: timedelta
    night: date
    """The day after the newest row, in the pipeline's time zone."""
    slices: Sequence[str]
    is_recent: bool
    """Whether the newest row is of these days, so that a schedule makes sense."""
    notes: Sequence[str]


def drafted(table: FoundTable, time: EventTime, label: Label, *, key: Sequence[str], zone: str, now: datetime, report: Report) -> Draft:
    """Decide what the pipeline is.

    Args:
        key: columns that identify a row; empty: found.
        report: is told which column of how many is looked at.

    Raises:
        DataError: `init.key`, no columns identify a row; `init.features`, nothing is left to learn from.
    """
    first, last = _range(table, time)
    names = [name for name in table.columns if name not in (label.column, time.column)]
    late = suspects(table, label.sql, names=names, is_number=label.task == "regression", report=report)
    entities = _entities(table, time, label, late)
    found_key = _checked_key(table, time, key) if key else _key(table, time, label, late)
    numbers = {_number_name(table, name): name for name in names if table.columns[name].marker and name not in late}
    features, skipped = _features(table, time, names, late, found_key, last - first)
    windows = _windows(table, time, label, entities) if label.task == "regression" and entities is not None else {}
    features |= {name: "{transform: number}" for name in windows}
    if not features:
        raise DataError(
            "init.features", f"{table.path}: no column is left to learn from", hint="see the reasons: " + _reasons(late, skipped)
        )
    night = last.astimezone(ZoneInfo(zone)).date() + DAY
    end = datetime(night.year, night.month, night.day, tzinfo=ZoneInfo(zone))
    window = min(timedelta(days=math.ceil((end - first) / DAY) + 1), MAX_DURATION)
    return Draft(
        label=label,
        key=found_key,
        numbers=numbers,
        late=late,
        skipped=skipped,
        features=features,
        windows=windows,
        split=_split(table, time, label, max(first, end - window), end),
        window=window,
        night=night,
        slices=_slices(table, features),
        is_recent=now - last < timedelta(days=3),
        notes=_notes(table, end, first, window),
    )


def _range(table: FoundTable, time: EventTime) -> tuple[datetime, datetime]:
    query = f"SELECT epoch_us(min({time.instant})), epoch_us(max({time.instant})) FROM rows"  # noqa: S608 - quoted
    first, last = (datetime.fromtimestamp(0, UTC) + timedelta(microseconds=value) for value in table.connection.sql(query).fetchall()[0])
    return first, last


def _notes(table: FoundTable, end: datetime, first: datetime, window: timedelta) -> list[str]:
    notes = []
    if end - first > window:
        notes.append(f"rows before {(end - window).date()} are outside of the window: {MAX_DURATION.days} days is the longest")
    if table.num_rows < 1000:
        notes.append(f"{table.num_rows:,} rows are few: metrics have wide intervals, and a gate may not be passed by chance alone")
    return notes


def _reasons(*found: dict[str, str]) -> str:
    return "; ".join(f"{name}: {reason}" for names in found for name, reason in names.items())[:500]


def _is_unique(table: FoundTable, expressions: Sequence[str]) -> bool:
    listed = ", ".join(expressions)
    missing = " OR ".join(f"({each}) IS NULL" for each in expressions)
    twice = table.value(f"SELECT 1 FROM rows GROUP BY {listed} HAVING count(*) > 1 LIMIT 1")  # noqa: S608 - quoted
    return twice is None and table.value(f"SELECT 1 FROM rows WHERE {missing} LIMIT 1") is None  # noqa: S608 - quoted


def _expression(table: FoundTable, time: EventTime, name: str) -> str:
    return time.instant if name == time.name else quoted(name)


def _checked_key(table: FoundTable, time: EventTime, key: Sequence[str]) -> Sequence[str]:
    for name in key:
        if name != time.name and name not in table.columns:
            raise DataError("init.key", f"{table.path} has no column {shown(name)}", hint=f"columns: {', '.join(list(table.columns)[:20])}")
    # The file's column of the time stands for the instant.
    named = [time.name if name == time.column else name for name in key]
    if not _is_unique(table, [_expression(table, time, name) for name in named]):
        message = f"{', '.join(named)} do not identify a row: there are two rows with the same values, or a missing one"
        raise DataError("init.key", message, hint="name more columns, or leave --key out")
    return named


def _key(table: FoundTable, time: EventTime, label: Label, late: dict[str, str]) -> Sequence[str]:
    usable = [
        column
        for column in table.columns.values()
        if column.type in KEY_TYPES and not column.num_missing and column.name not in (label.column, time.column, *late)
    ]
    counts = {column.name: _num_values(table, column) for column in usable}
    ids = [name for name, count in counts.items() if _may_be_id(table, table.columns[name], count)]
    others = sorted((name for name in counts if name not in ids), key=lambda name: (counts[name], name))
    others = [name for name in others if counts[name] > 1]
    trials: Iterator[tuple[str, ...]] = itertools.chain(
        ((name,) for name in ids),
        [(time.name,)],
        ((name, time.name) for name in others),
        ((*pair, time.name) for pair in itertools.combinations(others, 2)),
        itertools.combinations([*ids, *others], 2),
        [(*others, time.name)],
    )
    for trial in itertools.islice(trials, MAX_KEY_TRIALS):
        if _is_unique(table, [_expression(table, time, name) for name in trial]):
            return list(trial)
    hint = (
        "name them: --key COLUMN[,COLUMN]; or number the rows of a CSV file: "
        'awk \'NR == 1 {print "row," $0} NR > 1 {print NR - 1 "," $0}\' FILE'
    )
    raise DataError("init.key", f"{table.path}: no columns were found that identify a row", hint=hint)


def _num_values(table: FoundTable, column: FoundColumn) -> int:
    return int(str(table.value(f"SELECT approx_count_distinct({quoted(column.name)}) FROM rows") or 0))  # noqa: S608 - quoted


def _may_be_id(table: FoundTable, column: FoundColumn, count: int) -> bool:
    """Return whether a column may number or name its rows: of whole numbers, such that are dense, or called so."""
    # The count is an estimate.
    if count < 0.8 * table.num_rows or column.type not in KEY_TYPES:
        return False
    if not column.type.startswith("int") or ID_NAME.search(column.name):
        return True
    low, high = table.connection.sql(f"SELECT min({quoted(column.name)}), max({quoted(column.name)}) FROM rows").fetchall()[0]  # noqa: S608
    return bool(high - low < 2 * table.num_rows)


def _entities(table: FoundTable, time: EventTime, label: Label, late: dict[str, str]) -> list[str] | None:
    """Return the columns that name the series of a row: with the time they identify it. None: rows are no series."""
    if _is_unique(table, [time.instant]):
        return []
    for column in table.columns.values():
        if column.type not in KEY_TYPES or column.num_missing or column.name in (label.column, time.column, *late):
            continue
        if 1 < _num_values(table, column) <= table.num_rows / 10 and _is_unique(table, [quoted(column.name), time.instant]):
            return [column.name]
    return None


def _features(
    table: FoundTable, time: EventTime, names: Sequence[str], late: dict[str, str], key: Sequence[str], length: timedelta
) -> tuple[dict[str, str], dict[str, str]]:
    features: dict[str, str] = {}
    skipped: dict[str, str] = {}
    for name in names:
        if name in late:
            continue
        column = table.columns[name]
        chosen, reason = _feature(table, column, is_key=name in key)
        if reason:
            skipped[name] = reason
        else:
            features[_number_name(table, name) if column.marker else name] = chosen
    parts = ["day_of_week"] if length >= 2 * WEEK else []
    step = _step(table, time, None)
    parts = [*(["hour"] if step < DAY and length >= 2 * DAY else []), *parts, *(["month", "day_of_year"] if length >= 365 * DAY else [])]
    if parts:
        features[time.name] = f"{{transform: datetime, parts: [{', '.join(parts)}]}}"
    return features, skipped


def _feature(table: FoundTable, column: FoundColumn, *, is_key: bool) -> tuple[str, str]:
    """Return a column's transform as YAML has it, or why it is no feature."""
    count, known = _num_values(table, column), table.num_rows - column.num_missing
    if count <= 1:
        return "", "all its values are the same"
    if column.type in ("date", "timestamp"):
        return "", "a time: add it (transform: datetime) if it is known when the prediction is made"
    if column.type == "boolean" or column.is_number:
        if column.type.startswith("int") and _may_be_id(table, column, count) and _is_unique(table, [quoted(column.name)]):
            return "", "each row has its own value: an id"
        return "{transform: number}", ""
    if count <= FEW_VALUES:
        return "{transform: category}", ""
    if count <= known / 2 and not (is_key and count > known / 10):
        return f"{{transform: category, top: {TOP}}}", ""
    words = table.value(f"SELECT avg(len(string_split({quoted(column.name)}, ' '))) FROM rows")  # noqa: S608 - quoted
    if float(str(words or 0)) >= MANY_WORDS:
        return "{transform: text}", ""
    return "", "nearly each row has its own value: an id, or a text without words"


def _number_name(table: FoundTable, name: str) -> str:
    found = f"{name}_number"
    while found.lower() in {other.lower() for other in table.columns}:
        found += "_"
    return found


def _step(table: FoundTable, time: EventTime, entities: Sequence[str] | None) -> timedelta:
    """Return the median time from a row to the next one, of the same series where there are some."""
    by = "PARTITION BY " + ", ".join(map(quoted, entities)) if entities else ""
    also = "".join(f", {quoted(name)}" for name in entities or ())
    different = "" if entities is not None else "DISTINCT"
    query = f"""
        SELECT quantile_disc(gap, 0.5) FROM (
            SELECT moment - lag(moment) OVER ({by} ORDER BY moment) AS gap
            FROM (SELECT {different} epoch_us({time.instant}) AS moment{also} FROM rows)
        ) WHERE gap IS NOT NULL
    """  # noqa: S608 - quoted
    gap = table.value(query)
    return DAY if gap is None else timedelta(microseconds=int(str(gap)))


def _windows(table: FoundTable, time: EventTime, label: Label, entities: Sequence[str]) -> dict[str, str]:
    """Return lags of the label, for a series: a row's label is known one step later."""
    step = max(_step(table, time, entities), timedelta(seconds=1))
    if step > WEEK * 5:
        return {}
    by, known = f"by: {flow_list([*entities])}", f"available_after: {duration(step)}"
    found = {"last_value": f"{{kind: lag, column: {scalar(label.name)}, {by}, rows: 1, {known}}}"}
    for name, length in (("day_before", DAY), ("week_before", WEEK)):
        if step < length:
            tolerance = f"tolerance: {duration(step)}"
            found[name] = f"{{kind: lag, column: {scalar(label.name)}, {by}, time: {duration(length)}, {tolerance}, {known}}}"
    found["recent_mean"] = f"{{kind: rolling, function: mean, column: {scalar(label.name)}, {by}, rows: 7, {known}}}"
    return {name if name not in table.columns else f"{name}_": text for name, text in found.items()}


def _split(table: FoundTable, time: EventTime, label: Label, first: datetime, end: datetime) -> str:
    """Return the split by time with the newest seventh of the rows as test, or at random where there are too few times."""
    at = f"epoch_us({time.instant})"
    used = f"{at} >= {int(first.timestamp() * 1_000_000)} AND {label.sql} IS NOT NULL"
    query = f"SELECT quantile_disc({at}, {1 - 2 * SHARE}), quantile_disc({at}, {1 - SHARE}) FROM rows WHERE {used}"  # noqa: S608 - quoted
    validation_at, test_at = (datetime.fromtimestamp(value / 1_000_000, UTC) for value in table.connection.sql(query).fetchall()[0])
    unit = DAY if end - first >= WHOLE_DAYS_FROM else timedelta(hours=1)
    test = max(1, math.ceil((end - test_at) / unit))
    validation = max(1, math.ceil((end - test * unit - validation_at) / unit))
    start = end - (test + validation) * unit
    low, middle = (int(each.timestamp() * 1_000_000) for each in (start, end - test * unit))
    counts = f"count(*) FILTER ({at} < {low}), count(*) FILTER ({at} >= {low} AND {at} < {middle}), count(*) FILTER ({at} >= {middle})"
    rows = table.connection.sql(f"SELECT {counts} FROM rows WHERE {used}").fetchall()[0]  # noqa: S608
    if min(rows) < max(1, 0.03 * sum(rows)):
        return f"{{by: random, validation: {SHARE}, test: {SHARE}}}"
    suffix = "d" if unit == DAY else "h"
    return f"{{by: time, validation: {validation}{suffix}, test: {test}{suffix}}}"


def _slices(table: FoundTable, features: dict[str, str]) -> list[str]:
    few = [name for name, text in features.items() if text == "{transform: category}"]
    return [name for name in few if 2 <= _num_values(table, table.columns[name]) <= 12][:2]


def duration(length: timedelta) -> str:
    """Return a duration as the YAML has it, in the largest unit that divides it."""
    seconds = max(1, round(length.total_seconds()))
    for suffix, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds % size == 0:
            return f"{seconds // size}{suffix}"
    return f"{seconds}s"
