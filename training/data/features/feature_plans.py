"""From `prepare.features` of a spec to transforms fitted on the training rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from training.data.dataset.dataset_writer import DatasetRows
from training.data.dataset.scratch_arrays import ScratchArrays
from training.data.features.encoders import EncoderSettings
from training.data.features.target_encoding import TargetRows, frame_fold_numbers
from training.data.features.transforms import FeaturePlan, FittedTransforms
from training.data.join.derived import DerivedColumn
from training.data.join.engines.interface import Engine
from training.spec import PipelineSpec
from training.spec.sections.prepare import Feature


def fit_transforms(
    spec: PipelineSpec, rows: DatasetRows, engine: Engine, arrays: ScratchArrays
) -> tuple[FittedTransforms, NDArray[np.int32] | None]:
    """Return the transforms, and the numbers that give training rows their fold, [n]; None: no feature is made of labels.

    Args:
        arrays: makes the arrays.

    Raises:
        DataError: as `Engine.fit`.
    """
    training, features, target, fold_numbers = rows.is_training(), spec.prepare.features, None, None
    if any(feature.transform == "target_encode" for feature in features.values()):
        key = (spec.data.group,) if spec.data.group else spec.data.source.key
        fold_numbers = frame_fold_numbers(rows.frame, key, training, arrays)
        label, numbers = (arrays.selected(values, training) for values in (rows.label, fold_numbers))
        target = TargetRows(label=label, numbers=numbers, label_center=rows.label_center)
    plans = [plan_of(name, feature, timezone=spec.timezone, target=target) for name, feature in features.items()]
    derived = [DerivedColumn(name=name, type=column.type, sql=column.sql) for name, column in spec.prepare.derive_in_order()]
    return engine.fit(rows.frame, training, derived=derived, features=plans), fold_numbers


def plan_of(name: str, feature: Feature, *, timezone: str, target: TargetRows | None) -> FeaturePlan:
    """Return how a feature is fitted; `target` is of the training rows, for one that is made of labels."""
    settings = EncoderSettings(
        kind=feature.transform,
        fill=feature.fill,
        max_categories=feature.max_categories,
        buckets=feature.buckets,
        top=feature.top,
        parts=feature.parts,
        form=feature.form or "number",
        zone=timezone,
        tokens=feature.tokens or "words",
        ngrams=feature.ngrams,
        lowercase=feature.lowercase is not False,
        scale=feature.scale or "count",
        smoothing=feature.smoothing,
        folds=feature.folds,
    )
    return FeaturePlan(
        name=name, settings=settings, serve_as=feature.serve_as, target=target if feature.transform == "target_encode" else None
    )
