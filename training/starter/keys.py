"""Columns that identify a row."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Final

from training.errors import DataError, shown
from training.sql.expressions import quoted
from training.starter.column_names import free
from training.starter.column_types import FoundColumn
from training.starter.label_task import GuessedLabel
from training.starter.tables import FoundTable
from training.starter.time_columns import EventTime

MAX_KEY_TRIALS: Final = 60
ID_NAME: Final = re.compile(r"(^|_)(id|key|no|nr|num|number|index|row|rownames)$", re.IGNORECASE)
KEY_TYPES: Final = frozenset({"int8", "int16", "int32", "int64", "string", "date", "timestamp"})


def key_of(
    table: FoundTable, time: EventTime, label: GuessedLabel, late: dict[str, str], named: Sequence[str], *, entities: Sequence[str] | None
) -> tuple[Sequence[str], str]:
    """Return the key, and the column with the number of the row where no columns of the file are one.

    Args:
        late: columns that no model sees.
        named: the key that the command line names; empty: it is found.
        entities: columns that identify a row together with the time, of rows that are series; None: they are none.

    Raises:
        DataError: `init.key`.
    """
    if named:
        return _checked_key(table, time, named), ""
    if entities is not None:
        # An id would make each row a series of its own.
        return [*entities, time.name], ""
    if found := _key(table, time, label, late):
        return found, ""
    if not table.files.is_one_per_partition:
        hint = "name them: --key COLUMN[,COLUMN]; rows can be numbered where a table, or each partition of it, is one file"
        raise DataError("init.key", f"{table.path}: no columns were found that identify a row", hint=hint)
    number = free("row_number", table.taken)
    return ([time.name, number] if table.files.partition else [number]), number


def _checked_key(table: FoundTable, time: EventTime, key: Sequence[str]) -> Sequence[str]:
    for name in key:
        if name != time.name and table.find(name) is None:
            raise DataError("init.key", f"{table.path} has no column {shown(name)}", hint=table.listed(name))
    found = [column.name if (column := table.find(name)) is not None else name for name in key]
    # The file's column of the time stands for the instant.
    named = [time.name if name == time.column else name for name in found]
    if not is_unique(table, [_expression(table, time, name) for name in named]):
        message = f"{', '.join(named)} do not identify a row: there are two rows with the same values, or a missing one"
        raise DataError("init.key", message, hint="name more columns, or leave --key out")
    return named


def _key(table: FoundTable, time: EventTime, label: GuessedLabel, late: dict[str, str]) -> Sequence[str]:
    usable = [
        column
        for column in table.columns.values()
        if column.type in KEY_TYPES and not column.num_missing and column.name not in (label.column, time.column, *late)
    ]
    counts = {column.name: column.num_values for column in usable}
    ids = [column.name for column in usable if may_be_id(table, column)]
    others = sorted((name for name in counts if name not in ids), key=lambda name: (counts[name], name))
    others = [name for name in others if counts[name] > 1]
    if time.is_constant or time.is_generated:
        # Measurements that happen to differ are no key.
        named = [name for name in others if ID_NAME.search(name)]
        both = [[*named, time.name]] if named and time.is_generated else [named] if named else []
        few = [*([name] for name in ids), *both]
        return next((trial for trial in few if is_unique(table, [_expression(table, time, name) for name in trial])), [])
    trials: Iterator[tuple[str, ...]] = itertools.chain(
        ((name,) for name in ids),
        [(time.name,)],
        ((name, time.name) for name in others),
        ((*pair, time.name) for pair in itertools.combinations(others, 2)),
        itertools.combinations([*ids, *others], 2),
        [(*others, time.name)],
    )
    for trial in itertools.islice(trials, MAX_KEY_TRIALS):
        if is_unique(table, [_expression(table, time, name) for name in trial]):
            return list(trial)
    return []


def _expression(table: FoundTable, time: EventTime, name: str) -> str:
    return time.instant if name == time.name else quoted(name)


def is_unique(table: FoundTable, expressions: Sequence[str]) -> bool:
    listed = ", ".join(expressions)
    missing = " OR ".join(f"({each}) IS NULL" for each in expressions)
    query = f"SELECT 1 FROM rows GROUP BY {listed} HAVING count(*) > 1 OR bool_or({missing}) LIMIT 1"  # noqa: S608 - quoted
    return table.value(query) is None


def may_be_id(table: FoundTable, column: FoundColumn) -> bool:
    """Return whether a column may number or name its rows: of whole numbers, such that are dense, or called so."""
    # The count is an estimate.
    if column.num_values < 0.8 * table.num_rows or column.type not in KEY_TYPES:
        return False
    if not column.type.startswith("int") or ID_NAME.search(column.name):
        return True
    low, high = table.rows(f"SELECT min({quoted(column.name)}), max({quoted(column.name)}) FROM rows")[0]  # noqa: S608
    return bool(high - low < 2 * table.num_rows)
