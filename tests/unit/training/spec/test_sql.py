"""Which words of an SQL expression can only be columns."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from training.errors import SpecError
from training.spec import parse_spec
from training.sql.analysis import unknown_columns

ROOT = Path(__file__).resolve().parents[4]
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
        "extract(dayofweek FROM sched) + extract ( dayofyear FROM sched)",
        "(CAST(row(temp) AS struct(x double))).x",
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


@pytest.mark.parametrize(
    ("pipeline", "old", "new", "expected"),
    [
        (
            "flight_delay",
            'sql: "year - built_year"',
            'sql: "year - built_yaer"',
            "prepare.derive.aircraft_age.sql: [column.unknown] the SQL of aircraft_age mentions 'built_yaer', which is not a column of "
            "the joined frame (did you mean built_year?)",
        ),
        (
            "search_ranking",
            "    columns:\n",
            '    derive:\n      cheap: {type: boolean, sql: "prise < 10"}\n    columns:\n',
            "data.source.derive.cheap.sql: [column.unknown] the SQL of cheap mentions 'prise', which is not a column of "
            "clicks (did you mean price?)",
        ),
    ],
)
def test_derived_column_that_mentions_an_unknown_column_is_refused_with_the_nearest_name(
    pipeline: str, old: str, new: str, expected: str
) -> None:
    text = (ROOT / "dags" / "pipelines" / f"{pipeline}.yaml").read_text(encoding="utf-8")
    assert old in text
    with pytest.raises(SpecError) as caught:
        parse_spec(text.replace(old, new, 1).encode(), "p.yaml")
    assert expected in [problem.render("p.yaml").split(": ", 1)[1] for problem in caught.value.problems]


def test_name_of_a_feature_column_that_clashes_leaves_the_derived_column_without_its_column() -> None:
    text = (ROOT / "dags" / "pipelines" / "flight_delay.yaml").read_text(encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        parse_spec(text.replace(", as: built_year", "").encode(), "p.yaml")
    assert sorted((problem.field, problem.code) for problem in caught.value.problems) == [
        ("data.features[1].columns.year", "column.clash"),
        ("prepare.derive.aircraft_age.sql", "column.unknown"),
    ]
