"""Rules of `data.source.derive` with `zone`: instants of the times of a clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from training.spec.reader.problems import nearest
from training.spec.reader.yaml import Path
from training.spec.rules.rule_problems import Violation
from training.spec.sections.data import Data
from training.spec.sections.derived import SourceDerived, sql_of_local

CLOCK_KEYS: Final = ("local", "twice", "by", "missing")
"""Keys that need `zone`."""


def local_times_fit(data: Data) -> Iterator[Violation]:
    """Yield a violation for each derived column whose keys about a clock do not go together."""
    source = data.source
    for name, column in source.derive.items():
        path: Path = ("data", "source", "derive", name)
        if not column.sql:
            yield Violation((*path, "sql"), "field.missing", "the key sql is missing", "write an expression, or local and zone")
        if column.zone is None:
            yield from (
                Violation((*path, key), "field.conflict", f"{key} is of times of a clock", "say where it is: zone: Europe/Berlin")
                for key in CLOCK_KEYS
                if getattr(column, key) != SourceDerived.model_fields[key].default
            )
            continue
        if column.type != "timestamp":
            message = f"{name} is of type {column.type}, and zone makes instants"
            yield Violation((*path, "type"), "column.type", message, "type: timestamp")
        yield from _local_fits(path, column, source.types)
        if column.by and column.twice != "in_order":
            yield Violation((*path, "by"), "field.conflict", "by is of twice: in_order", "set twice: in_order, or remove it")
        for other in [name for name in column.by if name not in source.columns]:
            message = f"{other} is not a column of table {source.table}"
            yield Violation((*path, "by"), "column.unknown", message, nearest(other, source.columns))


def _local_fits(path: Path, column: SourceDerived, types: Mapping[str, str]) -> Iterator[Violation]:
    if column.local is None:
        return
    if column.sql != sql_of_local(column.local):
        yield Violation((*path, "local"), "field.conflict", "there are the keys local and sql", "keep one of the two")
    kind = types.get(column.local)
    if kind not in (None, "string", "date"):
        what, hint = ("an instant already", f"use {column.local} itself") if kind == "timestamp" else ("no time", "")
        yield Violation((*path, "local"), "column.type", f"{column.local} is of type {kind}, {what}: local is a text or a date", hint)
