"""What is predicted: the task of a label, by its values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final

from training.errors import DataError, shown
from training.sql.expressions import literal, quoted
from training.starter.column_types import FoundColumn
from training.starter.tables import FoundTable

MAX_CLASSES: Final = 1_000
YES: Final = ("yes", "y", "true", "t", "1", "positive", "pos")
PRIMARY: Final = {"binary": "auc", "multiclass": "log_loss", "regression": "rmse"}


@dataclass(frozen=True, kw_only=True, slots=True)
class GuessedLabel:
    """The label of a table."""

    column: str
    """Of the file."""
    sql: str
    """Over the view of the rows: null where it is missing."""
    task: str
    positive: str = ""
    """Of two texts."""
    rule: str = ""
    """Of two numbers other than 0 and 1."""
    classes: Sequence[str] = ()
    """Texts, where there are some."""
    num_missing: int
    missing: str = ""
    """Text that stands for a missing label, where it stands for a missing number in other columns."""
    note: str = ""


def label_of(table: FoundTable, name: str, *, task: str, positive: str) -> GuessedLabel:
    """Return what is predicted.

    Args:
        task: binary, multiclass or regression; empty: by the values.
        positive: class of a binary label; empty: by its name, else the rarer one.

    Raises:
        DataError: `init.label`, there is no such column, all its values are the same, it is a time, or it does not fit the task.
    """
    column = table.find(name)
    if column is None:
        reason = f": {table.left_out[name]}" if name in table.left_out else ""
        hint = table.listed(name)
        raise DataError("init.label", f"{table.path} has no usable column {shown(name)}{reason}", hint=hint)
    if column.type in ("date", "timestamp"):
        raise _refused(name, f"it is of type {column.type}: a label is a number, a text or a truth value", "derive a column in the file")
    marker = _missing_text(table, column)
    sql = _sql(column, marker)
    query = f"""
        SELECT {sql} AS value, count(*) AS n FROM rows WHERE {sql} IS NOT NULL GROUP BY 1 ORDER BY n DESC, 1
        LIMIT {MAX_CLASSES + 1}
    """  # noqa: S608 - quoted
    found = table.rows(query)
    if len(found) < 2:
        raise _refused(name, "all its values are the same" if found else "it has no value", "name another column")
    missing = table.num_rows - table.value(f"SELECT count({sql}) FROM rows")  # noqa: S608 - quoted
    if column.is_number:
        return _number(column, found, task, missing)
    label = _text(column, found, task, positive, missing)
    return replace(label, sql=sql, missing=marker) if marker else label


def _missing_text(table: FoundTable, column: FoundColumn) -> str:
    """Return the text that other columns have for a missing number, if the label's texts have it; else an empty one."""
    if column.type != "string":
        return ""
    for marker in sorted({text for each in table.columns.values() for text in each.missing}):
        if table.value(f"SELECT count(*) FROM rows WHERE {quoted(column.name)} = {literal(marker)}"):  # noqa: S608 - quoted
            return marker
    return ""


def _sql(column: FoundColumn, missing: str = "") -> str:
    """Return the label in SQL; an empty text is none."""
    plain = f"nullif({quoted(column.name)}, '')" if column.type == "string" else quoted(column.name)
    return f"nullif({plain}, {literal(missing)})" if missing else plain


def _text(column: FoundColumn, found: list[tuple[object, int]], task: str, positive: str, missing: int) -> GuessedLabel:
    is_truth = column.type == "boolean"
    classes = [str(value) for value, _count in found]
    chosen = task or ("binary" if len(classes) == 2 else "multiclass")
    if chosen == "regression":
        raise _refused(column.name, f"its values are no numbers, such as {shown(classes[0])}", "leave --task out, or name another column")
    if len(classes) > MAX_CLASSES:
        raise _refused(column.name, f"it has more than {MAX_CLASSES:,} different values", "derive a text with fewer values")
    if chosen == "binary" and len(classes) != 2:
        raise _refused(column.name, f"it has {len(classes)} classes, a binary label has two", "leave --task out")
    plain = GuessedLabel(column=column.name, sql=_sql(column), task=chosen, num_missing=missing)
    if chosen == "multiclass" or is_truth:
        return GuessedLabel(
            column=column.name,
            sql=quoted(column.name),
            task=chosen,
            classes=() if is_truth else classes,
            num_missing=missing,
        )
    if positive and positive not in classes:
        raise _refused(column.name, f"it has no class {shown(positive)}: {', '.join(map(shown, classes))}", "correct --positive")
    guess = next((each for each in classes if each.lower() in YES), classes[1])
    note = "" if positive else f"the positive class is {shown(guess)}: change data.label.positive if it is the other one"
    return replace(plain, positive=positive or guess, classes=classes, note=note)


def _number(column: FoundColumn, found: list[tuple[object, int]], task: str, missing: int) -> GuessedLabel:
    values = sorted(float(str(value)) for value, _count in found)
    chosen = task or ("binary" if len(values) == 2 else "regression")
    rule, note = "", ""
    if chosen == "binary":
        if len(values) != 2:
            raise _refused(column.name, f"it has {len(values)} different values, a binary label has two", "leave --task out")
        if values != [0.0, 1.0]:
            larger = max(Decimal(str(value)) for value, _count in found)
            # All digits, and no exponent. DuckDB compares longer integers with the double beside the nearest one.
            rule = f"= {larger:f}".removesuffix(".0") + (".0" if abs(larger) >= 2**63 else "")
            note = f"a row is positive where {column.name} {rule}"
    elif chosen == "multiclass" and (values[0] < 0 or any(not value.is_integer() for value in values) or values[-1] >= MAX_CLASSES):
        raise _refused(column.name, "its values are no classes from 0", "leave --task out, or write the classes as texts")
    elif not task and len(values) <= 20 and all(value.is_integer() for value in values):
        note = f"{column.name} has {len(values)} different whole numbers and is taken as an amount: --task multiclass takes them as classes"
    return GuessedLabel(column=column.name, sql=quoted(column.name), task=chosen, rule=rule, num_missing=missing, note=note)


def _refused(name: str, reason: str, hint: str) -> DataError:
    return DataError("init.label", f"label {shown(name)}: {reason}", hint=hint)
