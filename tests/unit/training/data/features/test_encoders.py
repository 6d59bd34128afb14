"""Categories: integers that float64 lacks, looked up in columns of floats; columns without a value to fit on."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from training.data.features.encoders import Category
from training.errors import DataError

LARGE = 2**53 + 1


def test_a_fraction_is_no_category_of_integers() -> None:
    column = pd.Series([3.0, 3.5, np.nan, np.inf, -3.0])
    assert Category(values=[3, LARGE]).encode(column, "customer").tolist() == [1, 0, 0, 0, 0]
    assert Category(values=[3, LARGE]).encode(pd.Series([LARGE, LARGE + 1, 3]), "customer").tolist() == [2, 0, 1]


def test_a_float_that_may_be_another_integer_is_refused() -> None:
    with pytest.raises(DataError) as caught:
        Category(values=[3, LARGE]).encode(pd.Series([3.0, float(LARGE)]), "customer")
    assert caught.value.code == "transform.precision"


@pytest.mark.parametrize("column", [["north", None, "south"], [3.0, None, 7.0]])
def test_values_of_a_column_that_was_empty_in_the_train_rows_are_all_unknown(column: list[object]) -> None:
    cells = pd.Series(column)
    assert Category(values=[]).encode(cells, "area").tolist() == [0, 0, 0]
    assert Category(values=[], pooled=True).encode(cells, "area").tolist() == [1, 0, 1]
