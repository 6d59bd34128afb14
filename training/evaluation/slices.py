"""The primary metric by slice, the rows that share a value of a declared column, or of two; and how sensitive columns' values are treated.

Slices and values of few rows are reported and judge nothing. So do those whose labels alone allow no value, with the reason why.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from training.evaluation.metrics.calibration import calibration_error
from training.evaluation.metrics.metric import Floats, Metric, ScoredRows
from training.evaluation.record import FairnessGaps, Slice, Treated
from training.format import finite

Codes = NDArray[np.int64]

MAX_SLICES: Final = 200
"""Of one column; the largest are kept."""
MAX_PAIRS: Final = 50
"""Of two columns together; the largest are kept."""
MISSING: Final = "(missing)"


_SEPARATOR: Final = "\x00"
"""Between the names of two values: no text of a column has it."""


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


def by_slice(
    known: Mapping[str, Values],
    columns: Sequence[str],
    metric: Metric,
    candidate: ScoredRows,
    champion: ScoredRows | None,
    *,
    least_support: int,
    pairs: bool = True,
) -> list[Slice]:
    """Return the metric by value of each column, then, where `pairs`, by those of each two; largest slices first.

    Args:
        known: column to the values of [n] rows.
        columns: to slice by.
        metric: that is measured, as a rule the primary one.
        candidate, champion: scores of the same rows, in the same order.
        least_support: rows below which a slice is small.
        pairs: whether to slice by two columns as well.
    """
    found = []
    for names, values in _cuts(known, columns, pairs=pairs):
        new = _by_value(metric, candidate, values)
        old = None if champion is None else _by_value(metric, champion, values)
        for number, (name, support) in enumerate(zip(values.names, values.support.tolist(), strict=True)):
            part = Slice(
                columns=dict(zip(names, name.split(_SEPARATOR), strict=True)),
                support=support,
                is_small=support < least_support,
                candidate=new[number],
                champion=None if old is None else old[number],
            )
            if not np.isfinite(new[number]):
                part = _with_reason(part, metric, candidate, champion, np.flatnonzero(values.codes == number))
            found.append(part)
    return found


def _with_reason(part: Slice, metric: Metric, candidate: ScoredRows, champion: ScoredRows | None, rows: Codes) -> Slice:
    """Return a slice without a value with the reason, where its labels are one. A prediction that is not finite is NaN there too."""
    why_none = metric.why_none(candidate.at(rows))
    if not why_none:
        return part
    known = {"candidate": candidate, "champion": champion}
    none = {name: None for name, scored in known.items() if scored is not None and np.isfinite(scored.scores[rows]).all()}
    return part.model_copy(update={**none, "why_none": why_none})


def worst_and_gap(slices: Sequence[Slice], sign: float) -> tuple[int | None, float | None]:
    """Return (index of the slice where the candidate is worst, best less worst) of the slices that are not small; None without any.

    Args:
        sign: -1 for a metric of which lower is better, else 1.
    """
    judged = [(finite(part.candidate), number) for number, part in enumerate(slices) if not part.is_small]
    known = [(sign * value, number) for value, number in judged if value is not None]
    if not known:
        return None, None
    return min(known)[1], max(known)[0] - min(known)[0]


def fairness_of(
    known: Mapping[str, Values], columns: Sequence[str], rows: ScoredRows, *, task: str, least_support: int
) -> dict[str, FairnessGaps]:
    """Return how each column's values fare, by column.

    Args:
        known: column to the values of [n] rows.
        columns: the sensitive ones.
        rows: the [n] rows, with the threshold at which a probability counts as a yes.
        task: binary has both gaps, multiclass that of calibration, the others neither.
        least_support: rows below which a value judges nothing.
    """
    found = {}
    for column in columns:
        values = known[column]
        treated = []
        for number, (name, support) in enumerate(zip(values.names, values.support.tolist(), strict=True)):
            part = rows.at(np.flatnonzero(values.codes == number))
            rate, error = _treatment(task, part)
            treated.append(
                Treated(
                    value=name,
                    support=support,
                    is_small=support < least_support,
                    true_positive_rate=rate,
                    calibration_error=error,
                    num_positives=int((part.labels > 0).sum()) if task == "binary" else None,
                )
            )
        judged = [one for one in treated if not one.is_small]
        found[column] = FairnessGaps(
            equal_opportunity_gap=_gap([one.true_positive_rate for one in judged]),
            calibration_gap=_gap([one.calibration_error for one in judged]),
            values=tuple(treated),
        )
    return found


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


def _by_value(metric: Metric, rows: ScoredRows, values: Values) -> Floats:
    """Return the metric of each value's rows, [values]: by one pass over all where there is a way, else slice by slice."""
    found = metric.part_values(rows, values.codes, values.support) if np.isfinite(rows.scores).all() else None
    if found is not None:
        return found
    numbers = np.flatnonzero(values.codes >= 0)
    order = numbers[np.argsort(values.codes[numbers], kind="stable")]
    parts = np.split(order, np.cumsum(values.support)[:-1]) if len(values.names) else []
    return np.array([metric.measured(rows.at(part)) for part in parts], dtype=np.float64)


def _treatment(task: str, rows: ScoredRows) -> tuple[float | None, float | None]:
    if task not in ("binary", "multiclass") or not np.isfinite(rows.scores).all():
        return None, None
    positive = rows.labels > 0
    rate = float((rows.scores[positive] >= rows.threshold).mean()) if task == "binary" and positive.any() else None
    return rate, calibration_error(rows.labels, rows.scores)


def _gap(numbers: Sequence[float | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return max(known) - min(known) if len(known) > 1 else None
