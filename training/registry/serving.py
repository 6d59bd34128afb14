"""Loader of registered models: MLflow calls it by name, so nothing is unpickled. The class is the one that evaluation uses."""

from __future__ import annotations

from pathlib import Path

from training.models.predictor import Predictor, load_predictor


def _load_pyfunc(path: str) -> Predictor:
    """Return the predictor of a model's folder; its `predict(raw_frame)` includes the preprocessing."""
    return load_predictor(Path(path))
