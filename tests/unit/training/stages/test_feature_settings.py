"""What a YAML says of a feature is what `prepare` fits."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from training.data.dataset.scratch_arrays import ScratchArrays
from training.data.features.encoders import EncoderSettings
from training.data.features.transforms import FeaturePlan
from training.runtime.provenance import CHECKOUT
from training.spec import load_spec
from training.spec.sections.data import Feature
from training.stages import prepare

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


class Recorder:
    """An engine that notes what it is to fit."""

    features: list[FeaturePlan]

    def fit(self, *_args: Any, features: list[FeaturePlan], **_named: Any) -> None:
        self.features = features


def planned(feature: Feature, folder: Path) -> FeaturePlan:
    spec = load_spec(CHECKOUT / "dags" / "pipelines" / "flight_delay.yaml")
    spec = spec.model_copy(update={"prepare": spec.prepare.model_copy(update={"features": {"dest": feature}})})
    divided: Any = SimpleNamespace(frame=SimpleNamespace(num_rows=3), rows={"train": np.array([0, 1])}, label=np.zeros(3, np.float32))
    engine: Any = Recorder()
    prepare._fit(spec, engine, divided, np.zeros(3, np.int32), ScratchArrays(folder))
    (plan,) = engine.features
    assert plan.name == "dest"
    return plan  # type: ignore[no-any-return]


def test_each_key_of_a_feature_is_looked_at() -> None:
    assert VALUES.keys() | OF_THE_PLAN == Feature.model_fields.keys()


@pytest.mark.parametrize("key", VALUES)
def test_key_of_a_feature_reaches_its_transform(key: str, tmp_path: Path) -> None:
    assert dataclasses.asdict(EncoderSettings(kind="category"))[key] != VALUES[key]
    plan = planned(Feature.model_construct(transform="category", **{key: VALUES[key]}), tmp_path)
    assert plan.settings == EncoderSettings(kind="category", zone="America/New_York", **{key: VALUES[key]})


def test_transform_constant_and_labels_are_those_of_the_feature(tmp_path: Path) -> None:
    plan = planned(Feature.model_construct(transform="target_encode", serve_as="JFK"), tmp_path)
    assert (plan.settings.kind, plan.serve_as, plan.target is None) == ("target_encode", "JFK", False)
    assert planned(Feature.model_construct(transform="category"), tmp_path).target is None
