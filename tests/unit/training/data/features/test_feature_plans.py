"""What a YAML says of a feature is what `prepare` fits."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from training.data.features.encoders import EncoderSettings
from training.data.features.feature_plans import plan_of
from training.data.features.target_encoding import TargetRows
from training.data.features.transforms import FeaturePlan
from training.spec.sections.prepare import Feature

OF_THE_PLAN = {"transform", "serve_as"}
VALUES: dict[str, Any] = {
    "fill": "keep",
    "max_categories": 7,
    "buckets": 9,
    "top": 3,
    "parts": ("hour",),
    "form": "cyclic",
    "tokens": "characters",
    "ngrams": (2, 3),
    "lowercase": False,
    "scale": "share",
    "smoothing": 4.0,
    "folds": 6,
}
"""A value of each key that is not what stands for it where it is absent."""


def planned(feature: Feature) -> FeaturePlan:
    target = TargetRows(label=np.zeros(2, np.float32), numbers=np.zeros(2, np.int32))
    return plan_of("dest", feature, timezone="America/New_York", target=target)


def test_each_key_of_a_feature_is_looked_at() -> None:
    assert VALUES.keys() | OF_THE_PLAN == Feature.model_fields.keys()


@pytest.mark.parametrize("key", VALUES)
def test_key_of_a_feature_reaches_its_transform(key: str) -> None:
    assert dataclasses.asdict(EncoderSettings(kind="category"))[key] != VALUES[key]
    plan = planned(Feature.model_construct(transform="category", **{key: VALUES[key]}))
    assert plan.settings == EncoderSettings(kind="category", zone="America/New_York", **{key: VALUES[key]})


def test_transform_constant_and_labels_are_those_of_the_feature() -> None:
    plan = planned(Feature.model_construct(transform="target_encode", serve_as="JFK"))
    assert (plan.settings.kind, plan.serve_as, plan.target is None) == ("target_encode", "JFK", False)
    assert planned(Feature.model_construct(transform="category")).target is None
