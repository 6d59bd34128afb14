"""Quantiles and medians of a column, as a suite has them judged."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tests.unit.training.validation.judged_tables import judged_frame, view_of
from training.validation.columns.statistics import profile
from training.validation.suites.table_numbers import ProfileMetrics


def test_two_expectations_on_quantiles_of_a_column_are_judged_by_their_own() -> None:
    def quantile(share: float, value: float) -> dict[str, Any]:
        ranges = {"quantiles": [share], "value_ranges": [[value, value]]}
        return {"type": "expect_column_quantile_values_to_be_between", "kwargs": {"column": "x", "quantile_ranges": ranges}}

    frame = pd.DataFrame({"x": np.arange(11)})
    found = judged_frame(
        [quantile(0.1, 1), quantile(0.9, 9), {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "x"}}], frame
    )
    assert [check.status for check in found] == ["passed"] * 3


@pytest.mark.parametrize("method", ["linear", "lower", "higher", "midpoint", "nearest"])
def test_quantiles_of_the_numbers_of_a_column_are_those_of_numpy(method: str) -> None:
    values, shares = np.random.default_rng(7).normal(size=38), [0.0, 0.1, 0.25, 0.5, 0.77, 1.0]
    exact = [[found, found] for found in np.quantile(values, shares, method=method).tolist()]  # type: ignore[call-overload]
    ranges = {"quantiles": shares, "value_ranges": exact}
    arguments = {"column": "x", "quantile_ranges": ranges, "allow_relative_error": method}
    quantiles = {"type": "expect_column_quantile_values_to_be_between", "kwargs": arguments}
    middle = {"column": "x", "min_value": np.median(values), "max_value": np.median(values)}
    median = {"type": "expect_column_median_to_be_between", "kwargs": middle}
    found = judged_frame([quantiles, median], pd.DataFrame({"x": [math.nan, *values, math.nan]}))
    assert [check.status for check in found] == ["passed"] * 2


@pytest.mark.parametrize(("share", "expected"), [(0.1, -math.inf), (0.3, -math.inf), (0.6, 2.0), (0.7, math.inf), (0.9, math.inf)])
def test_a_quantile_beside_infinite_numbers_is_a_number(share: float, expected: float) -> None:
    ranges = {"quantiles": [share], "value_ranges": [[expected, expected]]}
    arguments = {"column": "x", "quantile_ranges": ranges, "allow_relative_error": "linear"}
    quantile = {"type": "expect_column_quantile_values_to_be_between", "kwargs": arguments}
    (found,) = judged_frame([quantile], pd.DataFrame({"x": [-math.inf, -math.inf, 1.0, 2.0, math.inf, math.inf]}))
    assert found.status == "passed"


def test_a_quantile_between_both_infinities_is_no_number_and_in_no_range() -> None:
    ranges = {"quantiles": [0.5], "value_ranges": [[None, None]]}
    arguments = {"column": "x", "quantile_ranges": ranges, "allow_relative_error": "linear"}
    median = {"type": "expect_column_median_to_be_between", "kwargs": {"column": "x", "min_value": -5}}
    quantile = {"type": "expect_column_quantile_values_to_be_between", "kwargs": arguments}
    found = judged_frame([quantile, median], pd.DataFrame({"x": [-math.inf, math.inf]}))
    assert [check.status for check in found] == ["failed"] * 2
    assert found[0].observed == "quantiles [0.5], values [nan]"


def test_a_rank_of_many_numbers_is_found_in_its_bin(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    values = rng.permutation(np.concatenate([rng.normal(size=5_000), [-math.inf] * 30, [math.inf] * 40, [-0.0, 0.0]]))
    view = view_of(tmp_path, pa.table({"x": values}), {"x": "double"}, files=2)
    profiles = profile(view, (0, 1))
    numbers = profiles["x"].numbers
    assert numbers is not None
    assert numbers.total.histogram.shift, "a bin has several values"
    metrics, ordered = ProfileMetrics(view, profiles), np.sort(values)
    for rank in (0, 29, 30, *range(100, 5_000, 150), 5_031, 5_032, 5_070):
        assert metrics._at("x", numbers.total, rank, rank + 1) == (ordered[rank], ordered[rank + 1])
