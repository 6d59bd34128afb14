"""Labels that come late: counted by split and day, and splits that end where labels are complete."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from training.data.snapshot.label_delay import AFTER_TEST, SplitRule, split_bounds, split_lines, unknown_labels
from training.errors import DataError
from training.sources.snapshot_files import LabelTimes

START = datetime(2026, 1, 1, tzinfo=UTC)
END = START + timedelta(days=20)
DAY = timedelta(days=1)


def rule(end: timedelta | str = "window", zone: str = "UTC", test: timedelta = 3 * DAY) -> SplitRule:
    return SplitRule(validation=2 * DAY, test=test, end=end, zone=ZoneInfo(zone))


def times(*unknown: datetime) -> LabelTimes:
    """Return a row with a label every six hours, and others without one."""
    known = [START + timedelta(hours=6 * number) for number in range(80)]
    return LabelTimes(*(np.array([int(at.timestamp() * 1e6) for at in some], dtype=np.int64) for some in (known, unknown)))


def test_rows_without_a_label_are_counted_by_split_and_day() -> None:
    meta = unknown_labels(times(END - DAY / 2, END - DAY / 3, END - 4 * DAY), rule(), START, END)
    assert (meta["rows"], meta["unknown"], meta["first_unknown"]) == (83, 3, "2026-01-17T00:00:00+00:00")
    assert meta["splits"] == {
        "train": {"rows": 60, "unknown": 0},
        "validation": {"rows": 9, "unknown": 1},
        "test": {"rows": 14, "unknown": 2},
    }
    assert meta["days"] == {"2026-01-17": {"rows": 5, "unknown": 1}, "2026-01-20": {"rows": 6, "unknown": 2}}
    assert split_lines(meta)[2:] == [
        "test: 2 of 14 rows (14.3 %) have no known label at as_of",
        "newest days: 2026-01-17 1 of 5, 2026-01-20 2 of 6",
    ]


def test_days_are_those_of_the_time_zone() -> None:
    late = datetime(2026, 1, 20, 4, 30, tzinfo=UTC)
    assert list(unknown_labels(times(late), rule(zone="America/New_York"), START, END)["days"]) == ["2026-01-19"]


def test_complete_labels_end_the_test_split_so_many_whole_days_before_the_window() -> None:
    meta = unknown_labels(times(END - DAY / 2, END - 1.5 * DAY), rule("labels_complete"), START, END)
    assert meta["bounds"]["test"] == ["2026-01-16T00:00:00+00:00", "2026-01-19T00:00:00+00:00"]
    assert {name: found["unknown"] for name, found in meta["splits"].items()} == {"train": 0, "validation": 0, "test": 0, AFTER_TEST: 2}
    assert split_bounds(rule("labels_complete"), START, END, meta).end == END - 2 * DAY


def test_row_without_a_label_at_the_border_does_not_move_it_a_day_further() -> None:
    meta = unknown_labels(times(END - 2 * DAY), rule("labels_complete"), START, END)
    assert split_bounds(rule("labels_complete"), START, END, meta).end == END - 2 * DAY


def test_complete_labels_leave_the_window_as_it_is_where_every_label_is_known() -> None:
    meta = unknown_labels(times(), rule("labels_complete"), START, END)
    assert split_bounds(rule("labels_complete"), START, END, meta) == split_bounds(rule(), START, END, None)
    assert AFTER_TEST not in meta["splits"]


def test_splits_of_hours_end_at_the_first_row_without_a_label() -> None:
    late = END - timedelta(hours=7)
    hours = rule("labels_complete", test=timedelta(hours=6))
    meta = unknown_labels(times(late), hours, START, END)
    assert split_bounds(hours, START, END, meta).end == late


def test_fixed_time_before_the_windows_end_is_counted_in_calendar_days() -> None:
    # New York turns its clock on 8 March 2026: ten days are 239 hours.
    end = datetime(2026, 3, 10, 4, tzinfo=UTC)
    assert split_bounds(rule(10 * DAY, "America/New_York"), START, end, None).end == end - 10 * DAY + timedelta(hours=1)


def test_labels_that_are_complete_for_too_short_a_time_are_an_error_with_a_remedy_and_still_counted() -> None:
    meta = unknown_labels(times(START + 4 * DAY), rule("labels_complete"), START, END)
    assert (meta["unknown"], meta["splits"]) == (1, {})
    with pytest.raises(DataError, match="labels are complete until 2026-01-05T00:00:00") as caught:
        split_bounds(rule("labels_complete"), START, END, meta)
    assert caught.value.code == "split.labels_incomplete"
    assert "data.split.end: 14d" in caught.value.hint
