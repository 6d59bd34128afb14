"""What a champion's age costs: how far the data have moved since it was trained, and what later runs said of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from training.evaluation.cadence import Advice, Night, retrain_advice
from training.evaluation.checks import prediction_drift
from training.evaluation.raw_rows import Columns
from training.evaluation_record import Rival
from training.spec import PipelineSpec

MIN_ROWS: Final = 100
"""Fewer on either side say nothing about a column."""


def advice_of(
    spec: PipelineSpec,
    frame: Columns,
    test: NDArray[np.int64],
    columns: Sequence[str],
    *,
    champion: Rival | None = None,
    nights: Sequence[Night] = (),
    process_hours: float | None = None,
) -> Advice:
    """Return the advice on how often to retrain.

    Args:
        frame: [n] raw rows of the window.
        test: row numbers of the test split.
        columns: that the model reads.
        champion: what the drift is measured from; None: no drift.
        nights: how champions did on the test rows of later runs.
        process_hours: of one run, summed over its processes.
    """
    drift = _drift_since(champion, spec, frame, test, columns)
    return retrain_advice(spec.evaluate.primary, nights, spec.costs, process_hours=process_hours, drift=drift)


def _drift_since(
    champion: Rival | None, spec: PipelineSpec, frame: Columns, test: NDArray[np.int64], columns: Sequence[str]
) -> dict[str, float] | None:
    """Return each numeric column's stability index: the test rows against the champion's training rows, as far as they are here."""
    if champion is None or "train" not in champion.bounds:
        return None
    learned_until = datetime.fromisoformat(champion.bounds["train"][1]).astimezone(UTC).replace(tzinfo=None)
    is_old = frame[spec.data.source.event_time].to_numpy(dtype="datetime64[us]") < np.datetime64(learned_until, "us")
    if spec.data.split.by != "time":
        # Such a test split has old rows too.
        test = test[~is_old[test]]
    found = {}
    for name in columns:
        column = frame[name]
        if not pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column):
            continue
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
        old, new = (part[np.isfinite(part)] for part in (values[is_old], values[test]))
        if min(len(old), len(new)) < MIN_ROWS:
            continue
        drift = prediction_drift("regression", new, old, None)
        if drift is not None and drift.psi is not None:
            found[name] = drift.psi
    return found
