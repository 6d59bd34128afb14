"""Number formats: what the forward pass runs in, why, and the scale of the loss that fp16 needs."""

from __future__ import annotations

import logging
import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final

import torch

from training.engine.checkpoint.format import ScaleEntry
from training.errors import DivergedError, spec_error

logger = logging.getLogger(__name__)

DTYPES: Final = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

FIRST_SCALE: Final = 65_536.0
GROWTH: Final = 2.0
BACK_OFF: Final = 0.5
GROWTH_INTERVAL: Final = 2000
"""As torch.amp.GradScaler has them; powers of two, so that scaling changes no bit of a gradient that fp16 can hold."""
MIN_SCALE: Final = 2.0**-10
MAX_SCALE: Final = 2.0**32


def choose_precision(asked: str, device: torch.device) -> str:
    """Return `fp32`, `bf16` or `fp16`. `auto`: bf16 where the GPU has it, for half the traffic; fp32 on a CPU, where small models gain
    nothing.

    Raises:
        SpecError: `precision.unsupported`.
    """
    if asked == "auto":
        chosen = "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
        logger.info("precision %s (auto on %s)", chosen, device.type)
        return chosen
    if asked not in DTYPES:
        raise spec_error(
            "train.precision", "precision.unsupported", f"there is no precision {asked!r}", hint="use auto, fp32, bf16 or fp16"
        )
    return asked


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return the context for the forward pass; weights and optimizer stay float32."""
    return nullcontext() if precision == "fp32" else torch.autocast(device.type, dtype=DTYPES[precision])


@dataclass(kw_only=True, slots=True)
class LossScale:
    """What the loss is multiplied by before the backward pass, so that small gradients are no zeros in fp16 (Micikevicius et al., 2018).

    It is halved after each step whose gradients overflow, and doubled after 2,000 others in a row. Weights and optimizer stay fp32.
    """

    factor: float = FIRST_SCALE
    good_steps: int = 0
    """Since it last changed."""
    skipped_steps: int = 0
    """Of the whole training."""

    def update(self, step: int, grad_norm: float) -> bool:
        """Return whether the optimizer may use the gradients of a step.

        Args:
            step: number of steps before it.
            grad_norm: of the whole model, the same number on every rank: all of them skip a step, or none.

        Raises:
            DivergedError: `loss.not_finite`: no scale is small enough.
        """
        if math.isfinite(grad_norm):
            self.good_steps += 1
            if self.good_steps == GROWTH_INTERVAL:
                self.factor, self.good_steps = min(self.factor * GROWTH, MAX_SCALE), 0
            return True
        self.factor, self.good_steps = self.factor * BACK_OFF, 0
        self.skipped_steps += 1
        if self.factor < MIN_SCALE:
            message = f"step {step}: gradient norm {grad_norm} in fp16, also with a loss scale of {self.factor / BACK_OFF:g}"
            hint = "set train.precision to bf16 or fp32, or lower train.learning_rate; the last checkpoint is kept"
            raise DivergedError("loss.not_finite", message, hint=hint)
        return False

    def to_json(self) -> ScaleEntry:
        return ScaleEntry(factor=self.factor, good_steps=self.good_steps, skipped_steps=self.skipped_steps)
