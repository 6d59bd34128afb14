"""From a model's input to what an estimator predicts: fitting and scoring compute it alike."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import get_tags
from threadpoolctl import ThreadpoolController

from training.data.features.transforms import Matrix
from training.models.base import Scorer


def inputs_of(matrix: Matrix) -> NDArray[np.float64]:
    """Return numbers, then ids as numbers, [n, features]: what an estimator takes."""
    return np.concatenate([matrix.floats, matrix.ints], axis=1, dtype=np.float64)


def takes_missing_numbers(estimator: Any) -> bool:
    """Return whether an estimator takes NaN."""
    return bool(get_tags(estimator).input_tags.allow_nan)


def scorer_of(estimator: Any, num_classes: int | None) -> Scorer:
    """Return the scorer of a fitted estimator. A row with a missing number that it does not take has the score NaN.

    Args:
        num_classes: of the task; None: the scores are numbers.
    """
    # One thread: a served model must not take more, and another number could round otherwise.
    threads = ThreadpoolController()
    takes_missing = takes_missing_numbers(estimator)

    def score(matrix: Matrix) -> NDArray[np.float64]:
        inputs = inputs_of(matrix)
        can_be_scored = np.ones(len(inputs), dtype=bool) if takes_missing else ~np.isnan(inputs).any(axis=1)
        scores = np.full(len(inputs) if num_classes is None else (len(inputs), num_classes), np.nan)
        if can_be_scored.any():
            with threads.limit(limits=1):
                scores[can_be_scored] = _predicted(estimator, inputs[can_be_scored], num_classes)
        return scores[:, 1] if num_classes == 2 else scores

    return score


def _predicted(estimator: Any, inputs: NDArray[np.float64], num_classes: int | None) -> NDArray[np.float64]:
    if num_classes is None:
        return np.asarray(estimator.predict(inputs), dtype=np.float64).reshape(len(inputs))
    # The estimator knows the classes of the training rows alone, in the order of their numbers.
    found = np.zeros((len(inputs), num_classes))
    found[:, estimator.classes_] = estimator.predict_proba(inputs)
    return found
