"""How a model does on each class that has a name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.evaluation.metrics.class_scores import Floats, predicted_class


@dataclass(frozen=True, kw_only=True, slots=True)
class ByClass:
    """One class. None where a share has no rows, or a score is not finite."""

    name: str
    support: int
    """Rows that have the class."""
    predicted: int | None
    """Rows that are given it."""
    precision: float | None
    """Of the rows that are given the class, the share that have it."""
    recall: float | None
    """Of the rows that have the class, the share that are given it."""
    champion_recall: float | None


def by_class(labels: Floats, candidate: Floats, champion: Floats | None, names: Sequence[str], *, threshold: float) -> list[ByClass]:
    """Return how the models do on each class, the largest first.

    Args:
        labels: [n] numbers of classes.
        candidate, champion: [n] probabilities of the second class, or [n, classes].
        names: of the classes.
        threshold: at which a probability counts as the positive class.
    """
    given, before = (None if scores is None else _given(scores, threshold) for scores in (candidate, champion))
    found = []
    for number, name in enumerate(names):
        actual = labels == number
        said = None if given is None else given == number
        found.append(
            ByClass(
                name=name,
                support=int(actual.sum()),
                predicted=None if said is None else int(said.sum()),
                precision=None if said is None else _share(actual, said),
                recall=None if said is None else _share(said, actual),
                champion_recall=None if before is None else _share(before == number, actual),
            )
        )
    return sorted(found, key=lambda one: -one.support)


def _given(scores: Floats, threshold: float) -> NDArray[np.int64] | None:
    """Return the class that each row is given, [n]; None where a score is not finite."""
    if not np.isfinite(scores).all():
        return None
    return predicted_class(scores) if scores.ndim == 2 else (scores >= threshold).astype(np.int64)


def _share(part: NDArray[np.bool_], whole: NDArray[np.bool_]) -> float | None:
    """Return the share of the rows of `whole` that are in `part`."""
    return float(part[whole].mean()) if whole.any() else None
