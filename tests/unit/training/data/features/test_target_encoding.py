"""Target encoding: the formula, labels that a training row must not see, and the same cells in any order."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from training.data.features.encoders import EncoderSettings
from training.data.features.target_encoding import NOT_TRAINING, TargetRows, fold_numbers
from training.data.features.transforms import FeaturePlan, FittedTransforms
from training.errors import DataError


def fit(values: Any, label: Any, numbers: Any = None, **settings: Any) -> FittedTransforms:
    label = np.asarray(label, dtype=np.float32)
    target = TargetRows(label=label, numbers=np.arange(len(label), dtype=np.int32) if numbers is None else numbers)
    plan = FeaturePlan(name="x", settings=EncoderSettings(kind="target_encode", **settings), target=target)
    return FittedTransforms.fit(pd.DataFrame({"x": values}), derived=[], features=[plan])


def cells(transforms: FittedTransforms, values: Any, numbers: NDArray[np.int32] | None = None) -> NDArray[np.float32]:
    return transforms.apply(pd.DataFrame({"x": values}), serving=numbers is None, fold_numbers=numbers).floats[:, 0]


def test_cell_is_the_smoothed_mean_of_all_training_rows_and_the_prior_for_values_without_rows() -> None:
    transforms = fit(["a", "a", "a", "b", None], [1, 1, 0, 0, 1], smoothing=2.0)
    expected = [(2 + 2 * 0.6) / 5, (0 + 2 * 0.6) / 3, 0.6, 0.6]
    assert cells(transforms, ["a", "b", "zz", None]).tolist() == pytest.approx(expected, rel=1e-7)
    assert transforms.layout[0].dtype == "float32"


def test_training_row_has_the_cell_of_the_other_folds() -> None:
    numbers = np.array([0, 1, 3, 4, 5], dtype=np.int32)
    transforms = fit(["a", "a", "a", "b", "a"], [1, 0, 1, 1, 0], numbers, smoothing=1.0, folds=3)
    found = cells(transforms, ["a", "a", "a", "b", "a"], numbers)
    # Of a: fold 0 has the labels 1 and 1, fold 1 has 0, fold 2 has 0; the prior is 0.6.
    assert found.tolist() == pytest.approx([0.6 / 3, 2.6 / 4, 0.6 / 3, 0.6, 2.6 / 4], rel=1e-6)


def test_absent_keys_are_five_folds_and_a_smoothing_of_ten_rows() -> None:
    values, label = ["a", "b"] * 30, [1, 0, 0, 0] * 15
    numbers = np.arange(60, dtype=np.int32)
    found, stated = fit(values, label, numbers), fit(values, label, numbers, folds=5, smoothing=10.0)
    assert found.to_json() == stated.to_json()
    assert cells(found, values, numbers).tobytes() == cells(stated, values, numbers).tobytes()


def test_training_row_without_a_value_has_the_prior_whatever_other_such_rows_have() -> None:
    values, label = [None, "a"] * 10, [1, 0] * 10
    found = cells(fit(values, label), values, np.arange(20, dtype=np.int32))
    assert set(found[::2].tolist()) == {0.5}


def test_rows_beside_the_training_rows_have_what_a_served_model_has() -> None:
    values, label = ["a", "b"] * 10, [1, 0, 0, 0] * 5
    transforms = fit(values, label)
    again = FittedTransforms.from_json(transforms.to_json())
    validation = cells(transforms, values, np.full(20, NOT_TRAINING, dtype=np.int32))
    assert validation.tobytes() == cells(transforms, values).tobytes() == cells(again, values).tobytes()
    assert again.to_json() == transforms.to_json()


@pytest.mark.parametrize("rows_of_a_value", [1, 2, 5])
def test_key_that_says_nothing_orders_no_training_row(rows_of_a_value: int) -> None:
    rng = np.random.default_rng(7)
    values = np.repeat(np.arange(20_000 // rows_of_a_value), rows_of_a_value)
    label = rng.integers(0, 2, len(values))
    numbers = fold_numbers([pa.chunked_array([np.arange(len(values))])], np.ones(len(values), dtype=bool))
    transforms = fit(values, label, numbers, smoothing=1.0)
    assert roc_auc_score(label, cells(transforms, values, numbers)) == pytest.approx(0.5, abs=0.02)
    # The cells of all training rows, which only other rows may have, would give the label away.
    assert roc_auc_score(label, cells(transforms, values)) > 0.7


def test_value_with_one_row_has_the_prior_whatever_its_label_is() -> None:
    values, label = [f"k{n}" for n in range(100)], [n % 2 for n in range(100)]
    found = cells(fit(values, label), values, np.arange(100, dtype=np.int32))
    assert set(found.tolist()) == {0.5}


def test_cells_do_not_depend_on_the_order_of_rows() -> None:
    rng = np.random.default_rng(1)
    values, label = rng.integers(0, 40, 5000), (10 ** rng.normal(0, 8, 5000)).astype(np.float32)
    numbers = fold_numbers([pa.chunked_array([np.arange(5000)])], np.ones(5000, dtype=bool))
    first = fit(values, label, numbers)
    order = rng.permutation(5000)
    other = fit(values[order], label[order], numbers[order])
    assert first.to_json() == other.to_json()
    assert cells(first, values, numbers)[order].tobytes() == cells(other, values[order], numbers[order]).tobytes()


def test_sums_are_exact() -> None:
    label = np.array([1e30, 1.0, -1e30, 3.0], dtype=np.float32)
    transforms = fit(["a"] * 4, label, np.zeros(4, dtype=np.int32), smoothing=1.0)
    total = sum(Fraction(float(value)) for value in label)
    assert cells(transforms, ["a"])[0] == pytest.approx(float((total + total / 4) / 5), rel=1e-7)


def test_fold_follows_from_the_key_alone() -> None:
    keys = np.array([5, 6, 7, 8, 9])
    found = fold_numbers([pa.chunked_array([keys])], np.array([True, True, False, True, True]))
    assert found[2] == NOT_TRAINING
    assert (found[[0, 1, 3, 4]] >= 0).all()
    backwards = fold_numbers([pa.chunked_array([keys[::-1].astype(np.int32)])], np.array([True, True, False, True, True]))
    assert backwards.tolist() == found[::-1].tolist()


@pytest.mark.parametrize(
    ("values", "seen", "same"),
    [
        ([0.0, -0.0, 1.0], -0.0, 0.0),
        ([7, 7, 3], 7.0, 7),
        (["é", "e", ""], "é", "é"),
        (["é", "e", ""], "", ""),
        ([1.0, np.nan, 2.0], np.nan, 3.0),
    ],
    ids=["zeros", "types", "unicode", "empty", "NaN is never seen"],
)
def test_equal_values_have_equal_cells(values: list[Any], seen: Any, same: Any) -> None:
    transforms = fit(values, [1, 0, 0])
    assert cells(transforms, [seen])[0] == cells(transforms, [same])[0]


@pytest.mark.parametrize(
    ("values", "label", "settings", "code"),
    [
        ([None, None], [0, 1], {}, "data.all_missing"),
        (["a", "b"], [0, np.inf], {}, "data.nonfinite"),
        ([1.0, np.inf], [0, 1], {}, "data.nonfinite"),
        (["a", "b", "c"], [0, 1, 1], {"max_categories": 2}, "cardinality"),
    ],
)
def test_column_that_cannot_be_encoded_is_refused(values: list[Any], label: list[float], settings: dict[str, Any], code: str) -> None:
    with pytest.raises(DataError) as caught:
        fit(values, label, **settings)
    assert caught.value.code == code
