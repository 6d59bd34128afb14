"""Verdicts on a profile and on batches of rows are those of Great Expectations on a frame of all rows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.unit.training.validation.generated_suites import expectations, table
from tests.unit.training.validation.judged_tables import judged, judged_by_great_expectations, view_of
from training.data.snapshot import parquet_parts
from training.errors import SpecError
from training.validation import snapshot_view
from training.validation.columns import values as value_columns
from training.validation.results import CheckResult


def assert_equal(found: list[CheckResult], expected: list[CheckResult], suite: list[dict[str, Any]]) -> None:
    for mine, theirs, expectation in zip(found, expected, suite, strict=True):
        assert mine.status == theirs.status, (mine, theirs, expectation)
        if not theirs.observed.startswith("not evaluated"):
            # Which of -0.0 and 0.0 stands for both depends on the order of the rows.
            assert mine.observed.replace("-0.0", "0.0") == theirs.observed.replace("-0.0", "0.0"), (mine, theirs, expectation)
            assert mine.detail.replace("-0.0", "0.0") == theirs.detail.replace("-0.0", "0.0"), (mine, theirs, expectation)


def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few rows be many: chunks and histograms that must be divided."""
    for module in (parquet_parts, snapshot_view):
        monkeypatch.setattr(module, "CHUNK_ROWS", 7)
    monkeypatch.setattr("training.validation.columns.histogram.MAX_BINS", 8)
    monkeypatch.setattr(value_columns, "MAX_HELD", 12)


def with_offset(expectation: Any, kinds: dict[str, str]) -> Any:
    """Return an expectation whose bounds of a timestamp are instants; a day without an offset is refused."""
    kwargs = expectation["kwargs"]
    if kinds.get(kwargs.get("column", "")) == "timestamp":
        bounds = {name: f"{kwargs[name]}T00:00:00+00:00" for name in ("min_value", "max_value") if len(str(kwargs.get(name) or "")) == 10}
        return {**expectation, "kwargs": {**kwargs, **bounds}}
    return expectation


def compare(folder: Path, seeds: range) -> int:
    """Compare generated tables; return the number of expectations judged."""
    count = 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        rows, kinds = table(rng)
        suite = [with_offset(each, kinds) for each in expectations(rng, rows, kinds)]
        found = judged(view_of(folder / str(seed), rows, kinds, files=int(rng.integers(1, 4))), suite)
        assert_equal(found, judged_by_great_expectations(suite, rows.to_pandas()), suite)
        count += len(found)
    return count


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_verdicts_of_a_hundred_tables_are_those_on_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_chunks(monkeypatch)
    assert compare(tmp_path, range(100)) > 1000


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_verdicts_of_a_thousand_tables_are_those_on_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_chunks(monkeypatch)
    assert compare(tmp_path, range(100, 1100)) > 10_000


def test_an_expectation_that_needs_all_rows_is_refused_above_the_limit_before_anything_is_read(tmp_path: Path) -> None:
    rows = pa.table({"x": pa.array(range(1000), pa.int64()), "word": pa.array(["abcd"] * 1000)})
    view = view_of(tmp_path, rows, {"x": "int64", "word": "string"})
    rising = {"type": "expect_column_values_to_be_increasing", "kwargs": {"column": "x"}}
    outliers = {"type": "expect_column_values_to_not_be_outliers", "kwargs": {"column": "word"}}
    assert [check.status for check in judged(view, [rising], limit=8000)] == ["passed"]
    with pytest.raises(SpecError) as caught:
        judged(view, [rising], limit=7999)
    assert caught.value.code == "suite.memory"
    assert "expect_column_values_to_be_increasing of x needs all rows in memory" in str(caught.value)
    assert "use expect_column_values_to_be_between, or raise validate.memory" in str(caught.value)
    # 8 bytes a row, and the bytes of its text.
    with pytest.raises(SpecError, match="expect_column_quantile_values_to_be_between"):
        judged(view, [outliers], limit=11_999)


def test_too_many_different_texts_are_held_to_the_limit_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_columns, "MAX_HELD", 10)
    view = view_of(tmp_path, pa.table({"word": pa.array([f"w{number:03}" for number in range(100)])}), {"word": "string"})
    most_common = {
        "type": "expect_column_most_common_value_to_be_in_set",
        "kwargs": {"column": "word", "value_set": ["w001"], "ties_okay": True},
    }
    count = {"type": "expect_column_unique_value_count_to_be_between", "kwargs": {"column": "word", "max_value": 100}}
    assert [check.observed for check in judged(view, [count], limit=1)] == ["100"]
    with pytest.raises(SpecError, match="on a number column or one with fewer different values"):
        judged(view, [most_common], limit=1199)
    assert [check.status for check in judged(view, [most_common], limit=1200)] == ["passed"]


def test_nan_of_files_whose_statistics_leave_it_out_is_no_value(tmp_path: Path) -> None:
    rows = pa.table({"x": pa.array([math.nan, 1.0, 2.0, 3.0], pa.float32())})
    unique = {"type": "expect_column_proportion_of_unique_values_to_be_between", "kwargs": {"column": "x", "max_value": 1}}
    repeated = {"type": "expect_column_values_to_be_unique", "kwargs": {"column": "x"}}
    found = judged(view_of(tmp_path, rows, {"x": "float"}), [unique, repeated])
    assert [(check.status, check.observed) for check in found] == [("passed", "1"), ("passed", "0 unexpected of 4 rows")]
