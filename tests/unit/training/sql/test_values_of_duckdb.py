"""Operators, conversions and functions have in DuckDB the values that are written down for them."""

from __future__ import annotations

import functools

import duckdb
import pytest

from tests.unit.training.sql.function_cases import FUNCTIONS
from tests.unit.training.sql.operator_cases import CASTS, ERROR, OPERATORS
from training.sql.analysis import called
from training.sql.expressions import columns_of, hardened

CASES = [(name, *case) for table in (OPERATORS, CASTS, FUNCTIONS) for name, cases in table.items() for case in cases]


@functools.cache
def database() -> duckdb.DuckDBPyConnection:
    return hardened()


def value_of(expression: str) -> str | None:
    """Return the value as text, computed for a row and not folded as a constant."""
    try:
        query = f"SELECT CAST(({expression}) AS VARCHAR) FROM range(3) LIMIT 1"  # noqa: S608 - cases of this repository
        found = database().execute(query).fetchall()
    except duckdb.Error:
        return ERROR
    text: str | None = found[0][0]
    return "nan" if text == "-nan" else text


@pytest.mark.parametrize(("name", "expression", "expected"), CASES)
def test_an_edge_case_has_the_value_that_is_written_down(name: str, expression: str, expected: str | None) -> None:
    assert value_of(expression) == expected, name


def test_every_entry_has_a_case_and_every_function_calls_itself() -> None:
    assert all(cases for table in (OPERATORS, CASTS, FUNCTIONS) for cases in table.values())
    for name, cases in FUNCTIONS.items():
        assert all(name in called(expression) for expression, _value in cases), name


def test_listed_functions_are_expressions_of_one_row() -> None:
    for cases in FUNCTIONS.values():
        for expression, _value in cases:
            assert columns_of(expression, [], where="a case") == set()


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("lower(a) || 'ln(x)'", ["lower"]),
        ("a.lower().ln()", ["lower", "ln"]),
        ("CAST(a AS decimal(10, 2))", []),
        ("a IN (1, 2) AND (b) OR NOT (c)", []),
        ("extract(hour FROM a) + hour(a)", ["hour"]),
        ("CASE WHEN (a) THEN (b) END", []),
        ('"ln" + trim(b)', ["trim"]),
        ("LN(a) + ln(b)", ["ln"]),
    ],
)
def test_called_functions_are_found_without_syntax_texts_and_columns(expression: str, names: list[str]) -> None:
    assert called(expression) == names
