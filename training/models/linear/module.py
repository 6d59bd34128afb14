"""Linear models: logistic, multinomial, ridge and Poisson regression of numbers and one weight per id, with a ridge penalty."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict, cast

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save

from training.data.transforms import Matrix
from training.models.base import Family, FitContext, FitResult, Scorer

if TYPE_CHECKING:
    from training.data.shard_format import FeatureEntry

WEIGHTS: Final = "weights.safetensors"
MAX_LOG: Final = 50.0
"""Largest logarithm of a predicted mean, against overflow."""

Floats = NDArray[np.float64]


class Architecture(TypedDict):
    """What a scorer needs besides the weights, as JSON."""

    features: list[FeatureEntry]
    link: str


class Linear(Family):
    """One iteration of L-BFGS is one epoch."""

    def fit(self, context: FitContext) -> FitResult:
        # Imported here: a registered model carries what this file imports above, and serves no training.
        from training.models.linear.fitting import fitted

        weights, link, run = fitted(context)
        architecture = Architecture(features=list(context.dataset_meta["layout"]["features"]), link=link)
        return run.result(WEIGHTS, save({name: np.ascontiguousarray(values) for name, values in weights.items()}), architecture)

    def load(self, folder: Path, architecture: Mapping[str, object]) -> Scorer:
        weights, known = load_file(folder / WEIGHTS), cast(Architecture, architecture)
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


def id_sizes(features: Sequence[FeatureEntry]) -> list[int]:
    """Return how many weights each id feature has, in the order of their columns."""
    return [max(1, entry["cardinality"]) for entry in features if entry["dtype"] != "float32"]


def sigmoid(scores: Floats) -> Floats:
    """Return 1 / (1 + e^-x) without overflow."""
    small = np.exp(-np.abs(scores))
    return np.asarray(np.where(scores >= 0, 1 / (1 + small), small / (1 + small)))


def softmax(scores: Floats) -> Floats:
    """Return the probability of each class, [n, classes]."""
    raised = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))


LINKS: Final[Mapping[str, Callable[[Floats], Floats]]] = {
    "identity": lambda scores: scores[:, 0],
    "sigmoid": lambda scores: sigmoid(scores[:, 0]),
    "softmax": softmax,
    "expm1": lambda scores: np.expm1(np.minimum(scores[:, 0], MAX_LOG)),
    "exp": lambda scores: np.exp(np.minimum(scores[:, 0], MAX_LOG)),
}
"""The name in a model's architecture to the function from the linear scores, [n, outputs], to what a model predicts."""

FAMILY = Linear()
