"""Expressions of a YAML: one scalar expression over one row, and nothing else."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from training.errors import DataError
from training.sql.expressions import ROW_MACROS, columns_of, hardened

COLUMNS = ["a", "b", "Day"]


@pytest.mark.parametrize(
    ("expression", "columns"),
    [
        ("a + 1", {"a"}),
        ("timezone('America/New_York', make_timestamp(a, 1, 1, 0, 0, 0)) + to_minutes(b)", {"a", "b"}),
        ("CASE WHEN a > 1 THEN b ELSE nullif(b, 0) END", {"a", "b"}),
        ("day -- of the month", {"Day"}),
        ("'a name of no column' || b", {"b"}),
        ("list_sum([a, b]) + list_max([a])", {"a", "b"}),
        ("array_to_string(list_append([a], b), '-') || pg_typeof(a)", {"a", "b"}),
        ("map_contains_value(MAP {'k': a}, b)", {"a", "b"}),
        ("json(a) -> '$.x'", {"a"}),
        ("md5(repeat(a, 10000)) || lpad(b, 5, '0') || a.rpad(10, ' ')", {"a", "b"}),
        ("list_sum(range(1, 10)) + b || printf('%05d of %s', a, b)", {"a", "b"}),
        ("extract(hour FROM a) IN (1, 2) AND b BETWEEN 1 AND 2", {"a", "b"}),
    ],
)
def test_a_scalar_expression_names_its_columns(expression: str, columns: set[str]) -> None:
    assert columns_of(expression, COLUMNS, where="column 'x'") == columns


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "a, b",
        "*",
        "columns('a')",
        "a AS z",
        "a) FROM t; DROP TABLE t --",
        "a; SELECT 2",
        "a FROM t",
        "DISTINCT a",
        "a ORDER BY 1",
        "a LIMIT 1",
        "(SELECT max(a))",
        "EXISTS (SELECT 1)",
        "max(a)",
        "max(a) OVER ()",
        "unnest([a])",
        "$1",
        "no_such_column",
        "no_such_function(a)",
        "json_serialize_sql('SELECT 1')",
        "JSON_SERIALIZE_PLAN(a)",
        "json_deserialize_sql(a)",
        "md5(repeat('x', 2000000000))",
        "md5(repeat(a, b))",
        "repeat(repeat('x', 10000), 10000)",
        "lpad(a, 10001, ' ')",
        "len(range(b))",
        "list_sum(range(1, 1000000000))",
        "printf('%1000000000d', b)",
        "format('{:>1000000000}', a)",
        "format(a, b)",
        "list_resize([a], 100000000)",
        "a.repeat(100000000)",
        "a.repeat(b)",
        "random()",
        "now()",
        "today()",
        "current_date",
        "current_localtimestamp()",
        "age(a)",
        "uuid()",
        "ago(a)",
        "list_sum([now()])",
        "list_sum((SELECT list(1)))",
        "geomean(a)",
        "wavg(a, b)",
        "json_group_array(a)",
        "generate_subscripts([a], 1)",
        "regexp_split_to_table(a, ',')",
        "pg_conf_load_time()",
        "current_user()",
        "current_database()",
        "pg_sleep(1)",
        "getvariable('x')",
        "current_setting('threads')",
    ],
)
def test_anything_else_is_refused(expression: str) -> None:
    with pytest.raises(DataError) as caught:
        columns_of(expression, COLUMNS, where="column 'x' of table 't'")
    assert caught.value.code == "derive.expression"
    assert caught.value.message.startswith("column 'x' of table 't': ")


def macros() -> list[tuple[str, list[str], str]]:
    """Return name, parameters and definition of each function that DuckDB defines in SQL; of one name there may be several."""
    query = "SELECT lower(function_name), parameters, macro_definition FROM duckdb_functions() WHERE function_type = 'macro'"
    return hardened().execute(query).fetchall()


def test_allowed_macros_are_defined_by_what_is_allowed_itself() -> None:
    allowed = [macro for macro in macros() if macro[0] in ROW_MACROS]
    assert {name for name, _, _ in allowed} == ROW_MACROS, "DuckDB has each of them"
    for name, parameters, definition in allowed:
        assert columns_of(definition, parameters, where=name) <= set(parameters)


def test_macros_over_lists_arrays_and_maps_are_allowed_unless_they_are_of_several_rows() -> None:
    left_out = {name for name, _, _ in macros() if name.startswith(("list_", "array_", "map_", "md5_", "json"))} - ROW_MACROS
    assert left_out == {
        *("json_copy_strftime_if_date", "json_copy_strftime_if_timestamp", "json_group_array", "json_group_object", "json_group_structure"),
        "map_to_pg_oid",
    }


def test_hardened_duckdb_reaches_no_file_but_the_named_folder(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "f.csv").write_text("a\n1\n")
    connection = hardened([inside])
    assert connection.execute(f"FROM read_csv('{inside}/f.csv')").fetchall() == [(1,)]
    for statement in (
        f"FROM read_csv('{outside}/f.csv')",
        f"FROM read_csv('{inside}/../outside/f.csv')",
        f"COPY (SELECT 1) TO '{outside}/g.csv'",
        f"ATTACH '{outside}/d.db'",
        "SET enable_external_access = true",
        "SET threads = 8",
    ):
        with pytest.raises(duckdb.Error, match=r"disabled|locked|permission|Permission|Cannot"):
            connection.execute(statement)
