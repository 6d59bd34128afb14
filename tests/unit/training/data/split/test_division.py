"""Which rows of a joined frame a dataset has."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from training.data.dataset.scratch_arrays import ScratchArrays
from training.data.join.engines.scratch_frame import ScratchFrame
from training.data.split.by_time import SplitBounds
from training.data.split.division import DividedRows, divide_rows
from training.errors import DataError

START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def divided(folder: Path, days: list[int], shops: list[str] | None, *, gap: timedelta | None, num_days: int = 8) -> DividedRows:
    """Divide rows of these days of a window: one day of validation, one of test."""
    times = pa.array([START + day * DAY for day in days], pa.timestamp("us", tz="UTC"))
    columns = {"at": times, "day": pa.array(days), **({} if shops is None else {"shop": pa.array(shops)})}
    table = pa.table({**columns, "label": pa.array([0.0] * len(days), pa.float32())})
    frame = ScratchFrame.of_batches(folder / "joined.arrow", table.schema, iter([table]))
    data = SimpleNamespace(source=SimpleNamespace(event_time="at"), group=shops and "shop", split=SimpleNamespace(gap=gap))
    spec: Any = SimpleNamespace(data=data)
    bounds = SplitBounds.of_window(START, START + num_days * DAY, validation=DAY, test=DAY, gap=gap or timedelta())
    return divide_rows(spec, frame, bounds, ScratchArrays(folder))


def days_of(rows: DividedRows) -> dict[str, list[int]]:
    days = rows.frame.column("day").to_numpy()
    return {split: days[numbers].tolist() for split, numbers in rows.rows.items()}


def test_rows_after_the_end_of_test_are_left_out(tmp_path: Path) -> None:
    found = divided(tmp_path, [0, 3, 6, 7, 8, 9], None, gap=None)
    assert days_of(found) == {"train": [0, 3], "validation": [6], "test": [7]}
    assert found.frame.num_rows == 4


@pytest.mark.parametrize("num_days", [8, 9])
def test_rows_of_the_gaps_are_left_out_and_the_others_numbered_without_them(tmp_path: Path, num_days: int) -> None:
    found = divided(tmp_path, [0, 1, 2, 3, 4, 5, 6, 7, 8], None, gap=DAY, num_days=num_days)
    first = num_days - 4
    assert days_of(found) == {"train": list(range(first)), "validation": [first + 1], "test": [first + 3]}
    assert found.frame.num_rows == sum(len(numbers) for numbers in found.rows.values())


def test_groups_are_numbered_densely_after_rows_are_left_out(tmp_path: Path) -> None:
    found = divided(tmp_path, [0, 1, 4, 5, 6, 7, 9], ["a", "b", "gap", "c", "gap2", "d", "late"], gap=DAY)
    assert found.groups is not None
    assert found.groups.tolist() == [0, 1, 2, 3]
    assert found.frame.column("shop").to_pylist() == ["a", "b", "c", "d"]


def test_a_group_goes_where_its_first_row_does(tmp_path: Path) -> None:
    found = divided(tmp_path, [0, 1, 6, 6, 7], ["a", "b", "a", "c", "d"], gap=None)
    assert days_of(found) == {"train": [0, 1, 6], "validation": [6], "test": [7]}
    assert found.groups is not None
    assert found.groups.tolist() == [0, 1, 0, 2, 3]


def test_split_without_rows_is_refused_by_its_name_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="split 'test' has 0 rows of 3") as caught:
        divided(tmp_path, [0, 1, 6], None, gap=None)
    assert caught.value.code == "data.too_small"
    assert re.fullmatch(r"no row is of \S+T\S+ or later: lengthen data.split.test, or bring newer rows", caught.value.hint)
    with pytest.raises(DataError, match="split 'validation' has 0 rows of 3") as caught:
        divided(tmp_path, [0, 1, 7], None, gap=None)
    assert caught.value.hint == "shorten data.split, or lengthen data.source.window"


def test_rows_in_a_gap_count_among_those_that_a_small_split_is_of(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="split 'validation' has 0 rows of 4"):
        divided(tmp_path, [0, 1, 4, 7], None, gap=DAY)
