"""Number formats: what the forward pass runs in, and why."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import torch

from training.errors import Problem, SpecError

logger = logging.getLogger(__name__)

DTYPES: Final = {"fp32": torch.float32, "bf16": torch.bfloat16}


def choose_precision(asked: str, device: torch.device) -> str:
    """Return `fp32` or `bf16`. `auto`: bf16 where the GPU has it, for half the traffic; fp32 on a CPU, where small models gain nothing.

    Raises:
        SpecError: `precision.unsupported`.
    """
    if asked == "auto":
        chosen = "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
        logger.info("precision %s (auto on %s)", chosen, device.type)
        return chosen
    if asked not in DTYPES:
        message = f"precision {asked!r} is not supported: fp16 needs loss scaling, which bf16 does without"
        raise SpecError("train.precision", [Problem(code="precision.unsupported", message=message, hint="use auto, fp32 or bf16")])
    return asked


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return the context for the forward pass; weights and optimizer stay float32."""
    return nullcontext() if precision == "fp32" else torch.autocast(device.type, dtype=DTYPES[precision])
