"""Which rows the first run has, and how they are divided into train, validation and test."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from training.errors import DataError, counted, shown
from training.spec.scalar_types import MAX_DURATION
from training.spec.schedule.partitions import Grain
from training.starter.command_options import Choices
from training.starter.keys import ID_NAME
from training.starter.label_task import GuessedLabel
from training.starter.leakage import suspects
from training.starter.tables import FoundTable, Report
from training.starter.time_columns import EventTime
from training.starter.yaml_scalars import scalar

SHARE: Final = 0.15
"""Of the rows in validation, and in test."""
FEW_BY_CLASS: Final = math.ceil(1 / SHARE)
"""Rows of a class, of which each part of a split by class has one; below them, it may have none."""
FEW_BY_CHANCE: Final = 30
"""Below them, a part of a random split has none in more than one case of 130."""
WHOLE_DAYS_FROM: Final = timedelta(days=20)
DAY: Final = timedelta(days=1)
FIRST_NIGHT: Final = date(1971, 1, 2)
"""`spec.schedule.instants` refuses runs as of earlier years; a day later, 1971 has begun in every zone."""
FEW_GROUPS: Final = 20
"""Below so many values a column called an id is one of categories."""
ALL_ROWS: Final = "rows"
"""The view, for the times of test rows that are drawn at random."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Which rows the first run has."""

    window: timedelta
    start: datetime
    end: datetime
    night: date
    notes: Sequence[str] = ()


def span_of(table: FoundTable, time: EventTime, first: datetime, last: datetime, choices: Choices) -> Span:
    """Return the window and the first night of a table.

    Raises:
        DataError: `init.time`, all rows are before the window of the first night there is, or all partitions before that night.
    """
    place = ZoneInfo(choices.zone)
    today = choices.now.astimezone(place).date()
    if table.files.partition:
        start, end, missing = table.files.newest_without_gap(choices.zone)
        window = min(end - start if table.files.grain is Grain.HOUR else timedelta(days=round((end - start) / DAY)), MAX_DURATION)
        # A day that has begun ends after its last hour.
        night = min((end - timedelta(microseconds=1)).astimezone(place).date() + DAY, today)
        if night < FIRST_NIGHT:
            message = f"the newest partition of {table.path} is before {FIRST_NIGHT}, and no run is as of an earlier day"
            raise DataError("init.time", message, hint="bring newer partitions")
        notes = [f"the window begins after the partition {missing}, which is missing: a run fails without one of its window"]
        return Span(window=window, start=end - window, end=end, night=night, notes=notes if missing else ())
    if time.is_constant:
        return Span(window=MAX_DURATION, start=first, end=last + DAY, night=today)
    night = max(min(last.astimezone(place).date() + DAY, today), FIRST_NIGHT)
    end = datetime(night.year, night.month, night.day, tzinfo=place)
    window = min(timedelta(days=max(1, math.ceil((end - first) / DAY) + 1)), MAX_DURATION)
    if last < end - window:
        message = (
            f"the newest row of {table.path} is of {last.date()}, and a run as of {FIRST_NIGHT}, the first there is, has {window.days} days"
        )
        raise DataError("init.time", message, hint="leave --time out: all rows have one instant then")
    notes = []
    if end - first > window:
        notes.append(f"rows before {(end - window).date()} are outside of the window: {MAX_DURATION.days} days is the longest")
    if night == FIRST_NIGHT:
        notes.append(f"the newest row is of {last.date()}, and no run is as of a day before {FIRST_NIGHT}: the first night is that one")
    return Span(window=window, start=max(first, end - window), end=end, night=night, notes=notes)


def split_of(
    table: FoundTable, time: EventTime, label: GuessedLabel, span: Span, choices: Choices, *, late: Collection[str], report: Report
) -> tuple[str, list[str], str]:
    """Return how rows are divided, as the YAML has it, what the reader should know of it, and SQL of rows with the test rows' times.

    Args:
        late: columns that no model sees.
        report: is given which column of how many is looked at.

    Raises:
        DataError: `init.split`.
    """
    kind, column = choices.split, ""
    if choices.split_column:
        found = table.find(choices.split_column)
        if kind not in ("group", "stratified") or found is None:
            lacks = f"{table.path} has no column {shown(choices.split_column)}"
            reason = lacks if found is None else "it needs --split group or stratified"
            raise DataError("init.split", f"--split-column: {reason}", hint=table.listed(choices.split_column))
        column = f", column: {scalar(found.name)}"
    elif kind == "group":
        raise DataError("init.split", "--split group: nothing says which column the groups are", hint="--split-column COLUMN")
    if kind == "time" and time.is_constant:
        raise DataError("init.split", "--split time: all rows have one instant", hint="name the column of the time: --time COLUMN")
    if kind in ("", "time") and not time.is_constant:
        by_time, test_rows, note = _by_time(table, time, label, span.start, span.end, is_fixed=kind == "time")
        notes = [note] if note else []
        names = [name for name in table.columns if name not in (label.column, time.column, *late)]
        known = {}
        if test_rows and not kind and label.task != "regression":
            # As the gate `leakage` would find.
            known = suspects(table, label.sql, names=names, is_number=False, report=report, rows=test_rows)
        if not known and test_rows:
            return by_time, notes, test_rows
        if not known:
            return by_time, [*notes, *_group_notes(table, names), *_rare_class(table, label, kind)], ALL_ROWS
        name, reason = next(iter(known.items()))
        note = f"in the newest rows {name} alone decides ({reason}), so they are no test: rows are divided at random by class"
        return _at_random(label), [note, *_rare_class(table, label, kind)], ALL_ROWS
    names = [name for name in table.columns if name not in (label.column, *late)]
    notes = [] if kind else _group_notes(table, names)
    return _at_random(label, kind, column), [*notes, *_rare_class(table, label, kind)], ALL_ROWS


def _group_notes(table: FoundTable, names: Sequence[str]) -> list[str]:
    """Return a note about the column with the most groups of rows, of those that are called an id, where rows are divided at random."""
    counts = {name: table.columns[name].num_values for name in names if ID_NAME.search(name)}
    groups = {name: count for name, count in counts.items() if FEW_GROUPS <= count <= table.num_rows / 2}
    if not groups:
        return []
    name = max(groups, key=lambda name: groups[name])
    words = f"rows of one {name} are in train and in test, where a model may know them: to keep them together, "
    return [words + f"--split group --split-column {table.columns[name].source_name}"]


def _at_random(label: GuessedLabel, kind: str = "", column: str = "") -> str:
    kind = kind or ("random" if label.task == "regression" else "stratified")
    return f"{{by: {kind}{column}, validation: {SHARE}, test: {SHARE}}}"


def _rare_class(table: FoundTable, label: GuessedLabel, kind: str) -> list[str]:
    """Return a note where a part of a split at random may have rows of one class alone."""
    if label.task != "binary":
        return []
    query = f"SELECT {label.sql}, count(*) FROM rows WHERE {label.sql} IS NOT NULL GROUP BY 1 ORDER BY 2, 1 LIMIT 1"  # noqa: S608 - quoted
    value, count = table.rows(query)[0]
    if count >= (FEW_BY_CHANCE if kind in ("random", "group") else FEW_BY_CLASS):
        return []
    few = f"{counted(count, 'row')} with {label.column} = {shown(value)} may leave a part of the split without one"
    return [f"[label.missing_in_split] {few}, which prepare refuses: bring more rows"]


def _by_time(
    table: FoundTable, time: EventTime, label: GuessedLabel, first: datetime, end: datetime, *, is_fixed: bool
) -> tuple[str, str, str]:
    """Return the split by time with the newest seventh of the rows as test, SQL of these rows, and a note or nothing.

    Where there are too few times, or a part has rows of one class alone, it is at random, and there is no SQL.
    """
    at = f"epoch_us({time.instant})"
    bounds = f"{at} >= {int(first.timestamp() * 1_000_000)} AND {at} < {int(end.timestamp() * 1_000_000)}"
    used = f"{bounds} AND {label.sql} IS NOT NULL"
    query = f"SELECT quantile_disc({at}, {1 - 2 * SHARE}), quantile_disc({at}, {1 - SHARE}) FROM rows WHERE {used}"  # noqa: S608 - quoted
    instants = table.rows(query)[0]
    if None in instants:
        raise DataError("init.split", f"{table.path}: no row with a label is older than {end}", hint="wait until the day is over")
    validation_at, test_at = (datetime.fromtimestamp(value / 1_000_000, UTC) for value in instants)
    unit = DAY if end - first >= WHOLE_DAYS_FROM else timedelta(hours=1)
    # Rows of a year stay test rows until those of the next one arrive: later nights need some, too.
    step = median_gap(table, time)
    least = math.ceil(step / unit) + 1 if step > unit else 1
    test = max(least, math.ceil((end - test_at) / unit))
    validation = max(least, math.ceil((end - test * unit - validation_at) / unit))
    start = end - (test + validation) * unit
    low, middle = (int(each.timestamp() * 1_000_000) for each in (start, end - test * unit))
    parts = {"train": f"{at} < {low}", "validation": f"{at} >= {low} AND {at} < {middle}", "test": f"{at} >= {middle}"}
    wanted = [f"{what} FILTER ({part})" for what in ("count(*)", f"min({label.sql})", f"max({label.sql})") for part in parts.values()]
    found = table.rows(f"SELECT {', '.join(wanted)} FROM rows WHERE {used}")[0]  # noqa: S608
    rows = found[:3]
    if min(rows) < max(1, 0.03 * sum(rows)) and not is_fixed:
        return _at_random(label), "", ""
    # As `prepare` judges the labels.
    judged = {"binary": parts, "multiclass": ("train",), "regression": ()}[label.task]
    single = [
        f"all {name} rows of a split by time have {label.column} = {shown(least)}"
        for name, least, most in zip(parts, found[3:6], found[6:], strict=True)
        if name in judged and least == most
    ]
    if single and not is_fixed:
        return _at_random(label), "", f"{single[0]}: rows are divided at random by class"
    note = f"[label.missing_in_split] {single[0]}, which prepare refuses: leave --split out" if single else ""
    suffix = "d" if unit == DAY else "h"
    newest = f"(SELECT * FROM rows WHERE {used} AND {at} >= {middle})"  # noqa: S608 - quoted
    return f"{{by: time, validation: {validation}{suffix}, test: {test}{suffix}}}", newest, note


def median_gap(table: FoundTable, time: EventTime) -> timedelta:
    """Return the median time from an instant with rows to the next one."""
    query = f"""
        SELECT quantile_disc(gap, 0.5) FROM (
            SELECT moment - lag(moment) OVER (ORDER BY moment) AS gap FROM (SELECT DISTINCT epoch_us({time.instant}) AS moment FROM rows)
        ) WHERE gap IS NOT NULL
    """  # noqa: S608 - quoted
    gap = table.value(query)
    return DAY if gap is None else timedelta(microseconds=gap)
