"""Splits: by time, whole groups, never empty, every row in exactly one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from training.data.dataset.groups import group_numbers
from training.data.split.by_time import SPLITS, SplitBounds, check_labels, check_sizes, decisive_times, time_parts
from training.errors import DataError

START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
BOUNDS = SplitBounds.of_window(START, START + 10 * DAY, validation=DAY, test=2 * DAY)


def times(*days: float) -> np.ndarray:
    return np.array([np.datetime64((START + day * DAY).replace(tzinfo=None), "us") for day in days])


def split_rows(event_time: np.ndarray, bounds: SplitBounds, *, groups: np.ndarray | None = None) -> dict[str, list[int]]:
    parts = np.concatenate(list(time_parts(decisive_times(event_time, bounds, groups), bounds)))
    return {name: np.flatnonzero(parts == number).tolist() for number, name in enumerate(SPLITS)}


def test_newest_rows_are_the_tests_and_edges_belong_to_the_later_split() -> None:
    rows = split_rows(times(0, 6.99, 7, 7.99, 8, 9.99, 1), BOUNDS)
    assert rows == {"train": [0, 1, 6], "validation": [2, 3], "test": [4, 5]}


def test_group_goes_as_a_whole_where_its_first_event_does() -> None:
    groups = group_numbers(np.array(["x", "y", "z", "w", "x", "y"]))
    rows = split_rows(times(1, 6.9, 7.5, 9, 2, 7.1), BOUNDS, groups=groups)
    assert rows == {"train": [0, 1, 4, 5], "validation": [2], "test": [3]}


def test_groups_are_numbered_in_the_order_of_first_appearance() -> None:
    assert group_numbers(np.array([70, 5, 70, 9, 5])).tolist() == [0, 1, 0, 2, 1]


def test_bounds_are_json_and_leave_no_gap() -> None:
    bounds = BOUNDS.to_json()
    assert bounds["train"] == ["2026-01-01T00:00:00+00:00", "2026-01-08T00:00:00+00:00"]
    assert bounds["train"][1] == bounds["validation"][0]
    assert bounds["validation"][1] == bounds["test"][0]


def test_days_are_the_calendars_where_the_clock_changes() -> None:
    zone = ZoneInfo("America/New_York")
    end = datetime(2026, 3, 9, tzinfo=zone)  # the clock went forward on the 8th
    bounds = SplitBounds.of_window(end - 9 * DAY, end, validation=DAY, test=DAY, zone=zone)
    assert bounds.test == datetime(2026, 3, 8, 5, tzinfo=UTC)
    assert bounds.validation == datetime(2026, 3, 7, 5, tzinfo=UTC)


def test_window_without_room_for_training_is_refused() -> None:
    with pytest.raises(DataError, match=r"split\.window"):
        SplitBounds.of_window(START, START + 3 * DAY, validation=DAY, test=2 * DAY)


@pytest.mark.parametrize("counts", [(2, 1, 0), (1, 1, 1), (2, 0, 1)], ids=["no test rows", "one training row", "no validation rows"])
def test_too_few_rows_are_refused_with_the_counts(counts: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match=f"of 4, .*train {counts[0]}, validation {counts[1]}, test {counts[2]}") as caught:
        check_sizes({name: np.arange(count) for name, count in zip(SPLITS, counts, strict=True)}, 4, hint="")
    assert caught.value.code == "data.too_small"


def test_row_outside_of_the_window_is_refused() -> None:
    with pytest.raises(DataError, match="1 of 4 rows lie outside"):
        split_rows(times(1, 2, 7, 10), BOUNDS)


@pytest.mark.parametrize(
    ("label", "code"),
    [
        ([0, 0, 0, 0, 0, 0], "label.single_class"),
        ([2.5, 2.5, 2.5, 2.5, 2.5, 2.5], "label.single_class"),
        ([0, 1, 0, 1, 1, 1], "label.missing_in_split"),
        ([0, 1, 0, 1, 0, 1], None),
        ([1.5, 2.5, 3.5, 3.5, 4.5, 4.5], None),
    ],
    ids=["one class", "one number", "one class in the test", "both classes", "numbers are not classes"],
)
def test_labels_that_teach_nothing_are_refused(label: list[float], code: str | None) -> None:
    rows = {"train": np.array([0, 1]), "validation": np.array([2, 3]), "test": np.array([4, 5])}
    if code is None:
        check_labels(np.array(label, dtype=np.float32), rows, task="binary")
        return
    with pytest.raises(DataError) as caught:
        check_labels(np.array(label, dtype=np.float32), rows, task="binary")
    assert caught.value.code == code


def test_training_rows_of_one_of_several_classes_are_refused() -> None:
    rows = {"train": np.array([0, 1]), "validation": np.array([2, 3]), "test": np.array([4, 5])}
    check_labels(np.array([0, 2, 1, 1, 2, 2], dtype=np.float32), rows, task="multiclass")
    label = np.array([2, 2, 0, 1, 2, 1], dtype=np.float32)
    check_labels(label, rows, task="ranking")
    with pytest.raises(DataError, match="split 'train': all 2 rows have the label 'c'") as caught:
        check_labels(label, rows, task="multiclass", names=("a", "b", "c"))
    assert caught.value.code == "label.missing_in_split"


def test_numbers_to_estimate_may_be_all_zero_in_a_split() -> None:
    label = np.array([0, 1, 0, 0, 1, 0], dtype=np.float32)
    rows = {"train": np.array([0, 1]), "validation": np.array([2, 3]), "test": np.array([4, 5])}
    check_labels(label, rows, task="regression")
    with pytest.raises(DataError, match="validation"):
        check_labels(label, rows, task="binary")


def test_rows_of_the_gaps_are_in_no_split_and_validation_keeps_its_length() -> None:
    bounds = SplitBounds.of_window(START, START + 10 * DAY, validation=DAY, test=2 * DAY, gap=DAY)
    rows = split_rows(times(0, 4.99, 5, 5.99, 6, 6.99, 7, 7.99, 8, 9.99), bounds)
    assert rows == {"train": [0, 1], "validation": [4, 5], "test": [8, 9]}
    assert [edge[8:10] for split in bounds.to_json().values() for edge in split] == ["01", "06", "07", "08", "09", "11"]


def test_group_whose_first_event_is_in_a_gap_is_left_out_as_a_whole() -> None:
    bounds = SplitBounds.of_window(START, START + 10 * DAY, validation=DAY, test=2 * DAY, gap=DAY)
    groups = group_numbers(np.array(["x", "x", "y", "y", "z", "w", "w"]))
    rows = split_rows(times(1, 5.5, 5.5, 6.5, 6.5, 8, 9), bounds, groups=groups)
    assert rows == {"train": [0, 1], "validation": [4], "test": [5, 6]}


def test_window_without_room_for_its_gaps_is_refused() -> None:
    with pytest.raises(DataError, match=r"split\.window.*with a gap of 4 days"):
        SplitBounds.of_window(START, START + 10 * DAY, validation=DAY, test=2 * DAY, gap=4 * DAY)
