"""What a champion's age costs: how far the data have moved since it was trained, and what later nights said of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from training.evaluation.cadence import Advice, Night, retrain_advice
from training.evaluation.checks import prediction_drift
from training.spec import PipelineSpec

MIN_ROWS: Final = 100
"""Fewer on either side say nothing about a column."""


def advice_of(
    spec: PipelineSpec, parameters: Mapping[str, Any], frame: pd.DataFrame, test: NDArray[np.int64], columns: Sequence[str]
) -> Advice:
    """Return the advice on how often to retrain.

    Args:
        parameters: the evaluation's: `champion`, `nights` ([{age_days, champion, candidate, version}]), `process_hours`.
        frame: [n] raw rows of the window.
        test: row numbers of the newest ones.
        columns: that the model reads.
    """
    nights = [Night(**night) for night in parameters.get("nights") or []]
    drift = _drift_since(parameters.get("champion"), spec.data.source.event_time, frame, test, columns)
    return retrain_advice(spec.evaluate.primary, nights, spec.costs, process_hours=parameters.get("process_hours"), drift=drift)


def _drift_since(
    champion: Mapping[str, Any] | None, event_time: str, frame: pd.DataFrame, test: NDArray[np.int64], columns: Sequence[str]
) -> dict[str, float] | None:
    """Return each numeric column's stability index: the test rows against what the champion learned from, as far as it is here."""
    if champion is None or "train" not in champion["bounds"]:
        return None
    learned_until = datetime.fromisoformat(champion["bounds"]["train"][1]).astimezone(UTC).replace(tzinfo=None)
    is_old = frame[event_time].to_numpy(dtype="datetime64[us]") < np.datetime64(learned_until, "us")
    found = {}
    for name in columns:
        if not pd.api.types.is_numeric_dtype(frame[name]) or pd.api.types.is_bool_dtype(frame[name]):
            continue
        values = frame[name].to_numpy(dtype=np.float64, na_value=np.nan)
        old, new = (part[np.isfinite(part)] for part in (values[is_old], values[test]))
        if min(len(old), len(new)) < MIN_ROWS:
            continue
        drift = prediction_drift("regression", new, old, None)
        if drift is not None:
            found[name] = drift["psi"]
    return found
