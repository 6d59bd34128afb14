"""Transforms of one column, from a list of values."""

from __future__ import annotations

from typing import Any

import pandas as pd

from training.data.features.encoders import EncoderSettings
from training.data.features.transforms import FeaturePlan, FittedTransforms


def plan(name: str, kind: str, *, serve_as: float | str | None = None, **settings: Any) -> FeaturePlan:
    return FeaturePlan(name=name, settings=EncoderSettings(kind=kind, **settings), serve_as=serve_as)


def fit_one(values: list[Any], kind: str, dtype: Any = None, **settings: Any) -> FittedTransforms:
    return FittedTransforms.fit(pd.DataFrame({"x": pd.Series(values, dtype=dtype)}), derived=[], features=[plan("x", kind, **settings)])


def apply_one(transforms: FittedTransforms, values: list[Any], dtype: Any = None) -> list[float]:
    matrix = transforms.apply(pd.DataFrame({"x": pd.Series(values, dtype=dtype)}), serving=False)
    return (matrix.floats if matrix.num_floats else matrix.ints)[:, 0].tolist()
