"""What `check` finds in the SQL of a pipeline's file before a night does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from training.errors import Problem
from training.spec.check import check_files

AGE = 'aircraft_age: {type: double, sql: "year - built_year"}'
SOURCE_SQL = "timezone('America/New_York', make_timestamp(year, month, day, 0, 0, 0)"


def problems(folder: Path, text: bytes) -> tuple[Problem, ...]:
    path = folder / "flight_delay.yaml"
    path.write_bytes(text)
    specs, errors = check_files([str(path)])
    assert not (specs and errors)
    return errors[0].problems if errors else ()


@pytest.mark.parametrize(
    ("sql", "code", "reason"),
    [
        ("year - ", "derive.expression", "syntax error"),
        ("no_such_function(year, built_year)", "derive.expression", "no_such_function"),
        ("year - built_year AS age", "derive.expression", "an alias"),
        ("year - built_year, month", "derive.expression", "more than one"),
        ("year + carrier - DATE '2013-01-01'", "derive.failed", "does not fit the types"),
        ("make_date(year)", "derive.failed", "make_date"),
    ],
)
def test_check_names_the_field_of_sql_that_duckdb_refuses(
    tmp_path: Path, changed: Callable[..., bytes], sql: str, code: str, reason: str
) -> None:
    (problem,) = problems(tmp_path, changed("flight_delay", (AGE, f'aircraft_age: {{type: double, sql: "{sql}"}}')))
    assert (problem.code, problem.field) == (code, "prepare.derive.aircraft_age.sql")
    assert problem.line
    assert reason in problem.message
    assert problem.hint


def test_check_looks_at_derived_columns_of_the_source_at_where_and_at_the_baseline(tmp_path: Path, changed: Callable[..., bytes]) -> None:
    changes = [(SOURCE_SQL, SOURCE_SQL.replace("day, 0, 0, 0", "day, 0, 0")), ("  source:\n", "  source:\n    where: {sql: year >}\n")]
    found = problems(tmp_path, changed("flight_delay", *changes))
    assert {(problem.field, problem.code) for problem in found} == {
        ("data.source.derive.scheduled_departure.sql", "derive.failed"),
        ("data.source.where.sql", "derive.expression"),
    }
    baseline = changed("flight_delay", ("\nevaluate:\n", "\nevaluate:\n  baseline: {sql: 'year + + > '}\n"))
    assert [problem.field for problem in problems(tmp_path, baseline)] == ["evaluate.baseline.sql"]


def test_expression_may_use_a_derived_column_that_is_declared_after_it(tmp_path: Path, changed: Callable[..., bytes]) -> None:
    assert problems(tmp_path, changed("flight_delay", (AGE, 'aircraft_age: {type: double, sql: "weekday + built_year"}'))) == ()
