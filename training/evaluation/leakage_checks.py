"""What may be wrong with a result that looks good: a feature that is the label, test rows known from training, other predictions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from training.evaluation.metrics.auc import roc_area
from training.evaluation.metrics.ranking import dense_groups
from training.evaluation.raw_rows import Columns, Floats, Hashes, found_in
from training.evaluation.record import Leakage, Overlap, PredictionDrift
from training.validation.drift import stability_index

Rows = NDArray[np.int64]

MAX_ROWS: Final = 200_000
"""Rows of each split that the search for a leaking feature looks at, evenly chosen."""
NUM_BINS: Final = 50
"""Of a number, so that a feature counts that predicts the label without rising with it."""
MAX_CLASSES: Final = 10
"""The most frequent ones are looked at."""
MIN_CORRELATION: Final = 0.3
"""A column whose ties allow less tells nothing of most rows, for example if it is missing in more than 97 % of them."""


def strongest_feature(
    task: str, columns: Sequence[str], training: Columns, training_labels: Floats, test: Columns, test_labels: Floats
) -> Leakage | None:
    """Return the raw column that alone ranks the test labels best, and its value; None where none can be judged.

    A column is judged by its values, rising or falling, and by the mean label of its values (of bins, for a number) in the training
    rows, which also sees an identifier that stands for the label. The value is the AUC, averaged over classes one against the
    rest; where labels are not yes or no, the absolute rank correlation (Spearman), as a share of the largest that the ties allow; a
    column whose ties allow less than `MIN_CORRELATION` is not judged.

    Args:
        task: as the spec names it.
        columns: to judge, read one after the other.
        training, test: [training rows] and [test rows] that have these columns, those of `evenly`.
        training_labels, test_labels: as long.
    """
    values = [(column, _explained(task, training[column], training_labels, test[column], test_labels)) for column in columns]
    known = [(feature, value) for feature, value in values if math.isfinite(value)]
    if not known:
        return None
    feature, value = max(known, key=lambda pair: pair[1])
    return Leakage(feature=feature, value=value)


def overlap(entities: Sequence[str], training: Iterable[Hashes], test: Iterable[Hashes]) -> Overlap:
    """Return which share of the test rows' entities the training rows have too.

    Args:
        entities: columns that together identify the entity of a row.
        training, test: hashes of these columns' values (`raw_rows.hashes_of`), batch by batch.
    """
    known = np.unique(np.concatenate([np.empty(0, dtype=np.uint64), *test]))
    is_there = found_in(training, known)
    return Overlap(entities=tuple(entities), share=float(is_there.mean()) if len(known) else 0.0, num_test=len(known))


def prediction_drift(task: str, candidate: Floats, champion: Floats, groups: Rows | None) -> PredictionDrift | None:
    """Return the population stability index of the candidate's predictions against the champion's on the same rows.

    Predictions are counted in deciles of the champion's (for several classes: by the likeliest class). Near-ties are in one bin
    (`stability_index.separated`). A ranker's scores have no scale: each is taken less its group's mean, in standard deviations of the
    model's own. None where a score is not finite.
    """
    if not (np.isfinite(candidate).all() and np.isfinite(champion).all()) or len(candidate) == 0:
        return None
    if candidate.ndim == 2:
        old, new = (scores.argmax(axis=1) for scores in (champion, candidate))
        num_bins = int(max(old.max(), new.max())) + 1
    else:
        parts = [_standing(scores, groups) if task == "ranking" and groups is not None else scores for scores in (champion, candidate)]
        deciles = np.quantile(parts[0], np.arange(1, stability_index.NUM_BINS) / stability_index.NUM_BINS)
        edges = stability_index.separated(deciles, np.sort(parts[0]))
        old, new = (np.searchsorted(edges, part, side="left") for part in parts)
        num_bins = len(edges) + 1
    counts = [np.bincount(bins, minlength=num_bins).tolist() for bins in (old, new)]
    return PredictionDrift(psi=stability_index.stability_index(*counts))


def is_constant(scores: Floats, groups: Rows | None) -> bool:
    """Return whether the model says the same of every row; of a ranker: of every row of a group, in all groups."""
    if len(scores) < 2:
        return False
    if groups is None:
        return bool((scores == scores[:1]).all())
    order = np.argsort(groups, kind="stable")
    same_group = groups[order][1:] == groups[order][:-1]
    return bool(same_group.any() and (scores[order][1:] == scores[order][:-1])[same_group].all())


def evenly(num_rows: int) -> Rows:
    """Return the numbers of the rows that `strongest_feature` looks at: all, or `MAX_ROWS` of them, evenly chosen."""
    return np.arange(num_rows) if num_rows <= MAX_ROWS else np.linspace(0, num_rows - 1, MAX_ROWS).astype(np.int64)


def _explained(task: str, known: pd.Series[Any], known_labels: Floats, column: pd.Series[Any], labels: Floats) -> float:
    values = []
    for target, test_target in _targets(task, known_labels, labels):
        rankings = [_encoded(known, target, column)]
        numbers = _numbers(column)
        if numbers is not None:
            rankings.append(numbers)
        values.append(max((_strength(ranking, test_target) for ranking in rankings), default=math.nan))
    finite = [value for value in values if math.isfinite(value)]
    return float(np.mean(finite)) if finite else math.nan


def _targets(task: str, known_labels: Floats, labels: Floats) -> Iterator[tuple[Floats, Floats]]:
    """Yield (training, test) targets: the labels, or yes and no of each frequent class."""
    if task != "multiclass":
        yield known_labels, labels
        return
    classes, counts = np.unique(labels, return_counts=True)
    for number in classes[np.argsort(-counts, kind="stable")][:MAX_CLASSES]:
        yield (known_labels == number).astype(np.float64), (labels == number).astype(np.float64)


def _numbers(column: pd.Series[Any]) -> Floats | None:
    """Return a numeric or time column as numbers, missing ones lowest; None for text."""
    if pd.api.types.is_datetime64_any_dtype(column):
        numbers = column.astype("int64").to_numpy(dtype=np.float64)
        return np.where(column.isna().to_numpy(), -np.inf, numbers)
    if not pd.api.types.is_numeric_dtype(column):
        return None
    numbers = column.to_numpy(dtype=np.float64, na_value=np.nan)
    return np.where(np.isnan(numbers), -np.inf, numbers)


def _encoded(known: pd.Series[Any], target: Floats, column: pd.Series[Any]) -> Floats:
    """Return for each row of `column` the mean target of the rows of `known` in the same bin or of the same value."""
    old, new = _numbers(known), _numbers(column)
    if old is not None and new is not None:
        edges = np.unique(np.quantile(old[np.isfinite(old)], np.arange(1, NUM_BINS) / NUM_BINS)) if np.isfinite(old).any() else np.empty(0)
        codes, wanted = (np.where(part == -np.inf, 0, np.searchsorted(edges, part) + 1) for part in (old, new))
    else:
        codes, names = pd.factorize(known, use_na_sentinel=False)
        wanted = pd.Index(names).get_indexer(pd.Index(column))
    num = int(max(codes.max(initial=0), wanted.max(initial=0))) + 1
    counts = np.bincount(codes, minlength=num)
    overall = float(target.mean()) if len(target) else 0.0
    means = np.where(counts > 0, np.bincount(codes, weights=target, minlength=num) / np.maximum(counts, 1), overall)
    return np.where(wanted < 0, overall, means[wanted])


def _strength(ranking: Floats, target: Floats) -> float:
    """Return how well a ranking orders the target, in either direction, from 0.5 (AUC) or 0 (correlation) to 1."""
    if np.isin(target, (0.0, 1.0)).all():
        area = roc_area(target, ranking)
        return max(area, 1 - area)
    ranks = pd.Series(ranking).rank().to_numpy(), pd.Series(target).rank().to_numpy()
    if min(part.std() for part in ranks) == 0:
        return math.nan
    found = np.corrcoef(*ranks)[0, 1]
    # Sorted, the two agree as far as their ties let them.
    largest = np.corrcoef(np.sort(ranks[0]), np.sort(ranks[1]))[0, 1]
    if largest < MIN_CORRELATION:
        return math.nan
    return float(min(1.0, abs(found) / largest))


def _standing(scores: Floats, groups: Rows) -> Floats:
    numbers = dense_groups(groups)
    centered = scores - (np.bincount(numbers, weights=scores) / np.bincount(numbers))[numbers]
    spread = float(centered.std())
    return np.asarray(centered / spread) if spread > 0 else centered
