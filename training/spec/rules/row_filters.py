"""Rules of which rows are used: by `where` and `sample`, not by what is known only afterwards, and by the versions of a row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from training.errors import shown
from training.spec.reader.problems import nearest
from training.spec.reader.yaml import Path
from training.spec.rules.leakage import Lateness
from training.spec.rules.rule_problems import Violation
from training.spec.sections.data import Data
from training.spec.sections.prepare import Prepare
from training.sql.analysis import objection, unknown_columns, words

_WHERE: Final[Path] = ("data", "source", "where")


def row_filters_fit(data: Data) -> Iterator[Violation]:
    """Yield a violation for a `where` that is no expression over the table's columns, and for keys that rows cannot be sampled by."""
    source = data.source
    if source.where is not None:
        sql, columns = source.where.sql, [*source.columns, *source.derive]
        fault = objection(sql)
        if fault:
            hint = "write one expression over the row's columns: origin = 'JFK'"
            yield Violation((*_WHERE, "sql"), "sql.forbidden", f"the SQL of where {fault}", hint)
        unknown = [] if fault else unknown_columns(sql, columns)
        for word in unknown:
            message = f"the SQL of where mentions {shown(word)}, which is not a column of {source.table}"
            yield Violation((*_WHERE, "sql"), "column.unknown", message, nearest(word, columns))
        if not fault and not unknown and not words(sql) & {name.lower() for name in columns}:
            message = "the SQL of where mentions no column, so it selects every row or none"
            yield Violation((*_WHERE, "sql"), "where.constant", message, "leave where out, or compare a column")
    if source.sample is not None:
        by = source.key if data.group is None else (data.group,)
        for name in by:
            if source.types.get(name) in ("float", "double"):
                message = f"rows are sampled by {name}, which is of type {source.types[name]}: its equal values may have several texts"
                yield Violation(("data", "source", "sample"), "column.type", message, "use a key of integers, texts, dates or times")


def versions_fit(data: Data) -> Iterator[Violation]:
    """Yield a violation for each column that versions of rows are chosen by, and that is not there or of another type."""
    source = data.source
    for key, name, wanted in (("newest_by", source.newest_by, "timestamp"), ("deleted_by", source.deleted_by, "boolean")):
        path: Path = ("data", "source", key)
        if name is None:
            continue
        if name not in source.types:
            yield Violation(path, "column.unknown", f"{name} is not a column of {source.table}", nearest(name, source.types))
        elif source.types[name] != wanted:
            message = f"{name} is of type {source.types[name]}, and {key} needs a {wanted}"
            yield Violation(path, "column.type", message, f"derive one: data.source.derive: {{…: {{type: {wanted}, sql: …}}}}")
    if source.deleted_by is not None and source.newest_by is None:
        message = "deleted_by needs newest_by"
        yield Violation(("data", "source", "deleted_by"), "field.conflict", message, "name the time of a version: newest_by: updated_at")


def row_filters_are_known(data: Data, prepare: Prepare) -> Iterator[Violation]:
    """Yield a violation where rows are selected by a late column, so that the model learns from other rows than it will score."""
    where = data.source.where
    if where is None or where.because is not None:
        return
    lateness = Lateness(data, prepare)
    columns = {name.lower(): name for name in data.source.types}
    late = sorted(columns[word] for word in words(where.sql) & columns.keys() if lateness.why(word) is not None)
    if late:
        message = f"rows are selected by {late[0]}, known only after the decision: {late[0]} {lateness.why(late[0])}"
        hint = "when scoring, no row can be left out by it; if that is as it should be, say why: `because: …`"
        yield Violation((*_WHERE, "sql"), "leakage.rows", message, hint)
