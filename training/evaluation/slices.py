"""The primary metric by slice: the rows that share a value of a declared column, or of two. Small slices are reported and judge nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from training.evaluation.metrics.by_task import metric_value
from training.evaluation.metrics.metric import OwnMetric, Rows
from training.evaluation.metrics.registry import metric_of
from training.spec.metrics import is_lower_better
from training.spec.sections.evaluation import Gain

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

MAX_SLICES: Final = 200
"""Of one column; the largest are kept."""
MAX_PAIRS: Final = 50
"""Of two columns together; the largest are kept."""
MISSING: Final = "(missing)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """The rows with one value of one column, or of each of two."""

    columns: Mapping[str, str]
    """Column to value."""
    support: int
    """Rows."""
    is_small: bool
    candidate: float
    champion: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Values:
    """A column's values as numbers: the largest `MAX_SLICES`, by falling support."""

    names: tuple[str, ...]
    codes: NDArray[np.int16]
    """[n], -1 for rows of rarer values."""
    support: Codes
    """[values] rows of each."""


def values_of(column: pd.Series[Any]) -> Values:
    """Return the values of a column, [n]; a missing value counts as a separate value."""
    numbers, found = pd.factorize(column, use_na_sentinel=True)
    names = [str(value) for value in found] + [MISSING]
    codes = np.where(numbers < 0, len(found), numbers).astype(np.int64)
    return _largest(names, codes, MAX_SLICES)


def by_slice(  # noqa: PLR0913 - one array a role; bundling them would only move the names
    known: Mapping[str, Values],
    columns: tuple[str, ...],
    *,
    primary: str,
    labels: Floats,
    candidate: Floats,
    champion: Floats | None,
    groups: Codes | None,
    least_support: int,
    pairs: bool = True,
    threshold: float = 0.5,
    gain: Gain = "linear",
    own: OwnMetric | None = None,
) -> list[Slice]:
    """Return the primary metric by value of each column, then, where `pairs`, by those of each two; largest slices first.

    Args:
        known: column to the values of [n] rows; the arrays are as long, in the same order (see `metrics.by_task.score_metrics`).
        columns: to slice by.
        least_support: rows below which a slice is small.
        pairs: whether to slice by two columns as well.
        threshold: at which a probability counts as a yes.
        gain: of a label in NDCG.
        own: the primary metric itself, where it is one of the spec's own.
    """
    measured = partial(metric_value, primary, threshold=threshold, gain=gain, own=own)

    def rows_of(scores: Floats) -> Rows:
        return Rows(labels=labels, scores=scores, groups=groups, threshold=threshold, gain=gain)

    found = []
    for names, values in _cuts(known, columns, pairs=pairs):
        new = _by_value(primary, rows_of(candidate), values, measured, is_own=own is not None)
        old = None if champion is None else _by_value(primary, rows_of(champion), values, measured, is_own=own is not None)
        for number, (name, support) in enumerate(zip(values.names, values.support.tolist(), strict=True)):
            found.append(
                Slice(
                    columns=dict(zip(names, name.split(_SEPARATOR), strict=True)),
                    support=support,
                    is_small=support < least_support,
                    candidate=float(new[number]),
                    champion=None if old is None else float(old[number]),
                )
            )
    return found


def worst_and_gap(slices: Sequence[Slice], primary: str) -> tuple[int | None, float | None]:
    """Return (index of the slice where the candidate is worst, best less worst) of the slices that are not small; None without any."""
    sign = -1.0 if is_lower_better(primary) else 1.0
    known = [(sign * part.candidate, number) for number, part in enumerate(slices) if not part.is_small and np.isfinite(part.candidate)]
    if not known:
        return None, None
    return min(known)[1], max(known)[0] - min(known)[0]


_SEPARATOR: Final = "\x00"
"""Between the names of two values: no text of a column has it."""


def _cuts(known: Mapping[str, Values], columns: Sequence[str], *, pairs: bool) -> Iterator[tuple[Sequence[str], Values]]:
    """Yield (columns, values) of each column, then, where `pairs`, of each two: one at a time, an array of all rows each."""
    for column in columns:
        yield (column,), known[column]
    for a, b in itertools.combinations(columns, 2) if pairs else ():
        yield (a, b), _crossed(known[a], known[b])


def _crossed(first: Values, second: Values) -> Values:
    names = [f"{a}{_SEPARATOR}{b}" for a in first.names for b in second.names]
    codes = first.codes.astype(np.int64) * len(second.names) + second.codes
    codes[(first.codes < 0) | (second.codes < 0)] = -1
    return _largest(names, codes, MAX_PAIRS)


def _largest(names: Sequence[str], codes: Codes, limit: int) -> Values:
    """Renumber the values by falling support, the first `limit` that have rows; equal support by the order of the names."""
    support = np.bincount(codes[codes >= 0], minlength=len(names))
    kept = [number for number in sorted(range(len(names)), key=lambda n: (-support[n], names[n]))[:limit] if support[number]]
    renumbered = np.full(len(names) + 1, -1, dtype=np.int16)
    renumbered[kept] = np.arange(len(kept))
    # The last place is that of the code -1.
    return Values(names=tuple(names[number] for number in kept), codes=renumbered[codes], support=support[kept])


def _by_value(
    primary: str, rows: Rows, values: Values, measured: Callable[[Floats, Floats, Codes | None], float], *, is_own: bool
) -> Floats:
    """Return the metric of each value's rows, [values]: by one pass over all where there is a way, else slice by slice."""
    num = len(values.names)
    labels, scores, groups = rows.labels, rows.scores, rows.groups
    if not is_own and np.isfinite(scores).all():
        found = metric_of(primary).part_values(rows, values.codes, values.support)
        if found is not None:
            return found
    numbers = np.flatnonzero(values.codes >= 0)
    order = numbers[np.argsort(values.codes[numbers], kind="stable")]
    parts = np.split(order, np.cumsum(values.support)[:-1]) if num else []
    by_part = [measured(labels[part], scores[part], None if groups is None else groups[part]) for part in parts]
    return np.array(by_part, dtype=np.float64)
