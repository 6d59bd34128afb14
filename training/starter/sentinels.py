"""Numbers far from all others of their column, such as -999 for a missing value, a label that may be a mistake, and infinite ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from training.errors import counted
from training.sql.expressions import quoted
from training.starter.column_types import counts_of
from training.starter.label_task import GuessedLabel
from training.starter.tables import FoundTable

NINES: Final = (999, 9_999, 99_999, 999_999, 9_999_999)
LEAST: Final = 2
"""Rows; a value that is there once is no mark."""
FAR: Final = 10
"""Times the distance from the median that 999 of 1,000 values keep."""


def sentinels(table: FoundTable, names: Sequence[str]) -> Iterator[str]:
    """Yield a note for each of the columns whose least or largest value is -999, 9999, …, and farther from the others than they span."""
    numbers = [name for name in names if name in table.columns and table.columns[name].is_number]
    if not numbers:
        return
    nines = ", ".join(map(str, NINES))
    wanted = [
        f"{what}({value}) FILTER (isfinite({value}){others})"
        for value in (f"CAST({quoted(name)} AS DOUBLE)" for name in numbers)
        for others in ("", f" AND abs({value}) NOT IN ({nines})")
        for what in ("min", "max")
    ]
    found = table.rows(f"SELECT {', '.join(wanted)} FROM rows")[0]  # noqa: S608 - quoted
    for number, name in enumerate(numbers):
        least, most, low, high = found[4 * number : 4 * number + 4]
        if low is None:
            continue
        for mark in sorted({least, most} - {low, high}):
            (count,) = counts_of(table.connection, [f"count(*) FILTER ({quoted(name)} = {mark:.0f})"], "rows")
            if min(abs(mark - low), abs(mark - high)) > high - low and count >= LEAST:
                text = f'missing: ["{mark:.0f}"], nullable: true in its column'
                if table.files.kind != "csv":
                    text = f"a column with nullif({name}, {mark:.0f}) in data.source.derive"
                yield f"{mark:.0f} in {name} ({counted(count, 'row')}) may stand for a missing value and is read as a number; if so, {text}"


def infinite_numbers(table: FoundTable) -> Iterator[str]:
    """Yield a note for each column that is read and has infinite numbers: `validate` fails for them."""
    names = [name for name, column in table.columns.items() if column.is_number]
    wanted = [f"count(*) FILTER (isinf(CAST({quoted(name)} AS DOUBLE)))" for name in names]
    for name, count in zip(names, counts_of(table.connection, wanted, "rows"), strict=True):
        if count:
            remedy = f'data.source.where: {{sql: "{name} IS NULL OR isfinite({name})", because: …}} leaves such rows out'
            if table.files.kind == "csv":
                remedy = "missing: […] with their texts, nullable: true in its column"
            yield f"[data.nonfinite] {name} is infinite in {counted(count, 'row')}, which validate refuses: {remedy}"


def far_label(table: FoundTable, label: GuessedLabel) -> Iterator[str]:
    """Yield a note if a number to be predicted is so far from the others that its row alone can decide the errors."""
    if label.task != "regression":
        return
    query = f"""
        WITH labels AS (SELECT CAST({label.sql} AS DOUBLE) AS value FROM rows WHERE isfinite(CAST({label.sql} AS DOUBLE))),
        distances AS (SELECT value, abs(value - (SELECT median(value) FROM labels)) AS distance FROM labels)
        SELECT arg_max(value, distance), max(distance), quantile_disc(distance, 0.999) FROM distances
    """  # noqa: S608 - quoted
    value, farthest, usual = table.rows(query)[0]
    if usual and farthest > FAR * usual:
        rule = f'data.source.where: {{sql: "{label.column} <> {value!r}", because: …}}'
        yield (
            f"{value:,.10g} in {label.column} is {farthest / usual:,.0f} times as far from the median as 999 of 1,000 values: one such row "
            f"can decide rmse, and what trees learn; if it is a mistake, leave it out ({rule})"
        )
