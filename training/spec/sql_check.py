"""Checks the SQL of a pipeline's file as the stages do, with DuckDB on tables without rows: syntax, functions and types.

Not rules of the spec: DAG files are parsed every few seconds, and DuckDB's import alone would double that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import duckdb

from training.errors import DataError, first_line, shown
from training.spec.pipeline_spec import PipelineSpec
from training.spec.reader.yaml import Path
from training.spec.rules.rule_problems import Violation
from training.sql.expressions import SQL_TYPES, columns_of, hardened, quoted

_HINT: Final = "write one SQL expression over the columns of one row, with the declared types"


@dataclass(frozen=True, kw_only=True)
class _Expression:
    path: Path
    name: str
    """For messages."""
    sql: str
    types: Mapping[str, str]
    """Columns that it may use."""


def sql_violations(spec: PipelineSpec) -> list[Violation]:
    """Return what DuckDB refuses in the expressions of a valid spec: `derive.expression`, `derive.failed`."""
    found: list[Violation] = []
    expressions = list(_expressions(spec))
    if not expressions:
        # Opening DuckDB costs more than the rest of a check.
        return found
    with hardened() as connection:
        for expression in expressions:
            try:
                columns_of(expression.sql, list(expression.types), where=expression.name)
                connection.execute(f"EXPLAIN SELECT (\n{expression.sql}\n) FROM ({_no_rows(expression.types)})")  # noqa: S608 - checked
            except DataError as err:
                found.append(Violation(expression.path, err.code, err.message, err.hint))
            except duckdb.Error as err:
                message = f"{expression.name}: {shown(expression.sql)} does not fit the types of its columns: {first_line(err)}"
                found.append(Violation(expression.path, "derive.failed", message, _HINT))
    return found


def _expressions(spec: PipelineSpec) -> Iterator[_Expression]:
    source, joined = spec.data.source, spec.data.frame_types()
    for name, column in source.derive.items():
        types = {other: kind for other, kind in source.types.items() if other != name}
        path: Path = ("data", "source", "derive", name, "sql")
        yield _Expression(path=path, name=f"column {shown(name)} of table {shown(source.table)}", sql=column.sql, types=types)
    if source.where is not None:
        path = ("data", "source", "where", "sql")
        yield _Expression(path=path, name=f"where of table {shown(source.table)}", sql=source.where.sql, types=source.types)
    for name, window in spec.data.windows.items():
        table = spec.data.table_of(window)
        if window.where is not None:
            types = source.types if table is None else {column: declared.type for column, declared in table.columns.items()}
            yield _Expression(path=("data", "windows", name, "where"), name=f"data.windows.{name}.where", sql=window.where, types=types)
    made = dict(joined)
    for name, prepared in spec.prepare.derive_in_order():
        yield _Expression(path=("prepare", "derive", name, "sql"), name=f"prepare.derive.{name}", sql=prepared.sql, types=dict(made))
        made[name] = prepared.type
    if spec.evaluate.baseline.sql is not None:
        path = ("evaluate", "baseline", "sql")
        yield _Expression(path=path, name="evaluate.baseline.sql", sql=spec.evaluate.baseline.sql, types=joined)


def _no_rows(types: Mapping[str, str]) -> str:
    columns = (f"CAST(NULL AS {SQL_TYPES[kind]}) AS {quoted(name)}" for name, kind in types.items())
    return f"SELECT {', '.join(columns)} LIMIT 0"
