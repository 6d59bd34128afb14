"""What a champion's age costs: how far the data have moved since it was trained, and what later runs said of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from training.evaluation.cadence import Advice, Night, retrain_advice
from training.evaluation.checks import evenly, prediction_drift
from training.evaluation_record import Rival
from training.spec import PipelineSpec

MIN_ROWS: Final = 100
"""Fewer on either side say nothing about a column."""
MAX_ROWS: Final = 1_000_000
"""Of all rows, and of the test rows: of more, so many are looked at, evenly chosen."""

ColumnOf = Callable[[str, NDArray[np.int64]], "pd.Series[Any]"]
"""A column of the rows with these numbers, which rise."""


def advice_of(
    spec: PipelineSpec,
    column_of: ColumnOf,
    event_us: NDArray[np.int64],
    test: NDArray[np.int64],
    columns: Sequence[str],
    *,
    champion: Rival | None = None,
    nights: Sequence[Night] = (),
    process_hours: float | None = None,
) -> Advice:
    """Return the advice on how often to retrain.

    Args:
        column_of: reads raw rows of the window.
        event_us: [n] times of their events, microseconds since 1970, UTC.
        test: row numbers of the test split.
        columns: that the model reads.
        champion: what the drift is measured from; None: no drift.
        nights: how champions did on the test rows of later runs.
        process_hours: of one run, summed over its processes.
    """
    drift = _drift_since(champion, spec, column_of, event_us, test, columns)
    return retrain_advice(spec.evaluate.primary, nights, spec.costs, process_hours=process_hours, drift=drift)


def _drift_since(
    champion: Rival | None,
    spec: PipelineSpec,
    column_of: ColumnOf,
    event_us: NDArray[np.int64],
    test: NDArray[np.int64],
    columns: Sequence[str],
) -> dict[str, float] | None:
    """Return each numeric column's stability index: the test rows against the champion's training rows, as far as they are here."""
    if champion is None or "train" not in champion.bounds:
        return None
    learned_until = datetime.fromisoformat(champion.bounds["train"][1]).astimezone(UTC).replace(tzinfo=None)
    learned_until_us = int(np.datetime64(learned_until, "us").astype(np.int64))
    looked_at = evenly(len(event_us), MAX_ROWS)
    learned = looked_at[event_us[looked_at] < learned_until_us]
    test = test[evenly(len(test), MAX_ROWS)]
    if spec.data.split.by != "time":
        # Such a test split has old rows too.
        test = test[event_us[test] >= learned_until_us]
    found = {}
    for name in columns:
        old, new = (_finite(column_of(name, numbers)) for numbers in (learned, test))
        if old is None or new is None or min(len(old), len(new)) < MIN_ROWS:
            continue
        drift = prediction_drift("regression", new, old, None)
        if drift is not None and drift.psi is not None:
            found[name] = drift.psi
    return found


def _finite(column: pd.Series[Any]) -> NDArray[np.float64] | None:
    """Return the finite values, None where the column does not hold numbers."""
    if not pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column):
        return None
    values: NDArray[np.float64] = column.to_numpy(dtype=np.float64, na_value=np.nan)
    return values[np.isfinite(values)]
