"""Fits of transforms: equal in any order and any batches, also where values do not fit the memory; large integers."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.unit.training.data.fitted_columns import apply_one, fit_one, plan
from training.data.features import vocabulary as value_numbers
from training.data.features.encoders import EncoderSettings
from training.data.features.target_encoding import TargetRows
from training.data.features.transforms import FeaturePlan, FittedTransforms
from training.data.features.vocabulary import ValueRuns
from training.errors import DataError

FIT_PLANS = [
    plan("number", "standard"),
    plan("small", "number", fill="mean"),
    plan("positive", "log"),
    plan("text", "category"),
    plan("ids", "category", top=3),
    plan("mixed", "bucket", buckets=7),
    plan("at", "datetime", parts=("hour", "week"), form="cyclic"),
    plan("words", "text", buckets=4),
]


@pytest.mark.parametrize("seed", range(5))
def test_fits_are_equal_in_any_order_and_any_batches(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    rows = 997
    some = rng.random(rows) < 0.1
    frame = pd.DataFrame(
        {
            "number": np.where(some, np.nan, rng.normal(size=rows) * 10.0 ** rng.integers(-200, 100, rows)),
            "small": rng.normal(size=rows).astype(np.float32),
            "positive": rng.lognormal(3, 5, rows),
            "text": pd.Series(rng.choice(["b", "a", "ü", None], rows), dtype=object),
            "ids": rng.integers(0, 9, rows) * 2**57,
            "mixed": np.where(some, np.nan, rng.normal(size=rows)),
            "at": pd.to_datetime(rng.integers(0, 10**9, rows), unit="s", utc=True),
            "words": pd.Series(rng.choice(["one two", "two", None], rows), dtype=object),
        }
    )
    whole = FittedTransforms.fit(frame, derived=[], features=FIT_PLANS).to_json()

    monkeypatch.setattr("training.data.exact.quantiles.QUANTILE_BYTES", 100)
    shuffled = frame.iloc[rng.permutation(rows)]
    edges = [0, 1, *np.sort(rng.integers(2, rows, 6)).tolist(), rows]
    batches = [dict(shuffled.iloc[first:end].items()) for first, end in itertools.pairwise(edges) if first < end]
    planned = FittedTransforms.planned(list(frame.columns), derived=[], features=FIT_PLANS)
    assert planned.fitted(FIT_PLANS, batches, tmp_path).to_json() == whole


def test_target_encoding_is_equal_in_any_batches() -> None:
    rng = np.random.default_rng(3)
    rows = 1_000
    label, numbers = rng.normal(size=rows).astype(np.float32), rng.integers(0, 1 << 20, rows).astype(np.int32)
    column = pd.Series(rng.choice(["x", "y", "z", None], rows), dtype=object)
    plans = [FeaturePlan(name="v", settings=EncoderSettings(kind="target_encode"), target=TargetRows(label=label, numbers=numbers))]
    planned = FittedTransforms.planned(["v"], derived=[], features=plans)
    whole, parts = (
        planned.fitted(plans, [{"v": column}]),
        planned.fitted(plans, [{"v": column[:1]}, {"v": column[1:600]}, {"v": column[600:]}]),
    )
    assert parts.to_json() == whole.to_json()
    frame = pd.DataFrame({"v": column})
    one, other = (found.apply(frame, serving=False, fold_numbers=numbers).cells for found in (whole, parts))
    assert one.tobytes() == other.tobytes()


def test_integers_from_2_53_are_categories_in_full_and_refused_where_a_batch_has_them_as_floats() -> None:
    plans = [plan("x", "category")]
    planned = FittedTransforms.planned(["x"], derived=[], features=plans)
    fitted = planned.fitted(plans, [{"x": pd.Series([2**60 + 1, 1])}, {"x": pd.Series([3.0, None])}])
    assert json.loads(fitted.to_json())["features"][0]["parameters"]["values"] == [1, 3, 2**60 + 1]
    with pytest.raises(DataError, match=r"from 2\*\*53") as caught:
        planned.fitted(plans, [{"x": pd.Series([2**60, 1])}, {"x": pd.Series([2.0**60, None])}])
    assert caught.value.code == "transform.precision"


@pytest.mark.parametrize("kind", ["text", "int", "float", "int, then float"])
def test_most_frequent_values_are_the_same_where_the_values_do_not_fit_the_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    numbers = np.random.default_rng(3).zipf(1.3, 3000) % 700
    values = [f"w\U0001f600{n}" if n % 2 else f"w\uffee{n}" for n in numbers] if kind == "text" else (numbers + 2**40).tolist()
    column = pd.Series(values, dtype=object if kind == "text" else "float64" if kind == "float" else "int64")
    batches = [{"x": column[first : first + 100]} for first in range(0, 3000, 100)]
    if kind == "int, then float":
        batches[-1]["x"] = batches[-1]["x"].astype("float64")
    plans = [plan("x", "category", top=50)]
    planned = FittedTransforms.planned(["x"], derived=[], features=plans)
    in_memory = planned.fitted(plans, batches)
    counts = column.value_counts()
    assert (
        json.loads(in_memory.to_json())["features"][0]["parameters"]["values"] == sorted(counts.index, key=lambda v: (-counts[v], v))[:50]
    )

    monkeypatch.setattr(value_numbers, "HELD_VALUES", 20)
    written = []
    monkeypatch.setattr(value_numbers.ValueRuns, "write", lambda runs, *of, write=ValueRuns.write: written.append(1) or write(runs, *of))
    assert planned.fitted(plans, batches, tmp_path).to_json() == in_memory.to_json()
    assert len(written) > 20
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("late", "code"), [(2**60, "transform.precision"), (float("inf"), "data.nonfinite")])
def test_values_are_refused_though_their_batch_is_on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, late: float, code: str) -> None:
    monkeypatch.setattr(value_numbers, "HELD_VALUES", 3)
    plans = [plan("x", "category", top=2)]
    planned = FittedTransforms.planned(["x"], derived=[], features=plans)
    batches = [[1.0, 2.0, 3.0, 4.0], [late, late, 5.0, 6.0], [7.0, None, 8.0, 9.0]]
    with pytest.raises(DataError, match=r"2 (values from|of 12)") as caught:
        planned.fitted(plans, [{"x": pd.Series(batch, dtype="float64")} for batch in batches], tmp_path)
    assert caught.value.code == code


def test_hash_tells_neighbours_from_2_53_apart_in_columns_without_a_missing_value() -> None:
    large = [2**53 + 1, 2**53, 2**60 + 1, -(2**62) - 1]
    transforms = fit_one(large, "hash", "int64")
    assert len(set(apply_one(transforms, large, "int64"))) == 4
    assert apply_one(transforms, [*large, None], "Int64") == [*apply_one(transforms, large, "int64"), 0]
    # As before, and as a float.
    assert apply_one(transforms, [7, 2**52], "int64") == apply_one(transforms, [7.0, 2.0**52], "float64")
    with pytest.raises(DataError, match=r"feature 'x': 1 values from 2\*\*53") as caught:
        apply_one(transforms, [7.0, 2.0**53], "float64")
    assert caught.value.code == "transform.precision"


def test_a_model_whose_rows_had_no_such_integer_hashes_as_models_made_before() -> None:
    transforms = fit_one([1, 2**53, 2**60], "hash", "int64")
    (feature,) = json.loads(transforms.to_json())["features"]
    assert feature["parameters"] == {"buckets": 1 << 16}
    for dtype in ("int64", "Int64", "object"):
        first, second = apply_one(transforms, [2**60, 2**60 + 1], dtype)
        assert first == second


def test_zero_has_one_bucket_with_either_sign_in_any_order() -> None:
    transforms = fit_one([1.5, 2.5], "hash", "float64")
    assert apply_one(transforms, [-0.0], "float64") == apply_one(transforms, [0.0], "float64") == apply_one(transforms, [0], "int64")
    assert len(set(apply_one(transforms, [-0.0, 0.0], "float64"))) == 1


def test_hash_refuses_numbers_that_may_have_been_other_integers() -> None:
    assert apply_one(fit_one([1.5, None, 2.0**53 - 1], "hash", "float64"), [None], "float64") == [0]
    with pytest.raises(DataError, match=r"feature 'x': 2 values from 2\*\*53, such as 9007199254740992") as caught:
        fit_one([2.0**53, None, -(2.0**60), 3.0], "hash", "float64")
    assert caught.value.code == "transform.precision"
