"""No feature may be known only after the decision: proven on the shipped pipelines, column by column."""

from collections.abc import Callable

import pytest

from training.errors import Problem
from training.spec import PipelineSpec
from training.sql.analysis import cycle, in_order_of_use, objection, words

Refuse = Callable[..., tuple[Problem, ...]]
Accept = Callable[..., PipelineSpec]

F, R = "flight_delay", "search_ranking"
LATE = ["dep_time", "hour", "minute", "dep_delay", "arr_time", "arr_delay", "air_time"]
FEATURES = "  features:\n    carrier: {transform: category}"
PREPARED = '    aircraft_age: {type: double, sql: "year - built_year"}'
DERIVED = "      landed_at:\n"


def late(problems: tuple[Problem, ...]) -> dict[str, str]:
    assert {problem.code for problem in problems} == {"leakage.time"}
    return {problem.field: problem.message for problem in problems}


def reason(column: str) -> str:
    return "is the label" if column == "arr_delay" else "is `known: after`"


@pytest.mark.parametrize("column", LATE)
def test_late_column_as_a_feature_is_refused(refuse: Refuse, column: str) -> None:
    problems = refuse(F, (FEATURES, f"{FEATURES}\n    {column}: {{transform: number}}"))
    message = f"feature {column} is known only after the decision: {column} {reason(column)}"
    assert late(problems) == {f"prepare.features.{column}": message}
    assert problems[0].hint.startswith("take it out")
    assert problems[0].line is not None


@pytest.mark.parametrize("column", LATE)
def test_feature_derived_in_prepare_from_a_late_column_is_refused(refuse: Refuse, column: str) -> None:
    derive = (PREPARED, f'{PREPARED}\n    sneaky: {{type: double, sql: "{column.upper()} * 2"}}')
    problems = refuse(F, derive, (FEATURES, f"{FEATURES}\n    sneaky: {{transform: number}}"))
    why = "is `known: after`" if column == "arr_delay" else reason(column)
    message = f"feature sneaky is known only after the decision: sneaky is derived from {column}, which {why}"
    assert late(problems) == {"prepare.features.sneaky": message}


@pytest.mark.parametrize("column", LATE)
def test_feature_derived_by_way_of_the_source_from_a_late_column_is_refused(refuse: Refuse, column: str) -> None:
    sneaky = f'      sneaky: {{type: double, sql: "coalesce({column}, 0)"}}\n'
    derive = (PREPARED, f'{PREPARED}\n    more: {{type: double, sql: "sqrt(sneaky)"}}')
    problems = refuse(F, (DERIVED, sneaky + DERIVED), derive, (FEATURES, f"{FEATURES}\n    more: {{transform: number}}"))
    (message,) = late(problems).values()
    assert message.startswith(f"feature more is known only after the decision: more is derived from sneaky, which is derived from {column}")


def test_label_of_a_pipeline_is_no_feature_although_it_is_not_declared_late(refuse: Refuse) -> None:
    problems = refuse(
        R,
        ("clicked: {type: int8, known: after}", "clicked: {type: int8}"),
        ("rating: {transform: standard}", "clicked: {transform: number}"),
    )
    assert late(problems) == {"prepare.features.clicked": "feature clicked is known only after the decision: clicked is the label"}


def test_derived_column_that_is_said_to_be_late_is_refused_as_a_feature(refuse: Refuse) -> None:
    derived = PREPARED.replace("sql:", "known: after, sql:")
    assert late(refuse(F, (PREPARED, derived))) == {
        "prepare.features.aircraft_age": "feature aircraft_age is known only after the decision: aircraft_age is `known: after`"
    }


def test_late_column_of_a_feature_table_is_refused(refuse: Refuse) -> None:
    assert list(late(refuse(F, ("seats: {type: int64}", "seats: {type: int64, known: after}")))) == ["prepare.features.seats"]


def test_late_join_key_and_late_event_time_are_refused(refuse: Refuse) -> None:
    problems = refuse(
        F,
        ("on: {origin: origin}", "on: {origin: origin, dep_time: time_hour}"),
        ("event_time: scheduled_departure", "event_time: landed_at"),
    )
    found = late(problems)
    assert found["data.features[0].on.dep_time"] == "the join key dep_time is known only after the decision: dep_time is `known: after`"
    assert found["data.source.event_time"].startswith("the event time landed_at is known only after the decision")


def test_known_before_needs_a_reason_where_the_sql_mentions_a_late_column(refuse: Refuse) -> None:
    because = "        because: published weeks before; the file carries it only as dep_time less dep_delay\n"
    (problem,) = refuse(F, (because, ""))
    assert (problem.code, problem.field) == ("leakage.because", "data.source.derive.scheduled_departure")
    assert problem.message.startswith("scheduled_departure is said to be `known: before`, and its SQL mentions ")
    assert "dep_delay, dep_time" in problem.message


def test_slices_may_be_late(accept: Accept) -> None:
    assert accept(F, ("slices: [carrier, origin]", "slices: [carrier, air_time]")).evaluate.slices == ("carrier", "air_time")


@pytest.mark.parametrize(
    ("sql", "mentioned"),
    [
        ("dep_time + 1", True),
        ("DEP_TIME", True),
        ('"dep_time"', True),
        ("abs(-dep_time)", True),
        ("f.dep_time", True),
        ("dep_time::int", True),
        ("case when dep_time>3 then 1 end", True),
        ("'dep_time'", False),
        ("'it''s dep_time'", False),
        ("xdep_time + dep_time2", False),
        ("dep_time(3)", False),
        ("dep_time IN (1, 2)", True),
    ],
)
def test_mentions_are_identifiers_outside_of_literals(sql: str, mentioned: bool) -> None:
    assert ("dep_time" in words(sql)) is mentioned


@pytest.mark.parametrize(
    ("sql", "fault"),
    [
        ("a + b", None),
        ("timezone('UTC', make_timestamp(y, m, d, t // 100 % 24, 0, 0) - to_minutes(x))", None),
        ("a; drop table b", "has a ';'"),
        ("a -- b", "has a comment"),
        ("a /* b */", "has a comment"),
        ("a + 'b", "has a ' that is not closed"),
        ("(a", "has parentheses that do not match"),
        ("a) + (b", "has parentheses that do not match"),
        ("$1", "has a '$'"),
        ("random()", "uses random, which differs from one run to the next"),
        ("current_date - day", "uses current_date, which differs from one run to the next"),
        ("COLUMNS('dep_.*')", "uses columns: it must be one expression over one row"),
        ("sum(a) over ()", "uses over: it must be one expression over one row"),
        ("a > avg(a)", "uses avg, which is of several rows: it must be one expression over one row"),
        ("first + last", None),
        ("'; select now()'", None),
    ],
)
def test_what_cannot_be_one_expression_over_a_row_is_refused(sql: str, fault: str | None) -> None:
    assert objection(sql) == fault


class Sql:
    def __init__(self, sql: str) -> None:
        self.sql = sql


def test_derived_columns_come_after_those_that_they_mention(flights: PipelineSpec) -> None:
    assert [name for name, _ in flights.data.source.derive_in_order()] == ["scheduled_departure", "landed_at"]
    assert [name for name, _ in in_order_of_use({"a": Sql("B"), "b": Sql("c + d"), "c": Sql("x"), "d": Sql("c")})] == ["c", "d", "b", "a"]


def test_circle_of_derived_columns_is_found_and_nothing_hangs_on_it() -> None:
    circle = {"a": Sql("b"), "b": Sql("c"), "c": Sql("b"), "d": Sql("x")}
    assert cycle(circle) == ["b", "c"]
    assert sorted(name for name, _ in in_order_of_use(circle)) == ["a", "b", "c", "d"]
