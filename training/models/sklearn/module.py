"""scikit-learn's classifiers and regressors, and those of distributions like it. A training that is stopped begins again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict, cast

from training.models.base import Family, FitContext, FitResult, Scorer
from training.models.sklearn.scoring import scorer_of
from training.models.sklearn.weights import NAME, loaded


class SklearnArchitecture(TypedDict):
    """What a scorer needs besides the weights, as JSON."""

    estimator: str
    trusted: list[str]
    """Classes that the weights may have besides those of scikit-learn, by module and name."""
    num_classes: int | None
    """None: of a regression."""


class Sklearn(Family):
    """The whole fit is one epoch."""

    def fit(self, context: FitContext) -> FitResult:
        # Imported here: a registered model carries what this file imports above, and serves no training.
        from training.models.sklearn.fitting import fitted

        return fitted(context)

    def load(self, folder: Path, architecture: Mapping[str, object]) -> Scorer:
        known = cast(SklearnArchitecture, architecture)
        return scorer_of(loaded((folder / NAME).read_bytes(), known["trusted"]), known["num_classes"])


FAMILY = Sklearn()
