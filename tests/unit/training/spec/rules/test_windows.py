"""`data.windows`: what cannot be computed, can have no value, or would show what is known too late, is refused."""

from collections.abc import Callable, Mapping

import pytest

from training.errors import Problem
from training.sources.listing import windows_of
from training.spec import PipelineSpec
from training.spec.schedule.instants import parse_as_of, window

Refuse = Callable[..., tuple[Problem, ...]]
Accept = Callable[..., PipelineSpec]

F = "flight_delay"
BEFORE_LABEL = "  label: {column: arr_delay"
DEPARTURES = "kind: rolling, function: count, by: [origin], time: 7d"


def change(*windows: str) -> tuple[str, str]:
    """Return the change that adds windows w0, w1, … to the flights."""
    lines = "".join(f"    w{number}: {{{window}}}\n" for number, window in enumerate(windows))
    return BEFORE_LABEL, f"  windows:\n{lines}{BEFORE_LABEL}"


def faults(problems: tuple[Problem, ...]) -> Mapping[str, tuple[str, str]]:
    return {problem.field: (problem.code, problem.message) for problem in problems}


@pytest.mark.parametrize(
    ("window", "key", "code", "message"),
    [
        ("kind: lag, column: distance, by: [origin], time: 1d, rows: 2", "", "field.conflict", "either time or rows, got both"),
        ("kind: lag, column: distance, by: [origin]", "", "field.conflict", "either time or rows, got neither"),
        ("kind: lag, column: distance, by: [origin], rows: 2, tolerance: 1h", ".tolerance", "field.conflict", "tolerance needs time"),
        ("kind: lag, by: [origin], rows: 2", ".column", "field.missing", "the key column is missing"),
        ("kind: rolling, column: distance, by: [origin], rows: 2", ".function", "field.missing", "the key function is missing"),
        ("kind: rolling, function: sum, by: [origin], rows: 2", ".column", "field.missing", "the key column is missing"),
        ("kind: lag, column: distance, by: [origin], rows: 2, function: sum", ".function", "field.conflict", "function has no effect"),
        ("kind: since_last, by: [origin], rows: 2", ".rows", "field.conflict", "rows has no effect on a window of kind since_last"),
        ("kind: since_last, by: [origin], column: distance", ".column", "field.conflict", "column has no effect"),
        ("kind: since_last", ".by", "field.missing", "the key by is missing"),
        ("kind: since_last, by: [origins]", ".by[0]", "column.unknown", "origins is not a column of table flights"),
        ("kind: since_last, table: planes", ".table", "table.unknown", "planes is no feature table with an event_time"),
        ("kind: since_last, table: weather, by: [origin]", ".by", "field.conflict", "by has no effect"),
        ("kind: lag, table: weather, column: tmp, rows: 1", ".column", "column.unknown", "tmp is not a column of table weather"),
        ("kind: lag, column: distance, by: [origin], rows: 0", ".rows", "field.range", "must be at least 1"),
        ("kind: rolling, function: sum, column: dest, by: [origin], time: 1d", ".column", "column.type", "dest is of type string"),
        ("kind: since_last, by: [origin], where: 'distnce > 9'", ".where", "column.unknown", "where mentions 'distnce'"),
        (
            "kind: since_last, by: [origin], where: 'now() > scheduled_departure'",
            ".where",
            "sql.forbidden",
            "differs from one run to the next",
        ),
        ("kind: since_last, by: [origin], known_at: distance", ".known_at", "column.type", "distance is of type int64"),
        ("kind: rolling, function: mean, table: weather, column: temp, time: 30m", ".time", "window.empty", "no row can be in the window"),
        ("kind: lag, column: distance, by: [origin], time: 1h, tolerance: 30m", ".time", "window.empty", "no row can be in the window"),
    ],
)
def test_window_that_cannot_be_computed_is_refused_with_its_place(refuse: Refuse, window: str, key: str, code: str, message: str) -> None:
    found = faults(refuse(F, change(window)))
    assert list(found) == [f"data.windows.w0{key}"]
    assert found[f"data.windows.w0{key}"][0] == code
    assert message in found[f"data.windows.w0{key}"][1]


@pytest.mark.parametrize("name", ["distance", "Temp", "label", "scheduled_departure"])
def test_name_that_the_joined_frame_has_already_is_refused(refuse: Refuse, name: str) -> None:
    problems = refuse(F, (BEFORE_LABEL, f"  windows:\n    {name}: {{{DEPARTURES}}}\n{BEFORE_LABEL}"))
    assert f"data.windows.{name}" in faults(problems)
    assert {problem.code for problem in problems} == {"column.clash"}


@pytest.mark.parametrize("column", ["dep_delay", "air_time", "dep_time"])
def test_late_column_without_a_time_from_which_it_is_known_is_refused(refuse: Refuse, column: str) -> None:
    window = f"kind: rolling, function: mean, column: {column}, by: [origin], time: 7d"
    for wrong in (window, f"kind: since_last, by: [origin], where: '{column} > 15'"):
        (problem,) = refuse(F, change(wrong))
        assert (problem.code, problem.field) == ("leakage.time", "data.windows.w0")
        assert f"looks at {column}, which is `known: after`" in problem.message
        assert "known_at" in problem.hint
        assert "available_after" in problem.hint


def test_label_is_taken_only_if_something_says_when_it_is_known(refuse: Refuse, accept: Accept) -> None:
    window = "kind: rolling, function: mean, column: arr_delay, by: [origin], time: 7d"
    accept(F, change(window))
    unknown = (", known_at: landed_at}", "}")
    (problem,) = refuse(F, change(window), unknown)
    assert (problem.code, problem.field) == ("leakage.time", "data.windows.w0")
    accept(F, change(f"{window}, available_after: 1d"), unknown)
    (problem,) = refuse(F, change(f"{window}, available_after: 0s"), unknown)
    assert problem.code == "leakage.time"


def test_key_that_is_known_late_is_refused(refuse: Refuse) -> None:
    problems = refuse(F, change("kind: since_last, by: [hour]"))
    assert faults(problems)["data.windows.w0.by[0]"][0] == "leakage.time"


def test_window_is_a_column_of_the_frame_with_its_type(accept: Accept) -> None:
    spec = accept(
        F,
        change(
            "kind: lag, column: tailnum, by: [origin], rows: 1",
            DEPARTURES,
            "kind: rolling, function: max, table: weather, column: temp, time: 1d",
            "kind: rolling, function: mean, column: distance, by: [origin], time: 1d",
        ),
        ("    carrier: {transform: category}", "    carrier: {transform: category}\n    w0: {transform: hash, buckets: 100}"),
    )
    types = spec.data.frame_types()
    assert list(types)[-4:] == ["w0", "w1", "w2", "w3"]
    assert [types[name] for name in list(types)[-4:]] == ["string", "int64", "double", "double"]


def test_history_of_a_feature_table_reaches_as_far_as_its_windows(accept: Accept) -> None:
    as_of = parse_as_of("2013-06-01", "UTC")

    def days(*windows: str) -> float | None:
        spec = accept(F, change(*windows)) if windows else accept(F)
        start, _end = window(spec, as_of)
        oldest = windows_of(spec, as_of)["weather"].start
        return None if oldest is None else (start - spec.data.source.decision_lead - oldest).total_seconds() / 86_400

    weather = "table: weather, column: temp"
    assert days() == 0.5
    assert days(f"kind: rolling, function: mean, {weather}, time: 3d") == 3
    assert days(f"kind: rolling, function: mean, {weather}, time: 2h") == 0.5
    assert days(f"kind: lag, {weather}, time: 7d, tolerance: 1d") == 8
    assert days(f"kind: lag, {weather}, time: 7d") is None
    assert days(f"kind: rolling, function: mean, {weather}, rows: 3") is None
    assert days("kind: since_last, table: weather") is None


def test_history_and_sample_are_refused_where_windows_make_them_wrong(refuse: Refuse, accept: Accept) -> None:
    history = ("    window: 60d\n", "    window: 60d\n    history: 12h\n")
    (problem,) = refuse(F, history)
    assert (problem.code, problem.field) == ("field.conflict", "data.source.history")
    (problem,) = refuse(F, history, change("kind: rolling, function: mean, table: weather, column: temp, time: 3d"))
    assert problem.field == "data.source.history"
    accept(F, history, change(DEPARTURES))
    sample = ("    window: 60d\n", "    window: 60d\n    sample: {share: 0.5}\n")
    accept(F, sample)
    (problem,) = refuse(F, sample, change(DEPARTURES))
    assert (problem.code, problem.field) == ("field.conflict", "data.source.sample")


def test_history_of_daily_partitions_is_whole_days(refuse: Refuse) -> None:
    windows = "  windows:\n    shown: {kind: since_last, by: [item_id]}\n  label: {column: clicked}"
    changes = ("    window: 30d\n", "    window: 30d\n    history: 12h\n"), ("  label: {column: clicked}", windows)
    (problem,) = refuse("search_ranking", *changes)
    assert (problem.code, problem.field) == ("partition.window", "data.source.history")
