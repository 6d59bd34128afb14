"""Columns that are suspected to be the label in other words: known only afterwards, or made of it."""

from __future__ import annotations

from typing import Final

from training.sql.expressions import quoted
from training.starter.column_types import FoundColumn, counts_of
from training.starter.tables import FoundTable, Report

SURE: Final = 0.98
"""Share of rows whose class a column determines, rank correlation, or AUC: as `evaluate.checks.leakage`."""
MAX_VALUES_SHARE: Final = 0.2
"""A column with more different values for each row says little about the class of another row."""


def suspects(table: FoundTable, label: str, *, names: list[str], is_number: bool, report: Report, rows: str = "rows") -> dict[str, str]:
    """Return the columns that nearly determine the label, with the reason.

    Args:
        label: SQL of the label; null where it is missing.
        names: of the columns that could be features.
        is_number: whether the label is a number, rather than a class.
        report: is given which column of how many is looked at.
        rows: SQL of the rows that are looked at.
    """
    found: dict[str, str] = {}
    counted = ["count(*)", *(f"approx_count_distinct({quoted(name)})" for name in names)]
    num_rows, *counts = counts_of(table.connection, counted, rows)
    # Where nearly all rows have one class, no value says more than that.
    has_classes = not is_number and _purity(table, "0", label, rows) < SURE - 0.03
    for number, (name, count) in enumerate(zip(names, counts, strict=True), start=1):
        report("leaks", number, len(names))
        column = table.columns[name]
        if has_classes and (reason := _of_presence(table, column, label, rows)):
            found[name] = reason
        elif column.is_number and (reason := _of_order(table, column, label, rows, is_number=is_number)):
            found[name] = reason
        elif has_classes and count <= max(2, num_rows * MAX_VALUES_SHARE) and (reason := _of_values(table, column, label, rows)):
            found[name] = reason
    return found


def _of_presence(table: FoundTable, column: FoundColumn, label: str, rows: str) -> str:
    """A value that is there only for one class: `refund_date` of a refunded order."""
    if not 0 < column.num_missing < table.num_rows:
        return ""
    share = _purity(table, f"({quoted(column.name)} IS NULL)", label, rows)
    return f"whether it is empty gives the label in {share:.1%} of the rows" if share >= SURE else ""


def _of_values(table: FoundTable, column: FoundColumn, label: str, rows: str) -> str:
    share = _purity(table, quoted(column.name), label, rows)
    return f"its value gives the label in {share:.1%} of the rows" if share >= SURE else ""


def _purity(table: FoundTable, by: str, label: str, rows: str) -> float:
    """Return the share of rows that have the most frequent class of their value."""
    counts = f"SELECT {by} AS value, {label} AS class, count(*) AS n FROM {rows} WHERE {label} IS NOT NULL GROUP BY ALL"  # noqa: S608 - quoted
    query = f"SELECT sum(best) / sum(total) FROM (SELECT max(n) AS best, sum(n) AS total FROM ({counts}) GROUP BY value)"  # noqa: S608
    return float(str(table.value(query) or 0))


def _of_order(table: FoundTable, column: FoundColumn, label: str, rows: str, *, is_number: bool) -> str:
    """Rank correlation with a number, or the AUC of one class against another."""
    where = f"WHERE {quoted(column.name)} IS NOT NULL AND {label} IS NOT NULL"
    ranked = f"SELECT rank() OVER (ORDER BY {quoted(column.name)}) AS a, {{}} AS b FROM {rows} {where}"  # noqa: S608 - quoted
    if is_number:
        query = f"SELECT corr(a, b) FROM ({ranked.format(f'rank() OVER (ORDER BY {label})')})"  # noqa: S608 - quoted
        strength = abs(table.value(query) or 0.0)
        # Two constants have none; DuckDB says NaN.
        return f"its rank correlation with the label is {strength:.3f}" if SURE <= strength <= 1.01 else ""
    classes = table.rows(f"SELECT {label} AS class FROM {rows} {where} GROUP BY 1 ORDER BY 1 LIMIT 3")  # noqa: S608
    if len(classes) != 2:
        return ""
    query = f"""
        WITH numbered AS (
            SELECT {label} AS class, rank() OVER (ORDER BY {quoted(column.name)})
                + (count(*) OVER (PARTITION BY {quoted(column.name)}) - 1) / 2.0 AS place FROM {rows} {where}
        )
        SELECT sum(place), count(*), (SELECT count(*) FROM numbered) FROM numbered WHERE class = (SELECT min(class) FROM numbered)
    """  # noqa: S608 - quoted
    places, num_first, num_rows = table.rows(query)[0]
    pairs = num_first * (num_rows - num_first)
    auc = (float(places) - num_first * (num_first + 1) / 2) / pairs if pairs else 0.5
    strength = max(auc, 1 - auc)
    return f"alone it has an AUC of {strength:.3f}" if strength >= SURE else ""
