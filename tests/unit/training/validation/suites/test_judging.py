"""The suites that ship: each expectation is met by sound rows, and one mutated column breaks it and nothing else."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from devstack.shop import make_day
from tests.unit.training.validation.judged_tables import judged, judged_frame, view_of
from training.errors import SpecError
from training.sources.table_contract import TableContract
from training.spec.sections.data import Column
from training.validation.results import CheckResult
from training.validation.suites.judging import check_suites, load_suite, suites_folder
from training.validation.suites.table_numbers import ProfileMetrics

Frame = pd.DataFrame
NUM_ROWS = 40


def clicks() -> Frame:
    return make_day(date(2026, 1, 31), searches=60).to_pandas()


def flights() -> Frame:
    rows = np.arange(NUM_ROWS)
    scheduled = pd.Timestamp("2013-06-01T12:00:00Z") + pd.to_timedelta(rows, unit="h")
    return pd.DataFrame(
        {
            "year": 2013,
            "month": 6,
            "day": 1 + rows % 28,
            "dep_time": 600 + rows,
            "dep_delay": rows - 5,
            "arr_time": 800 + rows,
            "arr_delay": rows - 10,
            "carrier": np.array(["UA", "9E"])[rows % 2],
            "tailnum": [f"N{100 + row}UA" for row in rows],
            "flight": rows + 1,
            "origin": np.array(["EWR", "JFK", "LGA"])[rows % 3],
            "dest": "BOS",
            "air_time": 60 + rows,
            "distance": 200 + rows,
            "hour": 6,
            "minute": rows,
            "scheduled_departure": scheduled,
            "landed_at": scheduled + pd.Timedelta(hours=6),
        }
    )


def weather() -> Frame:
    rows = np.arange(NUM_ROWS)
    return pd.DataFrame(
        {
            "origin": np.array(["EWR", "JFK", "LGA"])[rows % 3],
            "time_hour": pd.Timestamp("2013-06-01T12:00:00Z") + pd.to_timedelta(rows, unit="h"),
            "temp": 60.0 + rows,
            "dewp": 40.0 + rows / 2,
            "humid": 50.0 + rows,
            "wind_speed": rows / 2,
            "wind_gust": np.where(rows % 5 == 0, 20.0, np.nan),
            "precip": 0.0,
            "pressure": np.where(rows % 9 == 0, np.nan, 1015.0),
            "visib": 10.0,
        }
    )


def first(column: str, value: Any) -> Callable[[Frame], Frame]:
    def mutate(frame: Frame) -> Frame:
        frame.loc[frame.index[0], column] = value
        return frame

    return mutate


def every(column: str, value: Any) -> Callable[[Frame], Frame]:
    return lambda frame: frame.assign(**{column: value})


def emptied(column: str, share: float) -> Callable[[Frame], Frame]:
    return lambda frame: frame.assign(**{column: frame[column].mask(np.arange(len(frame)) < share * len(frame))})


BETWEEN, IN_SET, REGEX = "values_to_be_between", "values_to_be_in_set", "values_to_match_regex"
NOT_NULL, MEAN, NUM_UNIQUE = "values_to_not_be_null", "mean_to_be_between", "unique_value_count_to_be_between"

MUTATIONS: dict[tuple[str, str, str], Callable[[Frame], Frame]] = {
    ("search_ranking/clicks", "expect_table_columns_to_match_set", ""): lambda frame: frame.assign(extra=1),
    ("search_ranking/clicks", BETWEEN, "price"): first("price", 0.0),
    ("search_ranking/clicks", BETWEEN, "rating"): first("rating", 5.5),
    ("search_ranking/clicks", BETWEEN, "popularity"): first("popularity", 1.5),
    ("search_ranking/clicks", BETWEEN, "position"): first("position", 0),
    ("search_ranking/clicks", IN_SET, "clicked"): first("clicked", 2),
    ("search_ranking/clicks", BETWEEN, "user_id"): first("user_id", 0),
    ("search_ranking/clicks", BETWEEN, "item_id"): first("item_id", -1),
    ("search_ranking/clicks", BETWEEN, "query_id"): first("query_id", 0),
    ("search_ranking/clicks", MEAN, "clicked"): every("clicked", 0),
    ("search_ranking/clicks", NUM_UNIQUE, "category_id"): every("category_id", 1),
    ("search_ranking/clicks", "max_to_be_between", "position"): every("position", 1),
    ("search_ranking/clicks", "median_to_be_between", "price"): lambda frame: frame.assign(price=frame["price"] / 50),
    ("flight_delay/flights", BETWEEN, "month"): first("month", 13),
    ("flight_delay/flights", BETWEEN, "day"): first("day", 32),
    ("flight_delay/flights", BETWEEN, "dep_time"): first("dep_time", 2401),
    ("flight_delay/flights", BETWEEN, "arr_time"): first("arr_time", 0),
    ("flight_delay/flights", BETWEEN, "dep_delay"): first("dep_delay", 2881),
    ("flight_delay/flights", BETWEEN, "arr_delay"): first("arr_delay", -181),
    ("flight_delay/flights", BETWEEN, "air_time"): first("air_time", 3),
    ("flight_delay/flights", BETWEEN, "distance"): first("distance", 0),
    ("flight_delay/flights", IN_SET, "origin"): first("origin", "BOS"),
    ("flight_delay/flights", REGEX, "dest"): first("dest", "Boston"),
    ("flight_delay/flights", REGEX, "carrier"): first("carrier", "ua"),
    ("flight_delay/flights", REGEX, "tailnum"): first("tailnum", "unknown"),
    ("flight_delay/flights", "expect_column_pair_values_a_to_be_greater_than_b", "landed_at, scheduled_departure"): lambda frame: (
        frame.assign(landed_at=frame["scheduled_departure"])
    ),
    ("flight_delay/flights", MEAN, "arr_delay"): every("arr_delay", 600),
    ("flight_delay/flights", NUM_UNIQUE, "carrier"): every("carrier", "UA"),
    ("flight_delay/weather", IN_SET, "origin"): first("origin", "BOS"),
    ("flight_delay/weather", BETWEEN, "temp"): first("temp", 500.0),
    ("flight_delay/weather", BETWEEN, "dewp"): first("dewp", 101.0),
    ("flight_delay/weather", BETWEEN, "humid"): first("humid", -1.0),
    ("flight_delay/weather", BETWEEN, "wind_speed"): first("wind_speed", 1048.0),
    ("flight_delay/weather", BETWEEN, "wind_gust"): first("wind_gust", 250.0),
    ("flight_delay/weather", BETWEEN, "precip"): first("precip", -0.1),
    ("flight_delay/weather", BETWEEN, "pressure"): first("pressure", 29.9),
    ("flight_delay/weather", BETWEEN, "visib"): first("visib", -1.0),
    ("flight_delay/weather", NOT_NULL, "temp"): emptied("temp", 0.2),
    ("flight_delay/weather", NOT_NULL, "visib"): emptied("visib", 0.2),
    ("flight_delay/weather", NOT_NULL, "pressure"): emptied("pressure", 0.8),
}
SOUND = {"search_ranking/clicks": clicks, "flight_delay/flights": flights, "flight_delay/weather": weather}
SHIPPED = sorted(path.relative_to(suites_folder({})).with_suffix("").as_posix() for path in suites_folder({}).rglob("*.json"))


def run(name: str, frame: Frame) -> list[CheckResult]:
    return judged_frame(load_suite(name)["expectations"], frame)  # type: ignore[arg-type]


def full_type(kind: str) -> str:
    return kind if kind.startswith("expect_") else f"expect_column_{kind}"


def test_every_expectation_that_ships_has_its_mutation() -> None:
    shipped = {(name, e["type"], column_of(e["kwargs"])) for name in SHIPPED for e in load_suite(name)["expectations"]}
    assert shipped == {(name, full_type(kind), column) for name, kind, column in MUTATIONS}


def column_of(arguments: dict[str, Any]) -> str:
    return ", ".join(arguments[name] for name in ("column", "column_A", "column_B") if name in arguments)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_sound_rows_meet_the_suite(name: str) -> None:
    assert [check.line() for check in run(name, SOUND[name]()) if check.status != "passed"] == []


@pytest.mark.parametrize(("name", "kind", "column"), MUTATIONS)
def test_a_mutated_column_breaks_its_expectation_alone(name: str, kind: str, column: str) -> None:
    broken = [check for check in run(name, MUTATIONS[name, kind, column](SOUND[name]())) if check.status != "passed"]
    assert [(check.check, check.column) for check in broken] == [(full_type(kind), column)]
    expected = next(e for e in load_suite(name)["expectations"] if e["type"] == full_type(kind) and column_of(e["kwargs"]) == column)
    assert broken[0].status == ("failed" if expected["severity"] == "critical" else "warned")
    assert not broken[0].observed.startswith("not evaluated")


def not_null(column: str, **more: Any) -> dict[str, Any]:
    return {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": column}, **more}


def test_an_expectation_that_cannot_be_evaluated_has_failed_regardless_of_its_severity() -> None:
    frame = pd.DataFrame({"x": [1, 2], "t": pd.to_datetime(["2026-01-01", "2026-01-02"], utc=True)})
    older = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "t", "min_value": 2025}, "severity": "info"}
    results = judged_frame([not_null("gone", severity="warning"), older, not_null("x")], frame)
    assert [check.status for check in results] == ["failed", "failed", "passed"]
    assert all(check.observed.startswith("not evaluated: ") for check in results[:2])


def test_an_expectation_on_quantiles_is_judged_like_any_other() -> None:
    def quantiles(low: float, high: float) -> dict[str, Any]:
        ranges = {"quantiles": [0.5], "value_ranges": [[low, high]]}
        return {"type": "expect_column_quantile_values_to_be_between", "kwargs": {"column": "x", "quantile_ranges": ranges}}

    results = judged_frame([quantiles(0, 5), quantiles(7, 9)], pd.DataFrame({"x": [1.0, 2.0, 3.0]}))
    assert [check.status for check in results] == ["passed", "failed"]
    assert json.dumps([check.observed for check in results])


@pytest.mark.parametrize("share", [1.5, -0.5, math.nan])
@pytest.mark.parametrize("num_rows", [1, 3])
def test_a_quantile_that_there_is_not_has_failed(share: float, num_rows: int) -> None:
    ranges = {"quantiles": [share], "value_ranges": [[0, 9]]}
    quantile = {"type": "expect_column_quantile_values_to_be_between", "kwargs": {"column": "x", "quantile_ranges": ranges}}
    (found,) = judged_frame([quantile], pd.DataFrame({"x": np.arange(num_rows)}))
    assert (found.status, found.observed) == ("failed", "not evaluated: percentiles should all be in the interval [0, 1]")


@pytest.mark.parametrize(
    ("values", "mean", "total"), [([0.1] * 10, 0.1, 1.0), ([0.1] * 10 + [math.nan], 0.1, 1.0), ([1.0, math.inf], math.inf, math.inf)]
)
def test_sums_of_floats_do_not_lose_their_last_digits(values: list[float], mean: float, total: float) -> None:
    exact = [
        {"type": f"expect_column_{kind}_to_be_between", "kwargs": {"column": "x", "min_value": value, "max_value": value}}
        for kind, value in (("mean", mean), ("sum", total))
    ]
    assert [found.status for found in judged_frame(exact, pd.DataFrame({"x": values}))] == ["passed", "passed"]


def test_repeated_values_of_a_column_of_any_name_are_shown() -> None:
    unique = {"type": "expect_column_values_to_be_unique", "kwargs": {"column": "V0"}}
    (found,) = judged_frame([unique], pd.DataFrame({"V0": [1, 5, 5]}))
    assert (found.status, found.detail) == ("failed", "for example 5, 5")


def test_narrow_numbers_are_compared_as_what_they_are() -> None:
    frame = pd.DataFrame({"x": np.array([0.01, 0.1], np.float32), "n": np.array([-128, 127], np.int8)})

    def between(column: str, low: float, high: float) -> dict[str, Any]:
        return {"type": "expect_column_values_to_be_between", "kwargs": {"column": column, "min_value": low, "max_value": high}}

    expectations = (between("x", 0.01, 0.1), between("x", 0.010001, 0.1), between("n", -128, 127), between("n", -127, 1000))
    results = judged_frame([*expectations], frame)
    assert [check.status for check in results] == ["passed", "failed", "passed", "failed"]
    assert results[0].allowed == "min_value 0.01, max_value 0.1"


def test_severity_decides_between_failure_and_warning() -> None:
    frame = pd.DataFrame({"x": [1.0, None]})
    named = [judged_frame([not_null("x", severity=severity)], frame)[0] for severity in ("critical", "warning", "info")]
    assert [check.status for check in named] == ["failed", "warned", "warned"]
    assert judged_frame([not_null("x")], frame)[0].status == "failed"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (None, "suite.missing"),
        ("{", "suite.invalid"),
        ("[]", "suite.invalid"),
        ('{"name": "s", "expectations": []}', "suite.invalid"),
    ],
)
def test_a_suite_that_cannot_be_read_is_refused(tmp_path: Path, content: str | None, code: str) -> None:
    if content is not None:
        (tmp_path / "s.json").write_text(content)
    with pytest.raises(SpecError) as caught:
        load_suite("s", tmp_path)
    assert caught.value.code == code


def test_all_that_is_wrong_in_a_suite_is_named_at_once(caplog: pytest.LogCaptureFixture) -> None:
    between = "expect_column_values_to_be_between"
    wrong: list[Any] = [
        not_null("x"),
        {"type": "expect_column_values_to_be_betwen", "kwargs": {"column": "x"}},
        {"type": between, "kwargs": {"colum": "x", "min_value": 1}},
        {"type": between, "kwargs": {"column": "x"}},
        {"type": between, "kwargs": {"column": "x", "min_value": 1}, "severity": "fatal"},
        {"type": "expect_column_values_to_match_regex", "kwargs": {"column": "x", "regex": "("}},
        {"type": between},
        {"kwargs": {"column": "x"}},
        "expect_column_values_to_not_be_null",
    ]
    with pytest.raises(SpecError) as caught:
        judged_frame(wrong, pd.DataFrame({"x": [1]}))
    assert [problem.code for problem in caught.value.problems] == [*["suite.invalid"] * 4, "suite.regex", *["suite.invalid"] * 3]
    named = [problem.message for problem in caught.value.problems]
    assert named[0] == "expectation 2: 'expect_column_values_to_be_betwen' is unknown to Great Expectations"
    assert caught.value.problems[0].hint == f"did you mean {between}?"
    assert named[1] == f"expectation 3: {between}: column: field required; colum: extra fields not permitted"
    assert named[2] == f"expectation 4: {between}: min_value and max_value cannot both be None"
    assert named[3] == f"expectation 5: {between}: Invalid severity 'fatal'. Must be one of: critical, warning, info"
    assert [text.split(":")[0] for text in named[5:]] == ["expectation 7", "expectation 8", "expectation 9"]
    assert not caplog.records


BETWEEN = "expect_column_values_to_be_between"


@pytest.mark.parametrize(
    ("expectations", "words"),
    [
        (
            [{"expectation_type": BETWEEN, "kwargs": {"column": "x", "min_value": 0}}] * 3,
            r"of Great Expectations 0\.x.*rename expectation_type",
        ),
        (
            [{"type": BETWEEN, "kwargs": {"column": "x", "max_value": {"$PARAMETER": "top"}}}],
            "max_value is the parameter 'top', and no run gives",
        ),
        (
            [{"type": BETWEEN, "kwargs": {"column": "at", "min_value": "2026-01-31T06:00:00"}}],
            "'2026-01-31T06:00:00': no instant with an offset",
        ),
        ([{"type": BETWEEN, "kwargs": {"column": "at", "min_value": "2026-01-31"}}], "'2026-01-31': no instant with an offset"),
        ([{"type": "expect_column_values_to_be_betwen", "kwargs": {"column": "x"}}], f"did you mean {BETWEEN}"),
        ([{"type": BETWEEN, "kwargs": {"column": "at", "min_value": "2026-01-31T06:00:00Z"}}], None),
        ([{"type": "expect_column_unique_value_count_to_be_between", "kwargs": {"column": "at", "min_value": 5}}], None),
    ],
)
def test_suite_that_no_data_could_meet_is_refused_before_there_are_data(
    tmp_path: Path, expectations: list[dict[str, Any]], words: str | None
) -> None:
    (tmp_path / "s.json").write_text(json.dumps({"name": "s", "expectations": expectations}))
    columns = {"x": Column(type="double"), "at": Column(type="timestamp")}
    contract = TableContract(name="t", kind="csv", uri="file:///t", columns=columns, suite="s")
    if words is None:
        check_suites([contract], tmp_path)
        return
    with pytest.raises(SpecError, match=words) as caught:
        check_suites([contract], tmp_path)
    assert [problem.code for problem in caught.value.problems] == ["suite.invalid"]


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("match_regex", {"regex": "^(?=a)(a+)+$"}),
        ("not_match_regex", {"regex": "(?<!b)a"}),
        ("match_regex_list", {"regex_list": ["^a+$", r"(a+)\1"]}),
        ("not_match_regex_list", {"regex_list": ["(?!a)b"]}),
        ("match_json_schema", {"json_schema": {"properties": {"x": {"pattern": "^(a+)+$"}}}}),
    ],
)
def test_a_regular_expression_that_may_never_end_is_refused_before_a_row_is_read(kind: str, arguments: dict[str, Any]) -> None:
    expectation = {"type": f"expect_column_values_to_{kind}", "kwargs": {"column": "x", **arguments}}
    with pytest.raises(SpecError) as caught:
        judged_frame([expectation], pd.DataFrame({"x": ["a" * 60 + "!"]}))
    assert caught.value.code == "suite.regex"
    assert caught.value.problems[0].hint


@pytest.mark.parametrize(("most", "status"), [(3, "failed"), (4, "passed")])
def test_rows_of_a_condition_are_counted_by_their_values(tmp_path: Path, most: int, status: str) -> None:
    """Without its columns, the condition would be met by no row, and no number of rows would be too large."""
    condition = {"row_condition": "a > 5", "condition_parser": "pandas"}
    counted = {"type": "expect_table_row_count_to_be_between", "kwargs": {"min_value": 0, "max_value": most, **condition}}
    rows = pa.table({"a": pa.array(range(10), pa.int64()), "b": pa.array(range(10), pa.int64())})
    (found,) = judged(view_of(tmp_path, rows, {"a": "int64", "b": "int64"}), [counted])
    assert (found.status, found.observed) == (status, "4")


def test_values_that_rise_with_the_rows_are_shown_to_be_unique_without_a_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unique = [
        {"type": "expect_column_values_to_be_unique", "kwargs": {"column": "id"}},
        {"type": "expect_compound_columns_to_be_unique", "kwargs": {"column_list": ["id", "n"]}},
    ]
    kinds = {"id": "int64", "n": "int32"}
    rising = pa.table({"id": np.arange(100), "n": np.zeros(100, np.int32)})
    repeated = pa.table({"id": [0, 1, 1], "n": pa.array([0, 0, 0], pa.int32())})
    assert [result.status for result in judged(view_of(tmp_path / "repeated", repeated, kinds), unique)] == ["failed", "failed"]
    monkeypatch.setattr(ProfileMetrics, "_groups", lambda *_: pytest.fail("the order says it"))
    assert [result.status for result in judged(view_of(tmp_path / "rising", rising, kinds), unique)] == ["passed", "passed"]
