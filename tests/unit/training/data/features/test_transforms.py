"""Transforms: fitted on what they are given alone, equal for equal rows in any order, the same after a trip through JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.unit.training.data.fitted_columns import apply_one, fit_one, plan
from training.data.features.transforms import FittedTransforms, Matrix
from training.data.features.transforms_file import serving_inputs
from training.data.join.derived import DerivedColumn
from training.errors import DataError

ROOT = Path(__file__).resolve().parents[5]


def test_categories_are_numbered_by_frequency_then_value_and_zero_is_the_rest() -> None:
    transforms = fit_one(["b", "a", "c", "c", None], "category")
    assert apply_one(transforms, ["c", "a", "b", "zz", None]) == [1, 2, 3, 0, 0]
    assert transforms.layout[0].cardinality == 4


def test_pooled_category_has_one_id_for_all_but_the_most_frequent_values_and_another_for_a_missing_one() -> None:
    transforms = fit_one(["b", "a", "c", "c", "a", "d", None], "category", top=2)
    assert apply_one(transforms, ["a", "c", "b", "d", "zz", None]) == [1, 2, 3, 3, 3, 0]
    assert transforms.layout[0].cardinality == 4
    assert FittedTransforms.from_json(transforms.to_json()).to_json() == transforms.to_json()


@pytest.mark.parametrize("kind", ["number", "standard", "log", "category", "hash", "identity", "bucket"])
def test_what_was_fitted_is_the_same_after_a_trip_through_json(kind: str) -> None:
    fitted = fit_one([1, 2, 2, 3], kind, "int64")
    again = FittedTransforms.from_json(fitted.to_json())
    assert again.to_json() == fitted.to_json()
    assert apply_one(again, [1, 3, 4], "int64") == apply_one(fitted, [1, 3, 4], "int64")


@pytest.mark.parametrize("kind", ["number", "standard", "category", "hash", "identity", "bucket"])
def test_booleans_are_the_same_with_and_without_a_missing_one(kind: str) -> None:
    values = [True, False, True, True]
    whole = apply_one(fit_one(values, kind, "bool"), values, "bool")
    transforms = fit_one([*values, None], kind, object)
    assert apply_one(transforms, [*values, None], object)[:4] == apply_one(transforms, values, "bool")
    assert (whole[0] > whole[1]) == (apply_one(transforms, values, object)[0] > apply_one(transforms, values, object)[1])


@pytest.mark.parametrize(("kind", "values"), [("standard", [1e308, -1.0]), ("number", [1.7e308, 1.7e308]), ("standard", [1e200, -1e200])])
def test_values_whose_mean_or_deviation_is_infinite_are_refused_by_name(kind: str, values: list[float]) -> None:
    with pytest.raises(DataError, match=r"feature 'x'.* infinite") as caught:
        fit_one(values, kind)
    assert caught.value.code == "data.nonfinite"


def test_integers_that_pandas_cannot_tell_apart_are_no_categories() -> None:
    large = 2**53
    assert apply_one(fit_one([large + 1, large, large], "category", "int64"), [large, large + 1], "int64") == [1, 2]
    with pytest.raises(DataError, match=r"from 2\*\*53") as caught:
        fit_one([large, 1, None], "category", "float64")
    assert caught.value.code == "transform.precision"


def test_pooled_category_of_numbers_takes_what_max_categories_would_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.data.features.fitting.DEFAULT_MAX_CATEGORIES", 100)
    values = list(range(1000)) * 2 + [7]
    with pytest.raises(DataError, match="cardinality"):
        fit_one(values, "category")
    transforms = fit_one(values, "category", top=1)
    assert apply_one(transforms, [7, 8, -1, 2.5]) == [1, 2, 2, 2]


@pytest.mark.parametrize("dtype", ["int32", "int64", "float64", "Int64", "float32"])
def test_category_of_numbers_does_not_depend_on_the_type_that_carries_them(dtype: str) -> None:
    assert apply_one(fit_one([7, 7, 3, 9], "category", "int64"), [7, 3, 9, 4], dtype) == [1, 2, 3, 0]


def test_large_ids_are_distinguished() -> None:
    big = 2**60
    assert apply_one(fit_one([big, big, big + 1], "category"), [big + 1, big, big + 2]) == [2, 1, 0]


def test_negative_zero_is_zero() -> None:
    assert apply_one(fit_one([0.0, 0.0, 1.5], "category"), [-0.0, 0.0, 1.5]) == [1, 1, 2]
    assert fit_one([-0.0, 1.0], "category").to_json() == fit_one([0.0, 1.0], "category").to_json()
    cells = fit_one([0.0, 1.0], "number").apply(pd.DataFrame({"x": [-0.0]}), serving=False).cells
    assert cells.tolist() == [[0]]


@pytest.mark.parametrize(
    ("kind", "fill", "expected"),
    [
        ("number", None, [1.0, np.nan, 5.0]),
        ("number", "mean", [1.0, 3.0, 5.0]),
        ("standard", None, [-1.0, 0.0, 1.0]),
        ("standard", "keep", [-1.0, np.nan, 1.0]),
        ("log", None, [-1.0, 0.0, 1.0]),
    ],
)
def test_missing_numbers_are_filled_as_asked(kind: str, fill: str | None, expected: list[float]) -> None:
    transforms = fit_one([1.0, None, 5.0], kind, fill=fill)
    assert apply_one(transforms, [1.0, None, 5.0]) == pytest.approx(expected, nan_ok=True)


def test_log_is_the_standardised_logarithm_of_one_more() -> None:
    values = np.array([0.0, 2.0, 9.0, 30.0])
    logs = np.log1p(values)
    assert apply_one(fit_one(values.tolist(), "log"), values.tolist()) == pytest.approx(
        ((logs - logs.mean()) / logs.std()).tolist(), rel=1e-6
    )
    assert apply_one(fit_one(values.tolist(), "log"), [-5.0]) == [0.0]


def test_infinite_value_counts_as_missing_once_fitted() -> None:
    assert apply_one(fit_one([1.0, 5.0], "standard"), [np.inf, 1e300]) == [0.0, 0.0]


def test_constant_column_is_zero_and_not_infinite() -> None:
    assert apply_one(fit_one([4.0, 4.0], "standard"), [4.0, 5.0]) == [0.0, 1.0]


def test_bucket_counts_the_quantiles_below() -> None:
    transforms = fit_one(list(range(101)), "bucket", buckets=4)
    assert apply_one(transforms, [0, 24, 25, 60, 99, 1000, None]) == [1, 1, 2, 3, 4, 4, 0]
    assert transforms.layout[0].cardinality == 5


def test_hash_is_stable_inside_its_range_and_says_zero_for_missing() -> None:
    ids = apply_one(fit_one(["a"], "hash", buckets=8), ["a", "b", None, "a"])
    assert ids[0] == ids[3] == 8  # BLAKE2b does not change with the process or the version
    assert ids[2] == 0
    assert apply_one(fit_one([5], "hash", buckets=8), [5]) == apply_one(fit_one([5], "hash", buckets=8), [5.0])


def test_identity_keeps_ids_and_maps_unknown_ones_to_zero() -> None:
    transforms = fit_one([0, 3, 2], "identity")
    assert apply_one(transforms, [3, 1, 4, -1, None]) == [3, 1, 0, 0, 0]
    assert transforms.layout[0].cardinality == 4


@pytest.mark.parametrize(
    ("values", "settings", "code"),
    [
        ([1, 2, 3], {"kind": "category", "max_categories": 2}, "cardinality"),
        (["a"], {"kind": "number"}, "schema.type"),
        ([1.0, np.inf], {"kind": "number"}, "data.nonfinite"),
        ([1.0, 1e308, 1.7e308], {"kind": "standard"}, "data.nonfinite"),
        ([None, np.nan], {"kind": "standard"}, "data.all_missing"),
        ([1.0, -2.0], {"kind": "log"}, "transform.negative"),
        ([1.5], {"kind": "identity"}, "transform.not_an_id"),
        ([1], {"kind": "sorcery"}, "transform.unknown"),
        ([1.0, -np.inf], {"kind": "category"}, "data.nonfinite"),
        ([date(2026, 1, 1), None], {"kind": "category"}, "schema.type"),
        ([date(2026, 1, 1)], {"kind": "category", "top": 1}, "schema.type"),
    ],
)
def test_column_that_a_transform_cannot_take_is_refused(values: list[Any], settings: dict[str, Any], code: str) -> None:
    with pytest.raises(DataError) as caught:
        fit_one(values, **settings)
    assert caught.value.code == code


FRAME = pd.DataFrame(
    {
        "carrier": ["AA", "UA", "AA", "DL"],
        "year": [2013, 2013, 2013, 2014],
        "built": [2000.0, None, 2010.0, 2004.0],
        "departure": pd.to_datetime(["2013-07-01T03:30Z", "2013-07-01T12:00Z", "2013-12-01T03:30Z", "2013-12-01T12:00Z"]).as_unit("us"),
        "position": [4, 1, 4, 2],
    }
)
DERIVED = [
    DerivedColumn(name="age", type="double", sql="year - built -- in years"),
    DerivedColumn(name="old", type="int64", sql="CASE WHEN age > 5 THEN 1 ELSE 0 END"),
    DerivedColumn(name="hour", type="int64", sql="hour(timezone('America/New_York', departure))"),
]
PLANS = [
    plan("carrier", "category"),
    plan("age", "number"),
    plan("position", "category", serve_as=1),
    plan("hour", "number"),
    plan("old", "identity"),
]


@pytest.fixture
def fitted() -> FittedTransforms:
    return FittedTransforms.fit(FRAME, derived=DERIVED, features=PLANS)


def same(one: Matrix, other: Matrix) -> bool:
    return one.layout == other.layout and np.array_equal(one.cells, other.cells)


def test_derived_columns_may_use_earlier_ones_and_times_are_local_where_asked(fitted: FittedTransforms) -> None:
    matrix = fitted.apply(FRAME, serving=False)
    assert [entry.name for entry in matrix.layout] == ["age", "hour", "carrier", "position", "old"]
    assert matrix.floats[:, 0].tolist() == pytest.approx([13.0, np.nan, 3.0, 10.0], nan_ok=True)
    assert matrix.floats[:, 1].tolist() == [23.0, 8.0, 22.0, 7.0]
    assert matrix.ints[:, 2].tolist() == [1, 0, 0, 1]
    assert matrix.as_floats().shape == (4, 5)


def test_expressions_see_the_declared_types_of_numbers_whether_or_not_one_is_missing() -> None:
    derived = [DerivedColumn(name="half", type="double", sql="n // 2"), DerivedColumn(name="named", type="string", sql="n || '-' || f")]
    features = [plan("half", "number"), plan("named", "category")]
    rows = pd.DataFrame({"n": [7, 3], "f": [1.5, 2.0]})
    planned = FittedTransforms.planned(["n", "f"], derived=derived, features=features, types={"n": "int64", "f": "double", "z": "int8"})
    fitted = planned.fitted(features, [dict(planned.derive(rows).to_pandas())])

    again = FittedTransforms.from_json(fitted.to_json())

    assert again.to_json() == fitted.to_json()
    assert json.loads(fitted.to_json())["derive_types"] == {"f": "double", "n": "int64"}
    for types in ({}, {"n": "float64"}, {"n": "int16"}, {"n": object}):
        assert again.apply(rows.astype(types), serving=True).floats[:, 0].tolist() == [3.0, 1.0]
    with_null = pd.DataFrame({"n": [7, 3, None], "f": [1.5, 2, None]})
    assert again.apply(with_null, serving=True).ints[:, 0].tolist() == [2, 1, 0]
    # JSON has 2.0 as 2.
    assert again.apply(pd.DataFrame({"n": [3], "f": [2]}), serving=True).ints[:, 0].tolist() == [1]
    with pytest.raises(DataError, match=r"'n' is declared as int64.*2\.5") as caught:
        again.apply(pd.DataFrame({"n": [2.5], "f": [2.0]}), serving=True)
    assert caught.value.code == "schema.type"


def test_a_timestamp_without_zone_counts_as_utc(fitted: FittedTransforms) -> None:
    naive = FRAME.assign(departure=FRAME["departure"].dt.tz_localize(None))
    assert same(fitted.apply(naive, serving=False), fitted.apply(FRAME, serving=False))


def test_constant_replaces_a_feature_only_when_serving_and_its_column_may_be_absent(fitted: FittedTransforms) -> None:
    assert fitted.apply(FRAME, serving=False).ints[:, 1].tolist() == [1, 2, 1, 3]
    assert fitted.apply(FRAME.drop(columns="position"), serving=True).ints[:, 1].tolist() == [2, 2, 2, 2]
    assert fitted.inputs(serving=False) == ("built", "carrier", "departure", "position", "year")
    assert fitted.inputs(serving=True) == ("built", "carrier", "departure", "year")
    assert serving_inputs(fitted.to_json()) == fitted.inputs(serving=True)


def test_json_holds_everything(fitted: FittedTransforms) -> None:
    again = FittedTransforms.from_json(fitted.to_json())
    assert again.to_json() == fitted.to_json()
    assert same(again.apply(FRAME, serving=True), fitted.apply(FRAME, serving=True))
    assert again.layout == fitted.layout


def test_rows_do_not_depend_on_one_another_or_on_their_order(fitted: FittedTransforms) -> None:
    whole = fitted.apply(FRAME, serving=False).cells
    backwards = fitted.apply(FRAME[::-1], serving=False).cells
    single = np.concatenate([fitted.apply(FRAME.iloc[[n]], serving=False).cells for n in range(len(FRAME))])
    assert np.array_equal(whole, backwards[::-1])
    assert np.array_equal(whole, single)


@pytest.mark.parametrize("kind", ["standard", "log", "number", "bucket", "category"])
def test_fitting_depends_on_the_rows_and_not_on_their_order(kind: str) -> None:
    rng = np.random.default_rng(0)
    values = rng.lognormal(sigma=6, size=499)
    written = {fit_one(rng.permutation(values).tolist(), kind).to_json() for _ in range(10)}
    assert len(written) == 1
    assert fit_one(values[values < np.median(values)].tolist(), kind).to_json() not in written


@pytest.mark.slow
def test_fit_does_not_depend_on_the_hash_seed() -> None:
    code = (
        "import pandas as pd, sys; from training.data.features.transforms import *; from training.data.features.encoders import *;"
        "f = pd.DataFrame({'x': list('cabbagecab'), 'y': range(10)});"
        "p = [FeaturePlan(name=n, settings=EncoderSettings(kind=k)) for n, k in (('x', 'category'), ('y', 'log'))];"
        "d = [DerivedColumn(name='z', type='string', sql='lower(x)')];"
        "sys.stdout.buffer.write(FittedTransforms.fit(f, derived=d, features=p).to_json())"
    )
    written = [
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed}, check=True, capture_output=True)
        for seed in ("0", "1")
    ]
    assert written[0].stdout == written[1].stdout
    assert json.loads(written[0].stdout)["format_version"] == 1


def test_unseen_values_have_the_id_of_missing_ones(fitted: FittedTransforms) -> None:
    place = [entry.name for entry in fitted.layout].index("carrier")
    ids = fitted.apply(FRAME.assign(carrier=["AA", "??", None, "!!"]), serving=False).cells[:, place]
    assert (ids == 0).tolist() == [False, True, True, True]


def test_empty_frame_gives_no_rows(fitted: FittedTransforms) -> None:
    assert fitted.apply(FRAME.iloc[:0], serving=True).cells.shape == (0, 5)


def test_frame_that_lacks_a_column_is_refused_by_name(fitted: FittedTransforms) -> None:
    with pytest.raises(DataError, match=r"schema\.missing.*'built'"):
        fitted.apply(FRAME.drop(columns="built"), serving=True)


def test_column_of_another_kind_is_refused_by_name(fitted: FittedTransforms) -> None:
    with pytest.raises(DataError, match=r"schema\.type.*'carrier'"):
        fitted.apply(FRAME.assign(carrier=[1, 2, 3, 4]), serving=True)


@pytest.mark.parametrize(
    ("derived", "code"),
    [
        (DerivedColumn(name="d", type="double", sql="sum(year)"), "derive.expression"),
        (DerivedColumn(name="d", type="double", sql="(SELECT 1)"), "derive.expression"),
        (DerivedColumn(name="d", type="double", sql="nowhere + 1"), "derive.expression"),
        (DerivedColumn(name="year", type="double", sql="built"), "derive.name"),
        (DerivedColumn(name="d", type="blob", sql="built"), "derive.type"),
        (DerivedColumn(name="d", type="double", sql="carrier"), "derive.failed"),
        (DerivedColumn(name="d", type="double", sql="1 + 1"), "derive.constant"),
    ],
    ids=["aggregate", "subquery", "unknown column", "name taken", "unknown type", "does not fit", "no column"],
)
def test_expression_that_is_none_of_a_row_is_refused(derived: DerivedColumn, code: str) -> None:
    with pytest.raises(DataError) as caught:
        FittedTransforms.fit(FRAME, derived=[derived], features=[plan(derived.name, "number")])
    assert caught.value.code == code


def test_feature_without_a_column_is_refused() -> None:
    with pytest.raises(DataError, match=r"schema\.missing"):
        FittedTransforms.fit(FRAME, derived=[], features=[plan("altitude", "number")])


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"format_version": 3}, "transforms.newer"),
        ({"features": [{"name": "x"}]}, "transforms.malformed"),
        ({"derive": [{"name": "d", "type": "double", "sql": "(SELECT 1)"}]}, "derive.expression"),
    ],
)
def test_file_that_another_hand_wrote_is_refused(fitted: FittedTransforms, change: dict[str, Any], code: str) -> None:
    with pytest.raises(DataError) as caught:
        FittedTransforms.from_json(json.dumps({**json.loads(fitted.to_json()), **change}).encode())
    assert caught.value.code == code
