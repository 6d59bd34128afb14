"""Which words of an SQL expression can only be columns."""

from __future__ import annotations

import duckdb
import pytest

from training.spec.sql import unknown_columns

COLUMNS = ("temp", "visib", "sched", "carrier")


@pytest.mark.parametrize(
    "sql",
    [
        'TEMP + "Visib" * 1.5e3 - .5e3',
        "CASE WHEN carrier IN ('UA', 'zz') OR carrier IS NOT NULL THEN 1 ELSE NULL END",
        "extract(dow FROM sched) + extract(epoch FROM sched - INTERVAL 2 HOURS)",
        "date_part('hour', sched AT TIME ZONE 'Europe/Berlin')",
        "CAST(temp AS DECIMAL(10, 2)) + visib::double + try_cast(carrier AS double precision)",
        "sched > TIMESTAMP '2013-01-01' AND sched BETWEEN DATE '2013-01-01' AND DATE '2014-01-01'",
        "substring(carrier FROM 1 FOR 2) || trim(BOTH ' ' FROM carrier) || e'\\n'",
        "carrier LIKE 'a%' ESCAPE '!' OR carrier SIMILAR TO 'b' OR carrier COLLATE nocase = 'c'",
        "list_sum(list_transform([temp, visib], lambda v: v + 1))",
        "struct_pack(a := temp).a",
        "temp IS DISTINCT FROM visib AND temp ISNULL AND temp NOTNULL",
    ],
)
def test_words_of_the_syntax_and_known_columns_are_no_unknown_columns(sql: str) -> None:
    kinds = "temp DOUBLE, visib DOUBLE, sched TIMESTAMPTZ, carrier VARCHAR"
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE flights ({kinds})")
        # DuckDB takes the expression, so nothing in it is unknown.
        connection.execute(f"SELECT {sql} FROM flights")  # noqa: S608
    assert unknown_columns(sql, COLUMNS) == []


def test_types_of_duckdb_are_no_unknown_columns() -> None:
    with duckdb.connect() as connection:
        types = [name for (name,) in connection.execute("SELECT DISTINCT type_name FROM duckdb_types() ORDER BY 1").fetchall()]
    plain = [name for name in types if name.replace("_", "a").isalnum() and not name.startswith('"')]
    assert len(plain) > 40
    assert [name for name in plain if unknown_columns(f"temp::{name}", COLUMNS)] == []


@pytest.mark.parametrize(
    ("sql", "unknown"),
    [
        ("tempp", ["tempp"]),
        ("tempp + Tempo * tempp", ["tempp", "Tempo"]),
        ("'tempp' || carier", ["carier"]),
        ('coalesce("no such", temp)', ["no such"]),
        ("tempp(temp)", []),
        ("row.tempp + temp", []),
    ],
)
def test_words_that_can_only_be_columns_and_are_not_known_are_returned_in_order(sql: str, unknown: list[str]) -> None:
    assert unknown_columns(sql, COLUMNS) == unknown
