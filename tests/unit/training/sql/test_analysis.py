"""The analysis of words against DuckDB's own parser: no column is missed, nothing that DuckDB accepts is refused."""

from __future__ import annotations

import duckdb
import pytest

from training.sql.analysis import objection, unknown_columns, words
from training.sql.expressions import columns_of

COLUMNS = ["a", "b", "c", "l", "j", "ts", "hour", "minute", "date", "load", "set", "now", "random", "Dep Time", 'q"q', "größe"]

ACCEPTED = [
    "lower(a).upper()",
    "a.lower().upper()",
    "(a + b).abs()",
    "[a, b].list_concat(l)",
    "l[1].lower()",
    "a || trim(b).lower()",
    "strptime(a, '%Y').year()",
    "TRY(a).floor()",
    "a @ b",
    "a @b",
    "@a",
    "a[:b]",
    "a[b:]",
    "a[b:c:1]",
    "l[a::b]",
    "l[:-:2]",
    "a LIKE b ESCAPE c",
    "a SIMILAR TO b ESCAPE c",
    "x'ff' || a",
    "a!",
    "a // b // c",
    "a ** -b",
    "a <-> b",
    "a ^@ b AND a !~~ c",
    "a GLOB 'x*'",
    "j -> '$.a'",
    "j ->> a",
    "list_transform(l, lambda x: x + a)",
    "list_transform(l, lambda a: a + b)",
    "list_transform(l, lambda x, i: x * i + c)",
    "[x + a for x in l if x > b]",
    "struct_pack(x := a).x",
    "{'x': a, 'y': {'z': b}}",
    "MAP {'k': a}",
    "extract(hour FROM ts)",
    "extract(minute FROM ts) + hour",
    "extract ( hour FROM ts )",
    "ts - INTERVAL 2 HOUR",
    "ts - INTERVAL '2' minute",
    "ts - INTERVAL (a + (b)) MINUTE",
    "ts - INTERVAL (minute) MINUTE",
    "hour * INTERVAL 1 HOUR + ts",
    "(a) IN (hour, minute)",
    "a::date = date",
    "a:: date < b",
    "CAST(a AS date) > date",
    "TRY_CAST(a AS decimal(10, 2))",
    "a::timestamp with time zone",
    "CAST(a AS timestamp WITH TIME ZONE)",
    "a::int[]",
    "a COLLATE nocase = b",
    "ts AT TIME ZONE a",
    "load + 1",
    "load IS NULL",
    "load BETWEEN a AND b",
    "set",
    "now + random",
    "LOAD * 2",
    '"load" + "Dep Time"',
    '"q""q" || a',
    "größe * 2",
    "substring(a FROM b FOR c)",
    "overlay(a PLACING b FROM c)",
    "trim(BOTH b FROM a)",
    "position(a IN b)",
    "CASE a WHEN b THEN c ELSE hour END",
    "CASE WHEN (a) THEN b END",
    "(a, b) = (c, hour)",
    "a IS NOT DISTINCT FROM b",
    "NOT a AND b OR c",
    "e'\\n' || a",
    "'as' || hour",
]


def read(sql: str) -> set[str]:
    return {name.lower() for name in columns_of(sql, COLUMNS, where="column 'x'")}


@pytest.mark.parametrize("sql", ACCEPTED)
def test_expression_that_duckdb_accepts_has_all_its_columns_mentioned_and_is_not_refused(sql: str) -> None:
    assert read(sql) - words(sql) == set()
    assert objection(sql) is None
    assert unknown_columns(sql, COLUMNS) == []


@pytest.mark.parametrize(
    ("sql", "column"),
    [
        ("extract(hour FROM ts)", "hour"),
        ("ts - INTERVAL 2 HOUR", "hour"),
        ("ts - INTERVAL (a + (b)) MINUTE", "minute"),
        ("a::date < b", "date"),
        ("CAST(a AS date) < b", "date"),
    ],
)
def test_unit_and_type_with_the_name_of_a_column_are_no_mentions_of_it(sql: str, column: str) -> None:
    assert column not in read(sql)
    assert column not in words(sql)


@pytest.mark.parametrize(
    ("sql", "fault"),
    [
        ("now()", "uses now, which differs from one run to the next"),
        ("random ()", "uses random, which differs from one run to the next"),
        ("a.random()", "uses random, which differs from one run to the next"),
        ("load 'spatial'", "uses load: it must be one expression over one row"),
        ("drop table flights", "uses drop: it must be one expression over one row"),
        ("set threads = 1", "uses set: it must be one expression over one row"),
        ("WITH time AS (SELECT 1) SELECT 2", "uses select: it must be one expression over one row"),
        ("sum(a) OVER (ORDER BY b)", "uses over: it must be one expression over one row"),
    ],
)
def test_calls_and_statements_are_refused_although_their_words_may_name_columns(sql: str, fault: str) -> None:
    assert objection(sql) == fault


@pytest.mark.parametrize("sql", ["a.abs()", "main.abs(b) + a.abs()"])
def test_column_that_a_method_is_called_on_is_read(sql: str) -> None:
    assert "a" in columns_of(sql, COLUMNS, where="column 'x'")


def test_parameter_of_a_lambda_is_no_column_and_unknown_columns_of_its_body_are_refused() -> None:
    assert columns_of("list_transform(l, lambda a: a + b)", COLUMNS, where="column 'x'") == {"l", "b"}
    with pytest.raises(Exception, match="there is no column 'zz'"):
        columns_of("list_transform(l, lambda x: x + zz)", COLUMNS, where="column 'x'")
    with pytest.raises(Exception, match="function 'random'"):
        columns_of("list_transform(l, lambda x: random())", COLUMNS, where="column 'x'")


def test_every_function_of_several_rows_is_refused_and_none_of_one_row() -> None:
    with duckdb.connect() as connection:
        found = connection.execute("SELECT lower(function_name), function_type FROM duckdb_functions()").fetchall()
    aggregates = {name for name, kind in found if kind == "aggregate" and name.isidentifier()} - {"list"}
    of_a_row = {name for name, kind in found if kind in ("scalar", "macro") and name.isidentifier()}
    assert {name for name in aggregates if "of several rows" not in str(objection(f"{name}(a)"))} == set()
    assert {name for name in of_a_row if "of several rows" in str(objection(f"{name}(a)"))} == set()
