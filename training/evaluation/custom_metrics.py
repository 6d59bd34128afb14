"""Metrics of the spec's own: `evaluate.metrics` names functions of allowed packages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Real

import numpy as np
from numpy.typing import NDArray

from training.errors import DataError, shown, spec_error
from training.evaluation.metrics.metric import Floats, OwnMetric
from training.installation import MODEL_PACKAGES
from training.spec.descriptors.families import is_own, own_packages
from training.spec.registry import imported


def load_own_metrics(places: Mapping[str, str]) -> dict[str, OwnMetric]:
    """Return the functions behind name to `package.module:function`. Each is `function(labels, scores, groups) -> float`, higher is better.

    What a function raises, and an answer that is not a number, comes out as DataError `metric.failed`; NaN is not an error, and is rejected
    by every gate.

    Raises:
        SpecError: `metric.place`, not of an allowed package; `metric.unknown`, there is no such function.
    """
    return {name: _checked(name, place, _load(place)) for name, place in places.items()}


def _load(place: str) -> Callable[..., object]:
    if not is_own(place):
        allowed = f"allowed packages ({MODEL_PACKAGES.name}): {', '.join(own_packages()) or 'none'}"
        raise spec_error(
            "evaluate.metrics", "metric.place", f"{shown(place)} is not a package.module:function of an allowed package", hint=allowed
        )
    hint = "write function(labels, scores, groups) -> float"
    found: Callable[..., object] = imported(place, place, callable, code="metric.unknown", hint=hint)
    return found


def _checked(name: str, place: str, function: Callable[..., object]) -> OwnMetric:
    def value(labels: Floats, scores: Floats, groups: NDArray[np.int64] | None) -> float:
        try:
            found = function(labels, scores, groups)
        except Exception as err:
            message = f"the metric {name} ({place}) failed on {len(labels)} rows: {type(err).__name__}: {err}"
            raise DataError("metric.failed", message[:1000], hint="it must take any rows of the test split, resampled ones too") from err
        if isinstance(found, np.ndarray) and found.ndim == 0:
            found = found.item()
        if isinstance(found, bool) or not isinstance(found, Real):
            message = f"the metric {name} ({place}) returned {shown(found)}, a {type(found).__name__}"
            raise DataError("metric.failed", message, hint="return one float")
        number = float(found)
        return number if math.isfinite(number) else math.nan

    return value
