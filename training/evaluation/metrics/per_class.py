"""How a model does on each class that has a name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.evaluation.metrics.class_scores import predicted_class

Floats = NDArray[np.float64]


def by_class(labels: Floats, candidate: Floats, champion: Floats | None, names: Sequence[str], *, threshold: float) -> list[dict[str, Any]]:
    """Return `{name, support, predicted, precision, recall, champion_recall}` of each class, the largest first.

    `precision` and `recall` are the candidate's: of the rows that are given the class, the share that have it; of the rows that have
    it, the share that are given it. None where there are no such rows.

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
        row: dict[str, Any] = {"name": name, "support": int(actual.sum())}
        if given is None:
            row |= {"predicted": None, "precision": None, "recall": None}
        else:
            said = given == number
            row |= {"predicted": int(said.sum()), "precision": _share(actual, said), "recall": _share(said, actual)}
        found.append({**row, "champion_recall": None if before is None else _share(before == number, actual)})
    return sorted(found, key=lambda row: -row["support"])


def _given(scores: Floats, threshold: float) -> NDArray[np.int64] | None:
    """Return the class that each row is given, [n]; None where a score is not finite."""
    if not np.isfinite(scores).all():
        return None
    return predicted_class(scores) if scores.ndim == 2 else (scores >= threshold).astype(np.int64)


def _share(part: NDArray[np.bool_], whole: NDArray[np.bool_]) -> float | None:
    """Return the share of the rows of `whole` that are in `part`."""
    return float(part[whole].mean()) if whole.any() else None
