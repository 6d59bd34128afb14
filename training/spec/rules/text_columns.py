"""Rules of columns that the file has as texts: which of them can be numbers, and in which form."""

from __future__ import annotations

from collections.abc import Iterator

from training.spec.reader.yaml import Path
from training.spec.rules.rule_problems import Violation
from training.spec.rules.weights import NUMBERS
from training.spec.sections.data import Data


def text_columns_fit(data: Data) -> Iterator[Violation]:
    """Yield a violation for each form of numbers that a column cannot have, and for texts of a column that no file has."""
    for start, table in data.tables():
        for name, column in getattr(table, "columns", {}).items():
            path: Path = (*start, "columns", name)
            form = column.number_format
            if column.is_text_in_file and not column.is_in_file:
                key = "missing" if form is None else "number_format"
                message = f"{name} has the key generated, so the file has no texts of it"
                yield Violation((*path, key), "field.conflict", message, "remove one of the two keys")
            if form is None:
                continue
            if column.type not in NUMBERS:
                message = f"number_format is of numbers, and {name} is of type {column.type}"
                yield Violation((*path, "number_format"), "field.conflict", message, "correct the type, or remove the key")
            if form.decimal == form.thousands:
                message = f"{form.decimal!r} cannot be before the fraction and between thousands"
                yield Violation((*path, "number_format", "thousands"), "field.conflict", message, 'decimal: ",", thousands: "."')
