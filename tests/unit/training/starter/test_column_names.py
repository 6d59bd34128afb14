"""Identifiers for names in files, and partitions by the names of folders and files."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.starter.column_names import identifiers
from training.starter.table_files import files_of


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["Home Goals", "home_goals"], ["home_goals_2", "home_goals"]),
        (["Age", "AGE", "age"], ["Age", "age_2", "age_3"]),
        (["GDP ($)", "GDP (%)", "Nº"], ["gdp", "gdp_percent", "no"]),
        (["", "a", " "], ["row", "a", "column_3"]),
        (["a", ""], ["a", "column_2"]),
        (["数量", "Größe", "Øre"], ["column_1", "grosse", "ore"]),
        (["1st_class", "_x", "select"], ["column_1st_class", "_x", "select"]),
        (["label", "target"], ["label_2", "target"]),
        (["file_row_number", "x" * 200], ["file_row_number_2", "x" * 100]),
    ],
)
def test_identifiers_are_readable_and_differ_by_more_than_case(names: list[str], found: list[str]) -> None:
    assert identifiers(names, label="target") == found


def test_label_may_be_called_label() -> None:
    assert identifiers(["label", "Label"], label="label") == ["label", "label_2"]


@pytest.mark.parametrize(
    ("paths", "partition", "names"),
    [
        (["dt=2026-01-31/hour=06/a.csv", "dt=2026-02-01/hour=00/a.csv"], "dt={date}/hour={hour}", ["2026-01-31T06", "2026-02-01T00"]),
        (["2026/01/31/a.csv", "2026/02/01/b.csv"], "%Y/%m/%d", ["2026-01-31", "2026-02-01"]),
        (["month=2026-01/a.csv", "month=2026-01/b.csv"], "month={month}", ["2026-01", "2026-01"]),
        (["x_2026-01.csv", "x_2026-02.csv"], "x_{month}.csv", ["2026-01", "2026-02"]),
        (["2026-01-31.csv", "other.csv"], "", []),
        (["report-2020-2021.csv", "report-2021-2022.csv"], "", []),
        (["year=2026/a.csv"], "", []),
    ],
)
def test_partition_is_the_form_that_all_files_have(paths: list[str], partition: str, names: list[str], tmp_path: Path) -> None:
    for path in paths:
        (tmp_path / "data" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / path).write_text("a\n1\n")
    found = files_of([str(tmp_path / "data")])
    assert (found.partition, list(found.names), len(found.paths)) == (partition, names, len(paths))


def test_window_begins_after_the_newest_partition_that_is_missing(tmp_path: Path) -> None:
    for day in ("2026-03-26", "2026-03-28", "2026-03-29", "2026-03-30"):
        (tmp_path / f"{day}.csv").write_text("a\n1\n")
    start, end, missing = files_of([str(tmp_path)]).newest_without_gap("Europe/Berlin")
    assert (start.isoformat(), end.isoformat(), missing) == ("2026-03-27T23:00:00+00:00", "2026-03-30T22:00:00+00:00", "2026-03-27")
