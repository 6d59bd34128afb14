"""Linear models: logistic, multinomial, ridge and Poisson regression of numbers and one weight per id, with a ridge penalty."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict, cast

import numpy as np
from safetensors.numpy import load_file, save

from training.data.features.transforms import Matrix
from training.models.base import Family, FitContext, FitResult, Scorer
from training.models.linear.scores import LINKS, Floats, id_sizes

if TYPE_CHECKING:
    from training.data.dataset.shard_format import FeatureEntry

WEIGHTS: Final = "weights.safetensors"


class LinearArchitecture(TypedDict):
    """What a scorer needs besides the weights, as JSON."""

    features: list[FeatureEntry]
    link: str


class Linear(Family):
    """One iteration of L-BFGS is one epoch."""

    def fit(self, context: FitContext) -> FitResult:
        # Imported here: a registered model carries what this file imports above, and serves no training.
        from training.models.linear.fitting import fitted

        weights, link, run = fitted(context)
        architecture = LinearArchitecture(features=list(context.dataset_meta["layout"]["features"]), link=link)
        return run.result(WEIGHTS, save({name: np.ascontiguousarray(values) for name, values in weights.items()}), architecture)

    def load(self, folder: Path, architecture: Mapping[str, object]) -> Scorer:
        weights, known = load_file(folder / WEIGHTS), cast(LinearArchitecture, architecture)
        link, sizes = LINKS[known["link"]], id_sizes(known["features"])

        def score(matrix: Matrix) -> Floats:
            found = np.repeat(weights["intercept"][None, :], len(matrix.cells), axis=0)
            # Column by column, not by a product of matrices: a row's score does not depend on the number of rows.
            for column, values in enumerate(matrix.floats.T):
                found += values[:, None].astype(np.float64) * weights["floats"][column]
            first = 0
            for column, size in enumerate(sizes):
                found += weights["ids"][first + matrix.ints[:, column]]
                first += size
            return link(found)

        return score


FAMILY = Linear()
