"""Numbers whose differences are lost in cells of 32 bits are refused by name; those that only look so are taken."""

from __future__ import annotations

import logging

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from tests.unit.training.data.fitted_columns import fit_one, plan
from training.data.features.rounding_loss import SAMPLED_VALUES, SampledValues, rounding_loss
from training.data.features.transforms import FittedTransforms
from training.errors import DataError

RNG = np.random.default_rng(5)
ROWS = 4_000
NORMAL = RNG.normal(size=ROWS)
METER = np.round(400_000_000 + 30 * NORMAL, 2)
YEAR = 1_770_000_000 + RNG.integers(0, 365 * 86_400, ROWS).astype(np.float64)
FEW = RNG.random(ROWS) < 0.02


def marked(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the values with -999999999 in some rows."""
    return np.where(FEW, -999_999_999.0, values)


@pytest.mark.parametrize(
    "values",
    [1_770_000_000 + RNG.integers(0, 64, ROWS).astype(np.float64), METER, marked(METER), 4e15 + 3_000 * NORMAL],
    ids=["ids of ten digits", "a meter", "a meter with a marker for missing", "microseconds"],
)
def test_numbers_that_lose_their_differences_are_refused_with_the_transform_that_keeps_them(values: NDArray[np.float64]) -> None:
    with pytest.raises(DataError, match="feature 'x': cells of 32 bits round its values by") as caught:
        fit_one(list(values), "number")
    assert caught.value.code == "transform.rounding"
    assert "prepare.features.x to {transform: standard, fill: keep}" in str(caught.value.hint)


@pytest.mark.parametrize(
    "values",
    [
        YEAR,
        marked(10 * NORMAL),
        np.exp(4 * NORMAL),
        np.where(FEW, 0.1 + 0.2, 0.3),
        np.where(FEW, 1.0, 0.1),
        np.full(ROWS, 123_456_789.0),
        np.round(20 * NORMAL, 2),
        np.where(np.arange(ROWS) == 0, 1e41, NORMAL),
    ],
    ids=["a year of seconds", "a marker", "a long tail", "0.1 + 0.2", "nearly constant", "constant", "money", "too large for a cell"],
)
def test_numbers_that_keep_their_differences_are_taken_without_a_word(
    values: NDArray[np.float64], caplog: pytest.LogCaptureFixture
) -> None:
    fit_one(list(values), "number")
    assert not caplog.records


def test_numbers_that_lose_some_digits_are_named_in_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    fit_one(list(100_000_000 + 500 * NORMAL), "number", fill="mean")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "feature 'x': cells of 32 bits round its values by 0.0046 of their deviation" in record.getMessage()
    assert "{transform: standard, fill: mean}" in record.getMessage()


def test_standard_keeps_the_digits_that_number_loses(caplog: pytest.LogCaptureFixture) -> None:
    transforms = fit_one(list(METER), "standard")
    cells = transforms.apply(pd.DataFrame({"x": METER}), serving=False).floats[:, 0]
    assert np.corrcoef(cells, NORMAL)[0, 1] > 0.9999
    assert not caplog.records


def test_mean_far_from_most_values_is_named_in_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    fit_one(list(np.where(FEW, -999_999_999.0, 400_000_000 + 3 * NORMAL)), "standard")
    (record,) = caplog.records
    assert "make extreme values null in prepare.derive" in record.getMessage()


def test_ids_that_trees_cannot_tell_apart_are_refused() -> None:
    with pytest.raises(DataError, match=r"transform\.rounding.*\{transform: category\}"):
        fit_one(list(1_770_000_000 + RNG.integers(0, 64, ROWS)), "identity")


def test_loss_is_that_of_all_batches_and_of_a_sample_where_there_are_many() -> None:
    rows = 5 * SAMPLED_VALUES + 3
    values = 400_000_000 + 30 * np.random.default_rng(1).normal(size=rows)
    sampled = SampledValues()
    for batch in np.array_split(values, 7):
        sampled.add(batch)
    assert SAMPLED_VALUES < len(sampled.values) <= 2 * SAMPLED_VALUES
    assert np.array_equal(sampled.values, values[::4])
    assert rounding_loss(sampled.values)[0] == pytest.approx(rounding_loss(values)[0], rel=0.02)
    plans = [plan("x", "number")]
    planned = FittedTransforms.planned(["x"], derived=[], features=plans)
    with pytest.raises(DataError, match=r"transform\.rounding"):
        planned.fitted(plans, [{"x": pd.Series([400_000_000.0])}, {"x": pd.Series(values[:500])}])
