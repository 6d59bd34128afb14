"""Scores of several classes, [n, classes], and what follows from them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def probability_of_label(labels: Floats, scores: Floats) -> Floats:
    """Return the probability that each row's label was given, [n]; 0 for a class that the model does not know."""
    if scores.ndim == 1:
        return np.where(labels > 0, scores, 1 - scores)
    wide = with_all_classes(scores, labels)
    return np.asarray(wide[np.arange(len(labels)), labels.astype(np.int64)])


def predicted_class(scores: Floats) -> NDArray[np.int64]:
    """Return the likeliest class of each row of [n, classes]."""
    return np.asarray(scores.argmax(axis=1))


def with_all_classes(scores: Floats, labels: Floats) -> Floats:
    """Return [n, classes] with a column for every label: probability 0 for a class that the model never saw."""
    missing = int(labels.max()) + 1 - scores.shape[1] if len(labels) else 0
    return np.pad(scores, ((0, 0), (0, missing))) if missing > 0 else scores


def classes_of(labels: Floats) -> NDArray[np.int64]:
    """Return the classes that rows have, rising: a one-vs-rest area of any other has no value."""
    return np.unique(labels).astype(np.int64)
