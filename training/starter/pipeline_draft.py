"""What the pipeline of a table is: key, split, features, windows, task. Every choice that could be wrong is a note for the reader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final

import numpy as np

from training.contracts import EPOCH
from training.data.features.rounding_loss import SAMPLED_VALUES, WARNED_LOSS, rounding_loss
from training.errors import DataError, counted, shown
from training.sql.expressions import literal, quoted
from training.starter.column_types import FoundColumn
from training.starter.command_options import Choices
from training.starter.keys import is_unique, key_of, may_be_id
from training.starter.label_task import GuessedLabel
from training.starter.leakage import suspects
from training.starter.sentinels import far_label, infinite_numbers, sentinels
from training.starter.series import Series, series_of
from training.starter.splits import DAY, median_gap, span_of, split_of
from training.starter.strange_times import StrangeTimes, strange_times
from training.starter.tables import FoundTable, Report
from training.starter.time_columns import EventTime, is_text_time, later_times, likely_times
from training.starter.yaml_scalars import duration, flow_list, scalar

FEW_VALUES: Final = 50
FEW_TIMES: Final = 8
"""As `training.evaluation.bootstrap.blocks.FEW_BLOCKS`, whose import takes a second."""
TOP: Final = 1_000
MANY_WORDS: Final = 3.0
WEEK: Final = timedelta(days=7)
YEAR: Final = timedelta(days=365)
PARTS: Final = {
    "hour": ("hour", DAY, 2 * DAY),
    "day_of_week": ("dayofweek", WEEK, 2 * WEEK),
    "month": ("month", YEAR, YEAR),
    "day_of_year": ("dayofyear", YEAR, YEAR),
}
"""Part of a time to its SQL function, its cycle, and the shortest table that shows it."""
NO_STEP: Final = (
    "rows have different times and no regular step, so they are no series and no earlier label is a feature: where a label is known "
    "before the next row, add a lag of it (data.windows)"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """A pipeline that `generated_files` writes down."""

    label: GuessedLabel
    key: Sequence[str]
    row_number: str
    """Column with the number of the row in its file, which is part of the key; empty: the key is in the file."""
    late: dict[str, str]
    """Columns that are suspected to be known only after the label, with the reason."""
    skipped: dict[str, str]
    """Columns that are read and are no features, with the reason."""
    features: dict[str, str]
    """Name to the mapping as YAML has it."""
    windows: dict[str, str]
    split: str
    window: timedelta
    night: date
    """The day after the newest row, or today if that is earlier, in the pipeline's time zone."""
    slices: Sequence[str]
    entities: Sequence[str]
    """Of rows that all have one instant: what is independent of what, which no time says."""
    is_recent: bool
    """Whether the newest row is of these days, so that a schedule makes sense."""
    notes: Sequence[str]


def drafted(table: FoundTable, time: EventTime, label: GuessedLabel, choices: Choices, *, report: Report) -> Draft:
    """Decide what the pipeline is.

    Args:
        report: is given which column of how many is looked at.

    Raises:
        DataError: `init.key`, no columns identify a row; `init.features`, nothing is left to learn from; `init.split`, rows cannot be
            divided so; `init.time`, as `span_of`.
    """
    strange = strange_times(table, time, choices.now)
    first, last = _range(table, time, strange)
    span = span_of(table, time, first, last, choices)
    names = [name for name in table.columns if name not in (label.column, time.column, time.clock_column)]
    late = suspects(table, label.sql, names=names, is_number=label.task == "regression", report=report)
    split, notes, test_rows = split_of(table, time, label, span, choices, late=late, report=report)
    is_number = label.task == "regression"
    series = series_of(table, time, zone=choices.zone, excluded=(label.column, *late)) if first != last else None
    # Classes have no lags, which such a key is for: an id stays theirs.
    entities = series.entities if series is not None and is_number else None
    found_key, row_number = key_of(table, time, label, late, choices.key, entities=entities)
    features, skipped = _features(table, names, late, found_key)
    if parts := _parts(table, time, strange, last - first, choices.zone):
        features[time.name] = f"{{transform: datetime, parts: {flow_list(parts)}}}"
    windows = _windows(table, label, series) if series is not None and is_number else {}
    if windows:
        features |= dict.fromkeys(windows, _number_transform(table, table.columns[label.column]))
    if not features:
        hint = _reasons(late, skipped) or "add columns to the table"
        raise DataError("init.features", f"{table.path}: no column is left to learn from", hint=hint)
    return Draft(
        label=label,
        key=found_key,
        row_number=row_number,
        late=late,
        skipped=skipped,
        features=features,
        windows=windows,
        split=split,
        window=span.window,
        night=span.night,
        slices=_slices(table, features),
        entities=_independent(table, found_key, choices) if first == last else (),
        is_recent=not time.is_constant and choices.now - last < timedelta(days=3),
        notes=[
            *strange.notes,
            *span.notes,
            *notes,
            *(_few_times(table, time, found_key, test_rows) if first != last else ()),
            *time.clock.notes,
            *_notes(table, time, row_number, choices.zone),
            *spellings(table, [label.column, *features]),
            *sentinels(table, [label.column, *features]),
            *far_label(table, label),
            *infinite_numbers(table),
            *(_measured(time, features, [*series.entities, *found_key, *windows]) if series is not None else ()),
            *(column.note for column in table.columns.values() if column.note),
            *([NO_STEP] if is_number and series is None and is_unique(table, [time.instant]) else []),
        ],
    )


def _range(table: FoundTable, time: EventTime, strange: StrangeTimes) -> tuple[datetime, datetime]:
    query = f"SELECT epoch_us(min({time.instant})), epoch_us(max({time.instant})) FROM rows WHERE NOT ({strange.sql})"  # noqa: S608 - quoted
    first, last = (EPOCH + timedelta(microseconds=value) for value in table.rows(query)[0])
    return first, last


def _measured(time: EventTime, features: dict[str, str], known_before: Sequence[str]) -> list[str]:
    """Return a note on the features of a series that may be measured when its label is."""
    names = [name for name in features if name not in (*known_before, time.name, time.column)]
    if not names:
        return []
    listed = ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
    return [f"{listed} must be known before the label of their row: declare what is measured with it known: after, and use its lags"]


def _notes(table: FoundTable, time: EventTime, row_number: str, zone: str) -> list[str]:
    notes = []
    if time.is_constant:
        likely = ", ".join(likely_times(table)[:5])
        notes.append(f"if a column says when a row happened, name it: --time COLUMN{f' ({likely})' if likely else ''}")
    for name in later_times(table, time):
        kind = "" if table.columns[name].type == "timestamp" else f"type: timestamp, zone: {zone}, "
        words = f"{name} is never before {time.name}: if the label is known only then, set data.label.known_at: {name}"
        notes.append(f"{words} and declare it with {kind}known: after")
    if row_number:
        notes.append(f"{row_number} is the number of the row in its file: rows that are added must come last")
    if table.num_rows < 1000:
        notes.append(f"{table.num_rows:,} rows are few: metrics have wide intervals, and a gate may not be passed by chance alone")
    return notes


def _few_times(table: FoundTable, time: EventTime, key: Sequence[str], test_rows: str) -> list[str]:
    """Return a note where no later model can be promoted: the test rows have too few times, and the key names nothing with several rows."""
    num_times = table.value(f"SELECT count(DISTINCT {time.instant}) FROM {test_rows}")  # noqa: S608 - quoted
    in_file = [quoted(name) for name in key if name in table.columns and name != time.name]
    num_days = table.value(f"SELECT count(DISTINCT epoch_us({time.instant}) // 86400000000) FROM {test_rows}")  # noqa: S608 - quoted
    if num_times >= FEW_TIMES and num_days < FEW_TIMES:
        return [
            f"the test rows are of {num_days} days, which are {num_days} blocks of evaluate.block (1d): with fewer than {FEW_TIMES} the "
            "interval of a gain is wide or unbounded. What helps is a longer data.split.test, or a shorter evaluate.block"
        ]
    if num_times >= FEW_TIMES or (in_file and not is_unique(table, in_file)):
        return []
    return [
        f"the test rows have {counted(num_times, 'time')}: below {FEW_TIMES} the interval of a gain over the champion is unbounded, so "
        "each later model is rejected. Name what is independent and has several rows (evaluate.entities), or have a person decide "
        "(evaluate.severity: {significance: approve})"
    ]


def _reasons(*found: dict[str, str]) -> str:
    return "; ".join(f"{name}: {reason}" for names in found for name, reason in names.items())[:500]


def _features(table: FoundTable, names: Sequence[str], late: dict[str, str], key: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
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
            features[name] = chosen
    return features, skipped


def _parts(table: FoundTable, time: EventTime, strange: StrangeTimes, length: timedelta, zone: str) -> list[str]:
    """Return the parts of the rows' times that vary, of those whose cycle has several times: 1 January has any day of the week."""
    gap = median_gap(table, time)
    counts = ", ".join(f"count(DISTINCT {function}(moment))" for function, _cycle, _least in PARTS.values())
    moments = f"SELECT timezone({literal(zone)}, {time.instant}) AS moment FROM rows WHERE NOT ({strange.sql})"  # noqa: S608 - quoted
    found = table.rows(f"SELECT {counts} FROM ({moments})")[0]  # noqa: S608 - quoted
    return [
        part
        for (part, (_function, cycle, least)), count in zip(PARTS.items(), found, strict=True)
        if count > 1 and gap < cycle and length >= least
    ]


def _feature(table: FoundTable, column: FoundColumn, *, is_key: bool) -> tuple[str, str]:
    """Return a column's transform as YAML has it, or why it is no feature."""
    count, known = column.num_values, table.num_rows - column.num_missing
    if count <= 1:
        return "", "all its values are the same"
    if column.type in ("date", "timestamp"):
        return "", "a time: add it (transform: datetime) if it is known when the prediction is made"
    if column.type == "boolean" or column.is_number:
        if column.type.startswith("int") and may_be_id(table, column) and is_unique(table, [quoted(column.name)]):
            return "", "each row has its own value: an id"
        return _number_transform(table, column), ""
    if is_text_time(table, column):
        return "", "a time in a text: --time reads it; for a feature, derive a timestamp of it"
    if count <= FEW_VALUES:
        return "{transform: category}", ""
    if count <= known / 2 and not (is_key and count > known / 10):
        return f"{{transform: category, top: {TOP}}}", ""
    words = table.value(f"SELECT avg(len(string_split({quoted(column.name)}, ' '))) FROM rows")  # noqa: S608 - quoted
    if (words or 0) >= MANY_WORDS:
        return "{transform: text}", ""
    return "", "nearly each row has its own value: an id, or a text without words"


def _number_transform(table: FoundTable, column: FoundColumn) -> str:
    """Return the transform of numbers: one that subtracts the mean where cells of 32 bits would lose digits."""
    query = f"SELECT value FROM (SELECT CAST({quoted(column.name)} AS DOUBLE) AS value FROM rows) WHERE isfinite(value)"  # noqa: S608 - quoted
    values = table.connection.sql(f"{query} USING SAMPLE {SAMPLED_VALUES} ROWS (reservoir, 1)").fetchnumpy()["value"]
    is_lossy = len(values) and rounding_loss(np.asarray(values))[0] > WARNED_LOSS
    return "{transform: standard, fill: keep}" if is_lossy else "{transform: number}"


def _independent(table: FoundTable, key: Sequence[str], choices: Choices) -> Sequence[str]:
    """Return the columns of what is independent: the groups of a split by group, else the rows."""
    groups = table.find(choices.split_column) if choices.split == "group" else None
    return key if groups is None else [groups.name]


def _windows(table: FoundTable, label: GuessedLabel, series: Series) -> dict[str, str]:
    """Return lags of the label: a row's label is known one step later."""
    step = max(series.step, timedelta(seconds=1))
    by, known = f"by: {flow_list([*series.entities])}", f"available_after: {duration(step)}"
    found = {"last_value": f"{{kind: lag, column: {scalar(label.column)}, {by}, rows: 1, {known}}}"}
    for name, length in (("day_before", DAY), ("week_before", WEEK)):
        if step < length:
            tolerance = f"tolerance: {duration(step)}"
            found[name] = f"{{kind: lag, column: {scalar(label.column)}, {by}, time: {duration(length)}, {tolerance}, {known}}}"
    found["recent_mean"] = f"{{kind: rolling, function: mean, column: {scalar(label.column)}, {by}, rows: 7, {known}}}"
    return {name if name not in table.columns else f"{name}_": text for name, text in found.items()}


def _slices(table: FoundTable, features: dict[str, str]) -> list[str]:
    few = [name for name, text in features.items() if text == "{transform: category}"]
    return [name for name in few if 2 <= table.columns[name].num_values <= 12][:2]


MAX_VALUES: Final = 1_000
MAX_SHOWN: Final = 5


def spellings(table: FoundTable, names: Sequence[str]) -> Iterator[str]:
    """Yield a note for each of the columns of texts that has several spellings of a value, with the expression that makes one of them."""
    for name in names:
        column = table.columns.get(name)
        if column is None or column.type != "string":
            continue
        plain = f"rtrim(lower(trim(nfc_normalize({quoted(name)}))), '.')"
        text = quoted(name)
        values = f"SELECT DISTINCT {text} FROM rows WHERE {text} IS NOT NULL LIMIT {MAX_VALUES}"  # noqa: S608 - quoted
        query = f"SELECT list({text} ORDER BY {text}) FROM ({values}) GROUP BY {plain} HAVING count(*) > 1 ORDER BY 1"  # noqa: S608 - quoted
        groups = table.rows(query)
        if groups:
            alike = ", ".join(shown(text) for text in groups[0][0][:MAX_SHOWN])
            more = f" (and {len(groups) - 1} more values)" if len(groups) > 1 else ""
            derived = f"{name}_plain: {{type: string, sql: {scalar(plain)}}}"
            yield f"{name} has one value in several spellings, {alike}{more}: use instead, in data.source.derive, {derived}"
