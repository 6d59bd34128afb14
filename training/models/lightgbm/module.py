"""Gradient-boosted trees by LightGBM: trees grow leaf by leaf, and ids are split as categories.

The model is LightGBM's text, `weights.txt`: nothing is unpickled. A training that is stopped begins again: LightGBM does not continue one
with the bits that it would have had.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import lightgbm
import numpy as np
from numpy.typing import NDArray

from training.data.features.transforms import Matrix
from training.models.base import Family, FitContext, FitResult, Scorer

WEIGHTS: Final = "weights.txt"
LOG_LABELS: Final = "log_labels"
"""Key of a model's architecture: whether it predicts log(1 + label)."""


class LightGBM(Family):
    """One boosting round is one epoch."""

    def fit(self, context: FitContext) -> FitResult:
        # Imported here: a registered model carries what this file imports above, and serves no training.
        from training.models.lightgbm.boosting import boost

        booster, objective, run = boost(context)
        architecture = {"objective": objective, LOG_LABELS: context.spec.train.settings["objective"] == "log"}
        return run.result(WEIGHTS, booster.model_to_string(num_iteration=run.best_round).encode(), architecture)

    def load(self, folder: Path, architecture: Mapping[str, object]) -> Scorer:
        booster = lightgbm.Booster(model_str=(folder / WEIGHTS).read_text())

        def score(matrix: Matrix) -> NDArray[np.float64]:
            # One thread: a served model must not take more; the number changes no score.
            scores = np.asarray(booster.predict(matrix.as_floats(), num_threads=1), dtype=np.float64)
            return np.expm1(scores) if architecture.get(LOG_LABELS) else scores

        return score


FAMILY = LightGBM()
