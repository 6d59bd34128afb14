"""The file of a model in ONNX, and the session of onnxruntime that scores it."""

from __future__ import annotations

from typing import Final

import onnxruntime

WEIGHTS: Final = "model.onnx"
SCORING_THREADS: Final = 2
QUIET: Final = 3
"""Of onnxruntime's levels of its log: errors."""
PROVIDERS: Final = ("CPUExecutionProvider",)


def session_of(data: bytes) -> onnxruntime.InferenceSession:
    """Return what scores a model; a model in bytes reads no further files."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = SCORING_THREADS, 1
    options.log_severity_level = QUIET
    return onnxruntime.InferenceSession(data, options, providers=list(PROVIDERS))
