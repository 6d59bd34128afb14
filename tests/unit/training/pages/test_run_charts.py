"""Charts of the last runs in the validation report."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from training.pages.validation import MAX_RUN_COLUMNS, RUN_HEIGHT, RunChart, render_report, run_charts
from training.validation.all_checks import MAX_RUNS, _age_hours, with_run
from training.validation.results import Findings

DAY = datetime(2026, 1, 2, tzinfo=UTC)


def numbers(
    day: int, rows: int, *, age: float | None = 2.0, missing: dict[str, int] | None = None, table: str = "orders"
) -> dict[str, Any]:
    return {"as_of": f"2026-01-{day:02}", "tables": {table: {"rows": rows, "age_hours": age, "missing": missing or {}}}}


def heights(chart: RunChart) -> list[float]:
    return [float(height) for height in re.findall(r'height="([\d.]+)"/>', chart.chart)]


def test_rows_age_and_completeness_of_each_run_are_bars() -> None:
    runs = [numbers(1, 100), numbers(2, 50, age=8.0, missing={"price": 25})]
    charts = {chart.name: chart for chart in run_charts(runs)["orders"]}
    assert heights(charts["rows"]) == [RUN_HEIGHT, RUN_HEIGHT / 2]
    assert re.findall("<title>(.*?)</title>", charts["age of the newest row"].chart) == ["2026-01-01: 2.0 h", "2026-01-02: 8.0 h"]
    complete = charts["price: share that is not missing"]
    assert (complete.newest, complete.least, complete.most) == ("50.00%", "50.00%", "100.00%")


def test_columns_with_the_most_missing_values_have_a_chart() -> None:
    missing = {f"c{number:02}": number for number in range(1, MAX_RUN_COLUMNS + 4)}
    names = [chart.name for chart in run_charts([numbers(1, 100), numbers(2, 100, missing=missing)])["orders"][2:]]
    assert len(names) == MAX_RUN_COLUMNS
    assert names[0].startswith(f"c{MAX_RUN_COLUMNS + 3}")


def test_a_table_without_event_times_or_that_is_new_has_the_charts_that_it_can_have() -> None:
    assert [chart.name for chart in run_charts([numbers(1, 5, age=None), numbers(2, 6, age=None)])["orders"]] == ["rows"]
    assert len(heights(run_charts([numbers(1, 5, table="old"), numbers(2, 6)])["orders"][0])) == 1


def test_one_run_alone_has_no_chart_and_empty_tables_divide_by_nothing() -> None:
    assert run_charts([numbers(1, 5)]) == {}
    assert heights(run_charts([numbers(1, 0), numbers(2, 0)])["orders"][0]) == [0, 0]


@pytest.mark.parametrize(
    ("newest", "hours"),
    [
        ("2026-01-31 23:30:00.25+00", 2.5),
        ("2026-02-01 03:00:00+00", -1.0),
        ("10000-01-01 00:00:00+00", None),
        ("0044-03-15 (BC) 00:00:00+00", None),
    ],
)
def test_age_of_any_instant_that_a_file_can_hold(newest: str, hours: float | None) -> None:
    age = _age_hours(datetime(2026, 2, 1, 2, tzinfo=UTC), newest)
    assert age == (None if hours is None else pytest.approx(hours, abs=0.001))


def test_the_newest_runs_are_kept() -> None:
    runs: list[Any] = []
    for day in range(MAX_RUNS + 5):
        runs = with_run(runs, numbers(day, 1))
    assert [len(runs), runs[-1]["as_of"]] == [MAX_RUNS, f"2026-01-{MAX_RUNS + 4}"]


def test_names_are_escaped_in_the_page() -> None:
    runs = [numbers(1, 5, missing={"<script>": 1}), numbers(2, 5)]
    page = render_report(Findings(runs=runs), pipeline="p", as_of=DAY, window=(DAY, DAY), snapshot_digest="d").decode()
    assert "Last 2 runs of orders" in page
    assert "<script" not in page
    assert len(re.findall("<svg ", page)) == 3
