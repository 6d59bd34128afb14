"""From the linear scores of a row to what a model predicts: fitting and scoring compute it alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from training.data.dataset.shard_format import FeatureEntry

MAX_LOG: Final = 50.0
"""Largest logarithm of a predicted mean, against overflow."""

Floats = NDArray[np.float64]


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
