"""Models in ONNX, by onnxruntime on the CPU. They come from outside: nothing here trains one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from training.data.features.transforms import Matrix
from training.errors import spec_error
from training.models.base import Family, FitContext, FitResult, ImportedArtifact, Scorer
from training.models.onnx.session import WEIGHTS, session_of

SCORED_ROWS: Final = 65_536
"""Rows scored at a time: a fixed number, so that sums do not depend on the number of requested rows."""

Floats = NDArray[np.float64]


class Onnx(Family):
    """One file, whose input is the pipeline's cells."""

    def fit(self, context: FitContext) -> FitResult:
        message = "models of onnx are not trained here: they come from outside"
        raise spec_error("train.model", "model.imported", message, hint="nightshift register PIPELINE ARTIFACT --format onnx")

    def imported(self, artifact: ImportedArtifact) -> FitResult:
        # Imported here: a registered model carries what this file imports above, and is checked before it is one.
        from training.models.onnx.importing import imported_graph

        return imported_graph(artifact)

    def load(self, folder: Path, architecture: Mapping[str, object]) -> Scorer:
        session = session_of((folder / WEIGHTS).read_bytes())
        floats, ids, output = (str(architecture.get(name) or "") for name in ("floats", "ids", "output"))
        is_multiclass = bool(architecture["is_multiclass"])

        def score(matrix: Matrix) -> Floats:
            found = [np.empty((0, 1))]
            for start in range(0, len(matrix.cells), SCORED_ROWS):
                part = _inputs(matrix, slice(start, start + SCORED_ROWS), floats, ids)
                found.append(_columns(session.run([output], part)[0]))
            scores = np.concatenate(found[1:] or found)
            # Of two columns of probabilities, the second is that of the positive class.
            return scores if is_multiclass else scores[:, -1]

        return score


def _inputs(matrix: Matrix, rows: slice, floats: str, ids: str) -> dict[str, NDArray[np.float32] | NDArray[np.int64]]:
    """Return the model's inputs by name; with one input of floats, ids are numbers of it."""
    if not ids:
        numbers = np.concatenate([matrix.floats[rows], matrix.ints[rows].astype(np.float32)], axis=1)
        return {floats: np.ascontiguousarray(numbers)}
    found: dict[str, NDArray[np.float32] | NDArray[np.int64]] = {ids: matrix.ints[rows].astype(np.int64)}
    if floats:
        found[floats] = np.ascontiguousarray(matrix.floats[rows])
    return found


def _columns(output: NDArray[np.float32]) -> Floats:
    """Return [n, outputs] float64."""
    found = np.asarray(output, dtype=np.float64)
    return found[:, None] if found.ndim == 1 else found


FAMILY = Onnx()
