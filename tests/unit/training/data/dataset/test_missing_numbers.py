"""Numbers that a family cannot do without."""

import numpy as np
import pytest

from training.data.dataset.dataset_writer import _check_numbers
from training.data.features.transforms import LayoutEntry, Matrix
from training.errors import DataError


def test_all_features_that_lack_a_number_are_named_with_their_counts() -> None:
    cells = np.array([[np.nan, 1, np.nan], [2, 3, np.nan]], dtype=np.float32)
    layout = tuple(LayoutEntry(name=name, dtype="float32", cardinality=0) for name in ("fee", "age", "rain"))
    with pytest.raises(DataError) as caught:
        _check_numbers(Matrix(cells=cells.view(np.int32), layout=layout))
    assert "feature 'fee': 1 of 2 rows that were looked at lack a number; feature 'rain': 2" in str(caught.value)
